//! Publishes what the database holds: first what an earlier process left, then what is added.
//!
//! The bytes are fixed when the cost is committed. They remain in the outbox until JetStream has acknowledged them, so a crash at any
//! moment publishes the same events with the same ids again, which JetStream and every consumer recognise.

use std::sync::Arc;
use std::time::Duration;

use mesh_bus::{Bus, trace};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::adapters::{Store, Unpublished};
use crate::metrics;

/// Events published at a time.
const BATCH_EVENTS: u32 = 256;
/// Looked at again after this time even if nobody notified it.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// After an error that is not NATS being away.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Notified when there is something to publish. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Outbox {
    added: Arc<Notify>,
}

impl Outbox {
    /// Events were committed.
    pub fn notify(&self) {
        self.added.notify_one();
    }

    /// Publishes until shutdown.
    pub async fn run(self, store: &Store, bus: &Bus, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            match self.publish(store, bus, shutdown).await {
                Ok(true) => {}
                Ok(false) => {
                    tokio::select! {
                        () = shutdown.cancelled() => {}
                        () = self.added.notified() => {}
                        () = tokio::time::sleep(IDLE_POLL_INTERVAL) => {}
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        error = mesh_runtime::error_chain(error.as_ref()),
                        "publish failed, retrying"
                    );
                    tokio::select! {
                        () = shutdown.cancelled() => {}
                        () = tokio::time::sleep(RETRY_DELAY) => {}
                    }
                }
            }
        }
    }

    /// Publishes the oldest events; false if there are none.
    async fn publish(
        &self,
        store: &Store,
        bus: &Bus,
        shutdown: &CancellationToken,
    ) -> Result<bool, mesh_runtime::BoxError> {
        let waiting = store.unpublished(BATCH_EVENTS).await?;
        if waiting.is_empty() {
            return Ok(false);
        }
        let ids: Vec<String> = waiting
            .iter()
            .map(|waiting| waiting.event.id.clone())
            .collect();
        let traced = waiting
            .into_iter()
            .map(|waiting| (span(&waiting), waiting.event))
            .map(|(span, event)| (event, span))
            .collect();
        match bus.publish_all_traced(traced, shutdown).await {
            Ok(()) => {
                let count = ids.len();
                store.remove_published(ids).await?;
                metrics::published("stored", count);
                Ok(true)
            }
            Err(mesh_bus::Error::Cancelled) => Ok(true),
            Err(mesh_bus::Error::Invalid { id, reason }) => {
                // The cost remains in the database; only its event cannot be published.
                tracing::error!(
                    event.id = id,
                    reason,
                    "cost event rejected by the bus, not published"
                );
                store.remove_published(vec![id]).await?;
                metrics::published("refused", 1);
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The span of publishing an event: part of the trace of the job event behind it.
fn span(waiting: &Unpublished) -> Span {
    let span = tracing::info_span!(
        "publish",
        otel.name = "cost-engine publish",
        otel.kind = "producer",
        messaging.system = "nats",
        event.id = waiting.event.id,
    );
    if !waiting.traceparent.is_empty() {
        trace::adopt(&span, &waiting.traceparent);
    }
    span
}
