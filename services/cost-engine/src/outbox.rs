//! Publishes the events in the outbox: first those left by an earlier process, then new ones.
//!
//! The bytes of an event are fixed when its cost is committed. It stays in the outbox until JetStream has acknowledged it. A crash at
//! any moment republishes the same events with the same ids, which JetStream and all consumers deduplicate.

use std::sync::Arc;
use std::time::Duration;

use mesh_bus::{Backoff, Bus, trace};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::adapters::{OutboxEvent, Store};
use crate::metrics;

/// Maximum number of events per batch.
const BATCH_EVENTS: u32 = 256;
/// Poll interval without notifications.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Delay after an error other than an unavailable NATS.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Handle to notify the publisher. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Outbox {
    added: Arc<Notify>,
}

impl Outbox {
    /// Notifies that events were committed.
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
                    Backoff::fixed(RETRY_DELAY).wait(shutdown).await;
                }
            }
        }
    }

    /// Publishes the oldest events. False if there are none.
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
            Ok(_) => {
                let count = ids.len();
                store.remove_published(ids).await?;
                metrics::published("stored", count);
                Ok(true)
            }
            Err(mesh_bus::Error::Cancelled) => Ok(true),
            Err(mesh_bus::Error::Invalid { id, reason }) => {
                // The cost remains in the database. Only its event cannot be published.
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

/// Span for publishing an event, in the trace of the job event that caused it.
fn span(waiting: &OutboxEvent) -> Span {
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
