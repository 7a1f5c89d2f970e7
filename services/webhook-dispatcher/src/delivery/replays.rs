//! Replayed events for one endpoint.
//!
//! The endpoint's filter applies, its maximum event age does not. Events delivered earlier are delivered again:
//! deduplication is per replay. Arrays are aggregated into digests as usual.
//!
//! Replays are rare: only an endpoint to which something is replayed reads them.

use std::sync::{Arc, Weak};

use chrono::DateTime;
use event_filter::TypeSet;
use mesh_events::catalogue::MESH_REPLAY;

use crate::clock;
use crate::delivery::endpoint_worker::EndpointWorker;
use crate::delivery::handlers;
use crate::error::Error;
use crate::store::Delivery;
use crate::stream::event::StreamEvent;
use crate::stream::queue::EventQueue;
use crate::stream::subscription::Subscription;

/// Delivers the replayed events that there are.
pub async fn consume(worker: &Arc<EndpointWorker>) {
    // What a replay publishes to the endpoint is selected by its filter alone.
    let all = Subscription::new(
        Arc::clone(&worker.endpoint.filter),
        TypeSet::default(),
        DateTime::UNIX_EPOCH,
    );
    let queue = EventQueue::new(
        &worker.endpoint.name,
        MESH_REPLAY,
        0,
        all,
        0,
        Weak::<EndpointWorker>::new(),
    );
    while let Err(error) = worker.load_replays(&queue).await {
        let waits = worker.wait_after(&error, "read cursor of replays");
        if worker.stop.run_until_cancelled(waits).await.is_none() {
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
    let completes = endpoint.format.is_chat() && worker.companions.contains(kind);
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
