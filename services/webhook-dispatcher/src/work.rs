//! Removal of an endpoint, and how tasks repeat after errors.

use std::sync::Arc;
use std::time::Duration;

use mesh_bus::Bus;
use tokio_util::sync::CancellationToken;

use crate::endpoint_worker::WorkerContext;
use crate::error::Error;
use crate::lease::Lease;
use crate::clock;

/// Wait before the next try after an error of NATS or the database.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Wait after an operation has ended with its connection.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between checks that all outcomes of a removed endpoint are published.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Removes an endpoint: its waiting deliveries (which become dead letters), its position, and its stored state.
pub async fn remove(shared: Arc<WorkerContext>, lease: Lease, stop: CancellationToken) {
    while let Err(error) = try_remove(&shared, &lease, &stop).await {
        tracing::warn!(
            error = mesh_runtime::error_chain(&error),
            endpoint = lease.endpoint,
            "removing endpoint failed, retrying"
        );
        if !pause(RETRY_INTERVAL, &stop).await {
            return;
        }
    }
}

async fn try_remove(
    shared: &WorkerContext,
    lease: &Lease,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let (store, name) = (&shared.store, &lease.endpoint);
    lease.check()?;
    let ended = store.end(lease.epoch, name, clock::now(), stop).await?;
    if ended > 0 {
        tracing::warn!(
            endpoint = name,
            deliveries = ended,
            "endpoint removed, waiting deliveries stored as dead letters"
        );
        shared.outcomes.notify_one();
    }
    while !store.outbox(vec![name.clone()], 1).await?.is_empty() {
        if !pause(POLL_INTERVAL, stop).await {
            return Ok(());
        }
    }
    if store.erase(name, lease.epoch, stop).await? {
        tracing::info!(endpoint = name, "endpoint deleted");
    }
    Ok(())
}

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
        if !pause(interval, shutdown).await {
            return;
        }
    }
}

/// Sleeps. Returns false if stopped before.
pub async fn pause(time: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}
