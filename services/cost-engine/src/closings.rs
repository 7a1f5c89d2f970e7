//! Publishes the audit entries of closed periods and of changed budgets, which the ledger stores: first those left by an earlier process.

use std::time::Duration;

use mesh_bus::Bus;
use mesh_events::subject;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::adapters::Store;

/// Kind of the audit entries.
pub(crate) const AUDIT_KIND: &str = "cost";
/// Pause without a notification, and after an error.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Publishes until shutdown.
pub(crate) async fn run(store: &Store, bus: &Bus, closed: &Notify, shutdown: &CancellationToken) {
    while !shutdown.is_cancelled() {
        if let Err(error) = publish(store, bus).await {
            tracing::warn!(
                error = mesh_runtime::error_chain(error.as_ref()),
                "closed period not published, retrying"
            );
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = closed.notified() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

async fn publish(store: &Store, bus: &Bus) -> Result<(), mesh_runtime::BoxError> {
    for entry in store.unpublished_closings().await? {
        let subject = subject::audit(&entry.cluster, AUDIT_KIND);
        bus.publish_raw(subject, &entry.audit_id, entry.body)
            .await?;
        store.closing_published(&entry.period).await?;
    }
    for entry in store.unpublished_audit().await? {
        let subject = subject::audit(&entry.cluster, AUDIT_KIND);
        bus.publish_raw(subject, &entry.audit_id, entry.body)
            .await?;
        store.audit_published(&entry.audit_id).await?;
    }
    Ok(())
}
