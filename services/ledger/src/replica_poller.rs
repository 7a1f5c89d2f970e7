//! Maintains a ledger on PostgreSQL: waits for the server, polls the head for appends of other
//! replicas, and creates partitions.

use std::time::Duration;

use mesh_bus::Backoff;
use mesh_runtime::Condition;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::Store;
use crate::error::Error;

/// Maximum delay until followers see entries appended by another replica.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Well below the two months for which partitions are created in advance.
const PARTITION_INTERVAL: Duration = Duration::from_secs(3600);

/// Opens the ledger when the server is available. Returns false if shut down before.
///
/// # Errors
/// If the failure is permanent.
pub(crate) async fn open(
    store: &Store,
    database: &Condition,
    shutdown: &CancellationToken,
) -> Result<bool, Error> {
    let mut backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(5));
    loop {
        match store.prepare().await {
            Ok(()) => return Ok(true),
            Err(error) if error.is_unavailable() => {
                database.fail(mesh_runtime::error_chain(&error));
                tracing::debug!(
                    error = mesh_runtime::error_chain(&error),
                    "ledger database unavailable, retrying"
                );
            }
            Err(error) => return Err(error),
        }
        if !backoff.wait(shutdown).await {
            return Ok(false);
        }
    }
}

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
