//! Deletes tombstones of pending runs after their events have left the stream.

use std::time::Duration;

use chrono::Utc;
use tokio_util::sync::CancellationToken;

use crate::adapters::Store;

/// Longer than events stay in the stream (14 days).
const RETENTION: Duration = Duration::from_secs(15 * 24 * 3600);
const INTERVAL: Duration = Duration::from_secs(3600);

/// Deletes them until shutdown.
pub(crate) async fn run(store: &Store, shutdown: &CancellationToken) {
    while !shutdown.is_cancelled() {
        let before = (Utc::now() - RETENTION).timestamp();
        if let Err(error) = store.delete_tombstones(before).await {
            let error = mesh_runtime::error_chain(&error);
            tracing::warn!(error, "tombstones of pending runs not deleted, retrying");
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}
