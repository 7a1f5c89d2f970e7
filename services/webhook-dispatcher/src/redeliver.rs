//! Dead letters are delivered again, as somebody asked for: a piece at a time, and how far it is is on disk with each.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use tokio_util::sync::CancellationToken;

use crate::adapters::redeliveries::Job;
use crate::domain::place::Place;
use crate::error::Error;
use crate::lane::Lane;
use crate::work::pause;

/// Deliveries begun at a time, where nobody asked for fewer.
const RATE: u32 = 100;
/// After trouble, and while the bus was not told of what comes next.
const PAUSE: Duration = Duration::from_secs(1);

/// At work until told to stop: on what is there, and then whenever the lane is told that there is more.
pub async fn run(lane: Arc<Lane>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match piece(&lane).await {
            Ok(Some(rest)) => {
                pause(rest, &stop).await;
            }
            Ok(None) => tokio::select! {
                () = lane.asked_again.notified() => {}
                () = stop.cancelled() => {}
            },
            Err(error) => {
                tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    endpoint = lane.endpoint.name,
                    "deliver dead letters again, trying again"
                );
                pause(PAUSE, &stop).await;
            }
        }
    }
}

/// Begins the next few again; returns how long to wait then, or `None` if nothing is left to do.
async fn piece(lane: &Lane) -> Result<Option<Duration>, Error> {
    let store = &lane.shared.store;
    let Some(job) = store.next_redelivery(&lane.endpoint.name).await? else {
        return Ok(None);
    };
    if lane.may_send().is_err() {
        return Ok(Some(PAUSE));
    }
    let most = rate(&job).min(RATE);
    let dead = store.dead_after(&job, most).await?;
    let more = dead.len() == most as usize;
    let (count, left) = (dead.len(), dead.into_iter());
    // What was not announced yet would never be, so it is waited for.
    let places: Vec<Place> = left
        .take_while(|(_, announced)| *announced)
        .map(|(place, _)| place)
        .collect();
    let blocked = places.len() < count;
    if blocked && places.is_empty() {
        return Ok(Some(PAUSE));
    }
    let done = !more && !blocked;
    let begun = store
        .begin_again(lane.lease.epoch, &job, places, done, Utc::now())
        .await?;
    tracing::info!(
        endpoint = lane.endpoint.name,
        redelivery = job.id,
        begun,
        done,
        "dead letters are delivered again"
    );
    lane.wake();
    Ok(Some(if done {
        Duration::ZERO
    } else {
        Duration::from_secs(1).mul_f64(f64::from(most) / f64::from(rate(&job)))
    }))
}

fn rate(job: &Job) -> u32 {
    job.filter.rate.unwrap_or(RATE).max(1)
}
