//! After the recovery of a damaged file: what was delivered is on `MESH_AUDIT`, at least as long as its events are on the
//! bus. With that, every endpoint begins again at its creation: what the audit has is not sent again, the rest is.

use std::path::Path;

use chrono::{DateTime, Utc};
use mesh_bus::Bus;
use mesh_db::damage::RecoveryMarker;
use mesh_events::catalogue::MESH_AUDIT;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::{from_timestamp, subject};
use prost::Message as _;

use crate::config::Endpoint;
use crate::error::Error;
use crate::store::Store;
use crate::store::restored::RestoredOutcome;

/// Audit entries per request.
const PAGE_SIZE: u32 = 1_000;

/// What is left to do after the recovery of a file.
pub struct Recovery {
    marker: RecoveryMarker,
    cluster: String,
}

/// Prepares a recovered file for the next start.
///
/// # Errors
/// If the database cannot be written.
pub async fn prepare(store: &Store, endpoints: &[Endpoint]) -> Result<(), mesh_runtime::BoxError> {
    // An endpoint whose row is lost was there before, nobody knows since when.
    let files = endpoints.iter();
    let files = files.map(|endpoint| (endpoint.name.as_str(), endpoint.public.as_str()));
    store.note_files(files, DateTime::UNIX_EPOCH).await?;
    store.delete_cursors().await?;
    Ok(())
}

impl Recovery {
    /// Of a SQLite file.
    pub fn of(file: &Path, cluster: &str) -> Self {
        Self {
            marker: RecoveryMarker::of(file),
            cluster: cluster.to_owned(),
        }
    }

    /// Stores the outcomes that the audit has, once after a recovery.
    ///
    /// # Errors
    /// If NATS does not answer, or the database write fails. Then it is done again.
    pub(super) async fn read_audit(&self, bus: &Bus, store: &Store) -> Result<(), Error> {
        if !self.marker.is_set() {
            return Ok(());
        }
        let last = bus.stream_state(MESH_AUDIT).await?.last_sequence;
        let subjects = [subject::audit(&self.cluster, "delivery")];
        let (mut next, mut count) = (1, 0);
        loop {
            let page = bus
                .stored_page(MESH_AUDIT, &subjects, next, last, PAGE_SIZE)
                .await?;
            let Some(end) = page.last() else { break };
            next = end.stream_sequence + 1;
            let entries = page.iter();
            let entries = entries.filter_map(|message| AuditEntry::decode(&*message.body).ok());
            let outcomes: Vec<RestoredOutcome> = entries.filter_map(outcome).collect();
            count += outcomes.len();
            store.restore(outcomes, Utc::now()).await?;
        }
        tracing::info!(
            outcomes = count,
            "database was recovered: outcomes read from MESH_AUDIT"
        );
        // If it stays, it is only read again.
        drop(self.marker.clear());
        Ok(())
    }
}

fn outcome(entry: AuditEntry) -> Option<RestoredOutcome> {
    let at = entry.at.as_ref().and_then(from_timestamp)?;
    match entry.act? {
        Act::Delivery(delivery) => Some(RestoredOutcome { delivery, at }),
        _ => None,
    }
}
