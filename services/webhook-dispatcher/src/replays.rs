//! Replayed events for one endpoint.
//!
//! The endpoint's filter applies, its maximum event age does not. Events delivered earlier are delivered again:
//! deduplication is per replay. Arrays are aggregated into digests as usual.
//!
//! Replays are rare. A dispatcher follows which endpoints have replayed events; only such an endpoint reads them.

use std::pin::pin;
use std::sync::{Arc, Weak};

use chrono::DateTime;
use futures_util::StreamExt as _;
use mesh_events::catalogue::MESH_REPLAY;
use tokio_util::sync::CancellationToken;

use crate::adapters::store::Delivery;
use crate::clock;
use crate::domain::subscription::Subscription;
use crate::endpoint_worker::{EndpointWorker, WorkerContext};
use crate::error::Error;
use crate::handlers;
use crate::reader::event::StreamEvent;
use crate::reader::queue::EventQueue;
use crate::work::{RETRY_INTERVAL, pause, while_connected};
use crate::worker_pool::WorkerPool;

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
        shared.replayed.send_if_modified(|last| {
            let last = last.entry(endpoint.clone()).or_default();
            let is_newer = sequence > *last;
            *last = sequence.max(*last);
            is_newer
        });
        if let Some(worker) = worker_pool.worker(&endpoint) {
            worker.handle_replays();
        }
    }
    Ok(())
}

/// Delivers replayed events, until stopped.
pub async fn consume(worker: Arc<EndpointWorker>) {
    let worker = &worker;
    // What a replay publishes to the endpoint is selected by its filter alone.
    let all = Subscription::new(worker.endpoint.filter.clone(), &[], DateTime::UNIX_EPOCH);
    let queue = EventQueue::new(&worker.endpoint.name, MESH_REPLAY, 0, all, 0, Weak::new());
    while let Err(error) = worker.load_replays(&queue).await {
        let (error, endpoint) = (mesh_runtime::error_chain(&error), &worker.endpoint.name);
        tracing::warn!(error, endpoint, "read cursor of replays failed, retrying");
        if !pause(RETRY_INTERVAL, &worker.stop).await {
            return;
        }
    }
    let queue = Arc::new(queue);
    handlers::consume(worker, &queue).await;
    worker.save_position(&queue).await;
}

/// Delivers a replayed event, stored under this id.
///
/// # Errors
/// If the database read or write fails, or the lease is lost. The event is handled again.
pub async fn deliver(
    worker: &EndpointWorker,
    queue: &Arc<EventQueue>,
    read: &StreamEvent,
    id: String,
) -> Result<(), Error> {
    let (endpoint, kind, event) = (&worker.endpoint, read.kind, &read.event);
    let completes = endpoint.format.is_chat() && worker.companions.contains(&kind);
    let sent_alone = !completes && endpoint.format.takes(kind, event);
    if !sent_alone || !endpoint.filter.matches(kind, event) {
        return Ok(());
    }
    if worker.shared.store.knows(&endpoint.name, &id).await? {
        return Ok(());
    }
    let delivery = Delivery::of(queue, id, read, clock::now());
    worker.deliver(delivery, None).await
}
