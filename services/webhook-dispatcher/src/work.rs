//! The tasks of a leased endpoint: deliver, queue only, or remove it.

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

/// Wait between retries after an error of NATS or the database.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Messages per batch for endpoints that count array events in one write.
const AT_ONCE: usize = 128;
/// Interval between checks that all outcomes of a removed endpoint are published.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Delivers until stopped, then finishes the requests in flight.
pub async fn deliver(worker: Arc<EndpointWorker>, stop: CancellationToken) {
    tokio::join!(
        Arc::clone(&worker).retry(stop.clone()),
        consume(Arc::clone(&worker), stop.clone()),
        consume_replays(Arc::clone(&worker), stop.clone()),
        redeliver::run(Arc::clone(&worker), stop.clone())
    );
    // The next owner reports the circuit's state.
    metrics::circuit(&worker.endpoint.name, false);
}

/// Lets events queue on the bus until stopped.
pub async fn queue(worker: Arc<EndpointWorker>, stop: CancellationToken) {
    declare(&worker, &stop).await;
    stop.cancelled().await;
}

/// Removes an endpoint: its consumer with all messages, its waiting deliveries (which become dead letters), and its
/// stored state.
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

/// Creates the endpoint's consumer and consumes it.
async fn consume(worker: Arc<EndpointWorker>, stop: CancellationToken) {
    if !declare(&worker, &stop).await {
        return;
    }
    let name = names::consumer(&worker.endpoint.name);
    take_in(worker, SLURM_EVENTS, &name, &stop).await;
}

/// Handles messages from one of the endpoint's consumers until stopped.
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

/// Creates the endpoint's replay consumer once there are replays, and consumes it. The consumer starts at the
/// beginning of the stream, so that replays requested earlier are included.
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
    // Boxed: most endpoints never have replays.
    Box::pin(take_in(worker, MESH_REPLAY, &consumer.name, &stop)).await;
}

fn consumer(worker: &EndpointWorker) -> EndpointConsumer {
    let endpoint = &worker.endpoint;
    let at_once = if worker.makes_digests() {
        AT_ONCE
    } else {
        // Twice the concurrency, so that the next message is available as soon as one is done.
        2 * endpoint.concurrency
    };
    EndpointConsumer {
        name: names::consumer(&endpoint.name),
        endpoint: endpoint.name.clone(),
        owner: endpoint.owner.clone(),
        filters: worker.subjects(),
        max_ack_pending: i64::try_from(at_once).unwrap_or(i64::MAX),
        // A message may wait for those before it, then for its own requests. Batched messages extend their deadline
        // with progress acks, and duplicates are recognised.
        ack_wait: (endpoint.timeout * 3).max(Duration::from_secs(30)),
        created_at: worker.created_at,
    }
}

/// Creates the endpoint's consumer once NATS is available. Returns false if stopped before.
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

/// Sleeps. Returns false if stopped before.
pub async fn pause(time: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}
