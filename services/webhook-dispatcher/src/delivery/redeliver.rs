//! Runs redelivery jobs: dead letters are put back into the queue in batches. Each batch stores the job's progress.

use std::time::Duration;

use mesh_bus::Backoff;

use crate::clock;
use crate::delivery::EndpointWorker;
use crate::error::Error;
use crate::repeat::RETRY_INTERVAL;
use crate::store::delivery_position::DeliveryPosition;
use crate::store::redeliveries::RedeliveryJob;

/// Default deliveries per second, and maximum deliveries per batch.
const DEFAULT_RATE: u32 = 100;

/// Runs pending jobs until none is left, or it is stopped.
pub async fn run(worker: &EndpointWorker) {
    let stop = &worker.stop;
    while !stop.is_cancelled() {
        match piece(worker).await {
            Ok(Some(rest)) => {
                Backoff::fixed(rest).wait(stop).await;
            }
            Ok(None) => return,
            Err(error) => {
                let waits = worker.wait_after(&error, "redelivery of dead letters");
                stop.run_until_cancelled(waits).await;
            }
        }
    }
}

/// Processes the next batch. Returns the time until the following one, or `None` if no job is left.
async fn piece(worker: &EndpointWorker) -> Result<Option<Duration>, Error> {
    let store = &worker.shared.store;
    let Some(job) = store.next_redelivery(&worker.endpoint.name).await? else {
        return Ok(None);
    };
    if worker.may_send().is_err() {
        return Ok(Some(RETRY_INTERVAL));
    }
    let max = rate(&job).min(DEFAULT_RATE);
    let dead = store.dead_after(&job, max).await?;
    let more = dead.len() == max as usize;
    let (count, left) = (dead.len(), dead.into_iter());
    // Wait for outcomes that are not published yet: putting them back would lose them.
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
        "dead letters queued for redelivery"
    );
    worker.wake();
    Ok(Some(if done {
        Duration::ZERO
    } else {
        Duration::from_secs(1).mul_f64(f64::from(max) / f64::from(rate(&job)))
    }))
}

fn rate(job: &RedeliveryJob) -> u32 {
    job.filter.rate.unwrap_or(DEFAULT_RATE).max(1)
}
