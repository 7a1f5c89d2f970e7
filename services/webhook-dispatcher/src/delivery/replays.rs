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

use crate::delivery::EndpointWorker;
use crate::delivery::handlers;
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
