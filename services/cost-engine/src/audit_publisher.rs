//! Publishes the audit entries about closed periods and changed budgets, which the ledger stores: first those left by an earlier process.

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
pub(crate) async fn run(store: &Store, bus: &Bus, pending: &Notify, shutdown: &CancellationToken) {
    while !shutdown.is_cancelled() {
        if let Err(error) = publish(store, bus).await {
            tracing::warn!(
                error = mesh_runtime::error_chain(error.as_ref()),
                "audit entry not published, retrying"
            );
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = pending.notified() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

async fn publish(store: &Store, bus: &Bus) -> Result<(), mesh_runtime::BoxError> {
    for entry in store.unpublished_audit_entries().await? {
        let subject = subject::audit(&entry.cluster, AUDIT_KIND);
        bus.publish_raw(subject, &entry.audit_id, entry.body)
            .await?;
        store.audit_entry_published(&entry.audit_id).await?;
    }
    Ok(())
}
