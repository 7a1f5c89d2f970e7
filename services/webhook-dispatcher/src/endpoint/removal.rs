//! Removal of an endpoint.

use std::sync::Arc;
use std::time::Duration;

use mesh_bus::Backoff;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::delivery::lease::Lease;
use crate::delivery::worker_context::WorkerContext;
use crate::error::Error;
use crate::repeat::RETRY_INTERVAL;
use crate::store::endpoint_rows::EndpointRows;

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
        if !Backoff::fixed(RETRY_INTERVAL).wait(&stop).await {
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
    let rows = EndpointRows {
        store,
        endpoint: name,
        epoch: lease.epoch,
    };
    let ended = rows.end(clock::now(), stop).await?;
    if ended > 0 {
        tracing::warn!(
            endpoint = name,
            deliveries = ended,
            "endpoint removed, waiting deliveries stored as dead letters"
        );
        shared.outcomes.notify_one();
    }
    while !store.outbox(vec![name.clone()], 1).await?.is_empty() {
        if !Backoff::fixed(POLL_INTERVAL).wait(stop).await {
            return Ok(());
        }
    }
    if store.erase(name, lease.epoch, stop).await? {
        tracing::info!(endpoint = name, "endpoint deleted");
    }
    Ok(())
}
