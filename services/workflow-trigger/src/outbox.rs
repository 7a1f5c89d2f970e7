//! Publishes audit entries that were committed with what they report.

use std::sync::Arc;
use std::time::Duration;

use mesh_bus::{Backoff, Bus, RawMessage};
use mesh_events::subject;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::adapters::outbox::AUDIT_KIND;
use crate::adapters::store::Store;
use crate::error::Error;

/// Maximum number of entries per batch.
const BATCH_SIZE: u32 = 128;
/// Poll interval without notifications: the driver adds entries without one.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Publishes until shutdown.
pub(crate) async fn run(
    store: &Store,
    bus: &Bus,
    recorded: &Arc<Notify>,
    shutdown: &CancellationToken,
) {
    while !shutdown.is_cancelled() {
        match publish(store, bus).await {
            Ok(true) => {}
            Ok(false) => {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = recorded.notified() => {}
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
            Err(error) => {
                tracing::debug!(
                    error = mesh_runtime::error_chain(&error),
                    "audit entries not published, retrying"
                );
                Backoff::fixed(RETRY_DELAY).wait(shutdown).await;
            }
        }
    }
}

/// Publishes the oldest entries. False if there are none.
async fn publish(store: &Store, bus: &Bus) -> Result<bool, Error> {
    let waiting = store.unpublished(BATCH_SIZE).await?;
    if waiting.is_empty() {
        return Ok(false);
    }
    let messages: Vec<RawMessage> = waiting
        .iter()
        .map(|entry| RawMessage {
            subject: subject::audit(&entry.cluster, AUDIT_KIND),
            id: entry.id.clone(),
            body: entry.body.clone().into(),
        })
        .collect();
    let results = bus.publish_many(&messages).await;
    let (mut published, mut failed) = (Vec::new(), None);
    for (entry, result) in waiting.iter().zip(results) {
        match result {
            Ok(()) => published.push(entry.seq),
            Err(error) => failed = Some(error),
        }
    }
    if !published.is_empty() {
        store.remove_published(published).await?;
    }
    failed.map_or(Ok(true), |error| Err(error.into()))
}
