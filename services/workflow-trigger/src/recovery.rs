//! After the recovery of a damaged file: what rules have done is in the audit, on `MESH_AUDIT` for longer than an event may fire.
//!
//! A firing that the audit has does not happen again. One that it lacks, because the database was lost just before it was published, may
//! only be of a message that was delivered and not acknowledged. Such a message fires nothing: its rule is paused, and says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use chrono::Utc;
use mesh_bus::{Backoff, Bus, ConsumerProgress, Message};
use mesh_db::damage::RecoveryMarker;
use mesh_events::catalogue::{MESH_AUDIT, MESH_IN, SLURM_EVENTS};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_runtime::{BoxError, Service as _};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use crate::WorkflowTriggerService;
use crate::adapters::outbox::OUTBOX;
use crate::adapters::store::Store;
use crate::domain::firing::Firing;
use crate::domain::recorded::Recorded;
use crate::error::Error;

/// Audit entries per request.
const PAGE_SIZE: u32 = 1_000;
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The streams whose messages fire rules.
const STREAMS: [&str; 2] = [SLURM_EVENTS, MESH_IN];

/// What is left to do after the recovery of a file. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Recovery(Arc<Inner>);

struct Inner {
    marker: Option<RecoveryMarker>,
    /// Whether a message that was delivered before may have fired a rule.
    is_uncertain: AtomicBool,
    /// For each of [`STREAMS`]: messages up to this sequence may have been delivered by a consumer that is gone.
    unknown_up_to: [AtomicU64; 2],
    /// For each of [`STREAMS`]: messages up to this sequence were delivered before the start.
    delivered: [AtomicU64; 2],
}

impl Recovery {
    /// Of a SQLite file. `None` on a database server.
    pub fn new(marker: Option<RecoveryMarker>, store: &Store) -> Self {
        let marker = marker.filter(RecoveryMarker::is_set);
        let is_lacking = marker
            .as_ref()
            .is_some_and(|marker| marker.restored().is_none());
        store.set_restoring(is_lacking);
        Self(Arc::new(Inner {
            is_uncertain: AtomicBool::new(marker.is_some()),
            marker,
            unknown_up_to: Default::default(),
            delivered: Default::default(),
        }))
    }

    /// Completes the database from the audit, once after a recovery. Retries until shutdown.
    ///
    /// # Errors
    /// If the marker cannot be written.
    pub async fn restore(
        &self,
        store: &Store,
        bus: &Bus,
        shutdown: &CancellationToken,
    ) -> Result<(), BoxError> {
        let Some(marker) = &self.0.marker else {
            return Ok(());
        };
        let mut interval = Backoff::fixed(RETRY_INTERVAL);
        let unknown_up_to = loop {
            match self.try_restore(store, bus, marker).await {
                Ok(unknown_up_to) => break unknown_up_to,
                Err(error) => {
                    let error = mesh_runtime::error_chain(&error);
                    tracing::warn!(error, "runs not restored from the audit, retrying");
                }
            }
            if !interval.wait(shutdown).await {
                return Ok(());
            }
        };
        // Before anything is delivered: after that, the next start cannot find out.
        marker.note_restored(&unknown_up_to)?;
        store.set_restoring(false);
        Ok(())
    }

    /// Returns what [`Inner::unknown_up_to`] is now.
    async fn try_restore(
        &self,
        store: &Store,
        bus: &Bus,
        marker: &RecoveryMarker,
    ) -> Result<[u64; 2], Error> {
        let noted = marker.restored();
        let mut unknown_up_to = [0; 2];
        for (place, stream) in STREAMS.into_iter().enumerate() {
            let delivered = progress(bus, stream).await?.delivered;
            let state = bus.stream_state(stream).await?;
            // A new consumer says that it delivered what the stream no longer has.
            let unknown = if delivered < state.first_sequence.max(1) {
                // Its consumer was made again, and delivers everything for the first time.
                state.last_sequence
            } else {
                let noted = noted.as_ref().and_then(|noted| noted.get(place));
                // A stream that was made again has fewer messages.
                noted.copied().unwrap_or(0).min(state.last_sequence)
            };
            unknown_up_to[place] = unknown;
            self.0.unknown_up_to[place].store(unknown, Ordering::SeqCst);
            self.0.delivered[place].store(delivered.max(unknown), Ordering::SeqCst);
        }
        if noted.is_some() {
            return Ok(unknown_up_to);
        }
        let recorded = read_audit(bus).await?;
        let restored = store.restore(&recorded, Utc::now()).await?;
        tracing::warn!(
            runs = restored.added,
            given_up = restored.given_up,
            "database was recovered: runs read from MESH_AUDIT"
        );
        Ok(unknown_up_to)
    }

    /// Marks firings that may have happened before the database was lost.
    pub fn mark(&self, message: &Message, firings: &mut [Firing]) {
        if !self.0.is_uncertain.load(Ordering::SeqCst) {
            return;
        }
        let place = STREAMS.iter().position(|stream| *stream == message.stream);
        let unknown = place.map(|place| self.0.unknown_up_to[place].load(Ordering::SeqCst));
        // An event that was published again has another message id.
        let is_republished = message.stream == SLURM_EVENTS
            && message
                .header("Nats-Msg-Id")
                .is_some_and(|id| id.contains('/'));
        let is_uncertain =
            message.delivery > 1 || is_republished || unknown >= Some(message.stream_sequence);
        for firing in firings {
            firing.is_uncertain = is_uncertain;
        }
    }

    /// Ends the recovery once every message that was delivered before is acknowledged.
    pub async fn end(&self, bus: &Bus, shutdown: &CancellationToken) {
        let Some(marker) = &self.0.marker else {
            return;
        };
        let mut interval = Backoff::fixed(RETRY_INTERVAL);
        while !self.is_over(bus).await.unwrap_or(false) {
            if !interval.wait(shutdown).await {
                return;
            }
        }
        self.0.is_uncertain.store(false, Ordering::SeqCst);
        // If it stays, the next start is careful again.
        drop(marker.clear());
        tracing::info!("recovery of the database ended");
    }

    async fn is_over(&self, bus: &Bus) -> Result<bool, Error> {
        for (place, stream) in STREAMS.into_iter().enumerate() {
            let delivered = self.0.delivered[place].load(Ordering::SeqCst);
            if progress(bus, stream).await?.acknowledged < delivered {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

async fn progress(bus: &Bus, stream: &str) -> Result<ConsumerProgress, Error> {
    let name = WorkflowTriggerService::NAME;
    Ok(bus.consumer_progress(stream, name).await?)
}

async fn read_audit(bus: &Bus) -> Result<Recorded, Error> {
    let last = bus.stream_state(MESH_AUDIT).await?.last_sequence;
    let subjects = [format!("mesh.*.audit.{}", OUTBOX.kind)];
    let mut recorded = Recorded::default();
    let mut next = 1;
    loop {
        let page = bus.stored_page(MESH_AUDIT, &subjects, next, last, PAGE_SIZE);
        let page = page.await?;
        let Some(end) = page.last() else {
            return Ok(recorded);
        };
        next = end.stream_sequence + 1;
        for message in &page {
            if let Ok(entry) = AuditEntry::decode(&*message.body) {
                recorded.add(entry);
            }
        }
    }
}
