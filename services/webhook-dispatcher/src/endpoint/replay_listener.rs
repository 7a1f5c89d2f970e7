//! Follows which endpoints have replayed events. Only such an endpoint reads them.

use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::worker_pool::WorkerPool;
use crate::delivery::worker_context::WorkerContext;
use crate::repeat::while_connected;

/// Watches for endpoints that have replays, until shutdown.
pub async fn listen(
    shared: Arc<WorkerContext>,
    worker_pool: Arc<WorkerPool>,
    shutdown: CancellationToken,
) {
    let action = "watching for replayed events";
    let follow = || follow(&shared, &worker_pool);
    while_connected(&shared.bus, &shutdown, action, follow).await;
}

async fn follow(shared: &WorkerContext, worker_pool: &WorkerPool) -> Result<(), mesh_bus::Error> {
    let mut endpoints = pin!(shared.bus.follow_replayed_endpoints().await?);
    while let Some((endpoint, sequence)) = endpoints.next().await {
        shared.replayed().insert(endpoint.clone(), sequence);
        if let Some(worker) = worker_pool.worker(&endpoint) {
            worker.handle_replays();
        }
    }
    Ok(())
}
