//! What a ledger on a server needs besides appending: waiting for the server, seeing what other replicas append, partitions ahead of time.

use std::time::Duration;

use mesh_runtime::Condition;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::Store;
use crate::error::Error;

/// Pauses between attempts to open the ledger.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often the head is looked at. Those who follow the ledger see what another replica appended after this time at most.
const LOOK: Duration = Duration::from_millis(250);
/// How often partitions are made: well within the two months they are ahead.
const MAINTAIN: Duration = Duration::from_secs(3600);

/// Opens the ledger as soon as its server is there. False if told to stop before.
///
/// # Errors
/// If the ledger cannot be opened for a reason that waiting does not mend.
pub(crate) async fn open(
    store: &Store,
    database: &Condition,
    shutdown: &CancellationToken,
) -> Result<bool, Error> {
    let mut pause = FIRST_PAUSE;
    loop {
        match store.prepare().await {
            Ok(()) => return Ok(true),
            Err(error) if error.is_unavailable() => {
                database.fail(mesh_runtime::chain(&error));
                tracing::debug!(error = mesh_runtime::chain(&error), "not there yet");
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            () = shutdown.cancelled() => return Ok(false),
        }
    }
}

/// Looks at the head of a shared ledger, and makes its partitions. Never ends.
pub(crate) async fn keep(store: &Store, reading: &Condition) {
    reading.ok();
    if !store.is_shared() {
        return std::future::pending().await;
    }
    let mut maintained = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        match store.head().await {
            Ok(_) => reading.ok(),
            Err(error) => reading.fail(mesh_runtime::chain(&error)),
        }
        if maintained.elapsed() >= MAINTAIN {
            // Payloads without a partition go to the one for all others, so this is no alarm.
            match store.maintain().await {
                Ok(()) => maintained = Instant::now(),
                Err(error) => tracing::warn!(
                    error = mesh_runtime::chain(&error),
                    "make partitions, trying again"
                ),
            }
        }
    }
}
