//! How tasks repeat after errors.

use std::time::Duration;

use mesh_bus::{Backoff, Bus};
use tokio_util::sync::CancellationToken;

/// Wait before the next try after an error of NATS or the database.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Wait after an operation has ended with its connection.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// Runs an operation while NATS is connected, and again after it has ended, until shutdown.
pub async fn while_connected<F, E>(
    bus: &Bus,
    shutdown: &CancellationToken,
    action: &'static str,
    run: impl Fn() -> F,
) where
    F: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    while bus.ready(shutdown).await.is_ok() {
        let interval = match shutdown.run_until_cancelled(run()).await {
            None => return,
            Some(Ok(())) => RECONNECT_INTERVAL,
            Some(Err(error)) => {
                let error = mesh_runtime::error_chain(&error);
                tracing::warn!(error, "{action} failed, retrying");
                RETRY_INTERVAL
            }
        };
        if !Backoff::fixed(interval).wait(shutdown).await {
            return;
        }
    }
}
