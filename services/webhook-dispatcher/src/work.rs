//! What is done for an endpoint as long as its lease is here: deliver, or only queue, or remove what is left of it.

use std::sync::Arc;
use std::time::Duration;

use mesh_bus::EndpointConsumer;
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS};
use mesh_events::subject;
use tokio_util::sync::CancellationToken;

use crate::domain::names;
use crate::endpoint_worker::{EndpointWorker, WorkerContext};
use crate::error::Error;
use crate::handlers::EventHandler;
use crate::lease::Lease;
use crate::{clock, metrics, redeliver, replays};

/// Between retries after an error of NATS or the database.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// So many messages are taken in at a time where many become one write: those of arrays.
const AT_ONCE: usize = 128;
/// Between looks whether everything about a removed endpoint was announced.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Delivers until told to stop, then finishes what is under way.
pub async fn deliver(worker: Arc<EndpointWorker>, stop: CancellationToken) {
    tokio::join!(
        Arc::clone(&worker).retry(stop.clone()),
        consume(Arc::clone(&worker), stop.clone()),
        consume_replays(Arc::clone(&worker), stop.clone()),
        redeliver::run(Arc::clone(&worker), stop.clone())
    );
    // Who is at work on it next says how it is.
    metrics::circuit(&worker.endpoint.name, false);
}

/// Lets events queue on the bus until told to stop.
pub async fn queue(worker: Arc<EndpointWorker>, stop: CancellationToken) {
    declare(&worker, &stop).await;
    stop.cancelled().await;
}

/// Takes away what is left of an endpoint: its consumer with what is in it, what waits (which ends as dead letters), and what was kept.
pub async fn remove(shared: Arc<WorkerContext>, lease: Lease, stop: CancellationToken) {
    while let Err(error) = try_remove(&shared, &lease, &stop).await {
        tracing::warn!(
            error = mesh_runtime::error_chain(&error),
            endpoint = lease.endpoint,
            "remove endpoint, trying again"
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
            "endpoint is removed, what waited for it is kept as dead letters"
        );
        shared.outcomes.notify_one();
    }
    if shared.bus.ready(stop).await.is_err() {
        return Ok(());
    }
    let consumer = names::consumer(name);
    if shared.bus.endpoint_consumers().await?.contains(&consumer) {
        shared.bus.delete_endpoint_consumer(&consumer).await?;
    }
    while !store.outbox(vec![name.clone()], 1).await?.is_empty() {
        if !pause(POLL_INTERVAL, stop).await {
            return Ok(());
        }
    }
    if store.erase(name, lease.epoch, stop).await? {
        tracing::info!(endpoint = name, "endpoint removed");
    }
    Ok(())
}

/// Makes the endpoint's consumer, and consumes.
async fn consume(worker: Arc<EndpointWorker>, stop: CancellationToken) {
    if !declare(&worker, &stop).await {
        return;
    }
    let name = names::consumer(&worker.endpoint.name);
    take_in(worker, SLURM_EVENTS, &name, &stop).await;
}

/// Handles what comes from a consumer of the endpoint until told to stop.
async fn take_in(
    worker: Arc<EndpointWorker>,
    stream: &str,
    consumer: &str,
    stop: &CancellationToken,
) {
    let (bus, endpoint) = (worker.shared.bus.clone(), worker.endpoint.name.clone());
    let (concurrency, makes_digests) = (worker.endpoint.concurrency, worker.makes_digests());
    let intake = EventHandler::new(worker, stop.clone());
    let consumed = if makes_digests {
        bus.consume_batches(stream, consumer, AT_ONCE, intake, stop)
            .await
    } else {
        bus.consume(stream, consumer, concurrency, intake, stop)
            .await
    };
    if let Err(error) = consumed {
        tracing::error!(
            error = mesh_runtime::error_chain(&error),
            endpoint,
            stream,
            "consume"
        );
    }
}

/// Makes the endpoint's consumer of replays once there are any, and consumes. It begins with whatever is there, as what was asked for before
/// counts, too.
async fn consume_replays(worker: Arc<EndpointWorker>, stop: CancellationToken) {
    let bus = worker.shared.bus.clone();
    if !replays::heard(&worker, &stop).await || bus.ready(&stop).await.is_err() {
        return;
    }
    let endpoint = worker.endpoint.name.clone();
    let consumer = EndpointConsumer {
        filters: vec![subject::replays_for(&endpoint)],
        ..consumer(&worker)
    };
    while let Err(error) = bus.replay_consumer(&consumer).await {
        tracing::warn!(
            error = mesh_runtime::error_chain(&error),
            endpoint,
            "declare consumer of replays, trying again"
        );
        if !pause(RETRY_INTERVAL, &stop).await {
            return;
        }
    }
    // On the heap: most endpoints never come here.
    Box::pin(take_in(worker, MESH_REPLAY, &consumer.name, &stop)).await;
}

fn consumer(worker: &EndpointWorker) -> EndpointConsumer {
    let endpoint = &worker.endpoint;
    let at_once = if worker.makes_digests() {
        AT_ONCE
    } else {
        // As many again as are handled wait at hand, so that the next is there when one is done.
        2 * endpoint.concurrency
    };
    EndpointConsumer {
        name: names::consumer(&endpoint.name),
        endpoint: endpoint.name.clone(),
        owner: endpoint.owner.clone(),
        filters: worker.subjects(),
        max_ack_pending: i64::try_from(at_once).unwrap_or(i64::MAX),
        // A message may wait for the requests before it, then for its own. Of many at once those in hand are told of to NATS, and one that comes
        // again meanwhile is known.
        ack_wait: (endpoint.timeout * 3).max(Duration::from_secs(30)),
        created_at: worker.created_at,
    }
}

/// Makes the endpoint's consumer, once NATS is there. False when told to stop before.
async fn declare(worker: &EndpointWorker, stop: &CancellationToken) -> bool {
    let (bus, endpoint) = (&worker.shared.bus, &worker.endpoint);
    if bus.ready(stop).await.is_err() {
        return false;
    }
    let consumer = consumer(worker);
    while let Err(error) = bus.endpoint_consumer(&consumer).await {
        tracing::warn!(
            error = mesh_runtime::error_chain(&error),
            endpoint = endpoint.name,
            "declare consumer, trying again"
        );
        if !pause(RETRY_INTERVAL, stop).await {
            return false;
        }
    }
    worker.declared.cancel();
    true
}

/// Waits; false when told to stop.
pub async fn pause(time: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}
