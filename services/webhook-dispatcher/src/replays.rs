//! Replayed events for one endpoint.
//!
//! The endpoint's filter applies, its maximum event age does not. Events delivered earlier are delivered again:
//! deduplication is per replay. Arrays are aggregated into digests as usual.
//!
//! Replays are rare, and an idle replay consumer costs NATS as much as one for events. So an endpoint gets one only
//! when there is a replay for it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;

use crate::adapters::store::Delivery;
use crate::clock;
use crate::endpoint_worker::{EndpointWorker, WorkerContext};
use crate::error::Error;
use crate::handlers::DecodedMessage;
use crate::work::pause;

/// Wait between retries after an error of NATS.
const RETRY: Duration = Duration::from_secs(1);

/// Watches for endpoints that have replays, until shutdown.
pub async fn listen(shared: Arc<WorkerContext>, shutdown: CancellationToken) {
    while shared.bus.ready(&shutdown).await.is_ok() {
        tokio::select! {
            heard = hear(&shared) => if let Err(error) = heard {
                tracing::warn!(error = mesh_runtime::error_chain(&error), "listen for replays, trying again");
            },
            () = shutdown.cancelled() => return,
        }
        if !pause(RETRY, &shutdown).await {
            return;
        }
    }
}

async fn hear(shared: &WorkerContext) -> Result<(), mesh_bus::Error> {
    let mut endpoints = pin!(shared.bus.follow_replayed_endpoints().await?);
    while let Some(endpoint) = endpoints.next().await {
        shared
            .replayed
            .send_if_modified(|known| known.insert(endpoint));
    }
    Ok(())
}

/// Waits until there is a replay for the endpoint. Returns false if stopped before.
pub async fn heard(worker: &EndpointWorker, stop: &CancellationToken) -> bool {
    let mut replayed = worker.shared.replayed.subscribe();
    let heard = replayed.wait_for(|endpoints| endpoints.contains(&worker.endpoint.name));
    tokio::select! {
        heard = heard => heard.is_ok(),
        () = stop.cancelled() => false,
    }
}

/// Delivers a replayed event, stored under this id.
///
/// # Errors
/// If the database read or write fails, or the lease is lost. The event is redelivered.
pub async fn take(
    worker: &EndpointWorker,
    read: &DecodedMessage<'_>,
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
    let delivery = Delivery::of(&endpoint.name, id, event, read.message, clock::now());
    worker.deliver(delivery, None).await
}
