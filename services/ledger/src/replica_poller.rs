//! Maintains a ledger on PostgreSQL: polls the head for appends of other replicas, and creates partitions.

use std::time::Duration;

use mesh_runtime::Condition;
use tokio::time::Instant;

use crate::adapters::Store;

/// Maximum delay until followers see entries appended by another replica.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Well below the two months for which partitions are created in advance.
const PARTITION_INTERVAL: Duration = Duration::from_secs(3600);

/// Polls the head of a shared ledger and creates partitions. Never returns.
pub(crate) async fn run(store: &Store, reading: &Condition) {
    reading.ok();
    if !store.is_shared() {
        return std::future::pending().await;
    }
    let mut maintained = Instant::now();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        match store.head().await {
            Ok(_) => reading.ok(),
            Err(error) => reading.fail(mesh_runtime::error_chain(&error)),
        }
        if maintained.elapsed() >= PARTITION_INTERVAL {
            // Payloads without a partition go to the default partition, so this is not an error.
            match store.maintain().await {
                Ok(()) => maintained = Instant::now(),
                Err(error) => tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    "partition creation failed, retrying"
                ),
            }
        }
    }
}
