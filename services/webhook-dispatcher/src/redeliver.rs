//! Dead letters are delivered again, as somebody asked for: a piece at a time, and how far it is is on disk with each.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::adapters::redeliveries::RedeliveryJob;
use crate::clock;
use crate::domain::delivery_position::DeliveryPosition;
use crate::endpoint_worker::EndpointWorker;
use crate::error::Error;
use crate::work::pause;

/// Deliveries begun at a time, where nobody asked for fewer.
const DEFAULT_RATE: u32 = 100;
/// Between retries after an error.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// At work until told to stop: on what is there, and then whenever the lane is told that there is more.
pub async fn run(worker: Arc<EndpointWorker>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match piece(&worker).await {
            Ok(Some(rest)) => {
                pause(rest, &stop).await;
            }
            Ok(None) => tokio::select! {
                () = worker.asked_again.notified() => {}
                () = stop.cancelled() => {}
            },
            Err(error) => {
                tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    endpoint = worker.endpoint.name,
                    "deliver dead letters again, trying again"
                );
                pause(RETRY_INTERVAL, &stop).await;
            }
        }
    }
}

/// Begins the next few again; returns how long to wait then, or `None` if nothing is left to do.
async fn piece(worker: &EndpointWorker) -> Result<Option<Duration>, Error> {
    let store = &worker.shared.store;
    let Some(job) = store.next_redelivery(&worker.endpoint.name).await? else {
        return Ok(None);
    };
    if worker.may_send().is_err() {
        return Ok(Some(RETRY_INTERVAL));
    }
    let most = rate(&job).min(DEFAULT_RATE);
    let dead = store.dead_after(&job, most).await?;
    let more = dead.len() == most as usize;
    let (count, left) = (dead.len(), dead.into_iter());
    // What was not announced yet would never be, so it is waited for.
    let places: Vec<DeliveryPosition> = left
        .take_while(|(_, mark_published)| *mark_published)
        .map(|(place, _)| place)
        .collect();
    let blocked = places.len() < count;
    if blocked && places.is_empty() {
        return Ok(Some(RETRY_INTERVAL));
    }
    let done = !more && !blocked;
    let begun = store
        .begin_again(worker.lease.epoch, &job, places, done, clock::now())
        .await?;
    tracing::info!(
        endpoint = worker.endpoint.name,
        redelivery = job.id,
        begun,
        done,
        "dead letters are delivered again"
    );
    worker.wake();
    Ok(Some(if done {
        Duration::ZERO
    } else {
        Duration::from_secs(1).mul_f64(f64::from(most) / f64::from(rate(&job)))
    }))
}

fn rate(job: &RedeliveryJob) -> u32 {
    job.filter.rate.unwrap_or(DEFAULT_RATE).max(1)
}
