//! Deletes old outcomes once an hour, by the database's clock. A run is skipped if the clock was set since the
//! previous one: rows may seem older than they are, and deleting them allows duplicates. So a process deletes nothing
//! in its first hour either.
//!
//! A clock that is wrong for longer than two runs is trusted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::Backoff;
use tokio_util::sync::CancellationToken;

use crate::clock::steady::keeps_pace;
use crate::delivery::worker_context::WorkerContext;
use crate::error::Error;
use crate::store::Store;

/// Interval between runs.
const INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Deletes old outcomes until shutdown.
pub async fn run(shared: Arc<WorkerContext>, remember: Duration, shutdown: CancellationToken) {
    let mut before = None;
    loop {
        match forget_once(&shared.store, remember, &mut before, &shutdown).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "old deliveries deleted"),
            Err(error) => {
                tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    "old deliveries not deleted"
                )
            }
        }
        if !Backoff::fixed(INTERVAL).wait(&shutdown).await {
            return;
        }
    }
}

async fn forget_once(
    store: &Store,
    remember: Duration,
    before: &mut Option<(DateTime<Utc>, Instant)>,
    stop: &CancellationToken,
) -> Result<u64, Error> {
    let reading = (store.clock().await?, Instant::now());
    let is_trusted = before.is_some_and(|before| keeps_pace(before, reading));
    *before = Some(reading);
    if !is_trusted {
        return Ok(0);
    }
    let now = reading.0;
    store.correct_future(now, stop).await?;
    let age = TimeDelta::from_std(remember).unwrap_or(TimeDelta::days(14));
    store.forget(now - age, stop).await
}

#[cfg(test)]
mod tests {
    use mesh_db::Location;

    use super::*;
    use crate::store::outbox::Key;
    use crate::store::{Delivery, State};

    #[tokio::test]
    async fn a_clock_that_was_set_forgets_nothing() {
        const RETENTION: Duration = Duration::from_secs(60 * 60);
        let folder = tempfile::tempdir().unwrap();
        let location = Location::parse("sqlite:retention.db", folder.path()).unwrap();
        let store = Store::open(&location).await.unwrap();
        let spec = "{}";
        let now = store.clock().await.unwrap();
        store
            .note_files([("one", spec)].into_iter(), now)
            .await
            .unwrap();
        let wanted = [("one".to_owned(), 0)].into();
        let epoch = store.take("me", &wanted).await.unwrap()["one"];
        let (old, ahead) = (now - TimeDelta::days(1), now + TimeDelta::days(20));
        for (id, time) in [("old", old), ("ahead", ahead)] {
            let delivery = Delivery {
                state: State::Delivered,
                ..Delivery::message("one", id.to_owned(), Vec::new(), time)
            };
            store.save(epoch, delivery).await.unwrap();
        }
        let outcomes = store.outbox(vec!["one".to_owned()], 10).await.unwrap();
        let keys = outcomes.iter().map(Key::of).collect();
        store.mark_published(keys).await.unwrap();
        let stop = CancellationToken::new();
        let forget = async |before| {
            let mut before = before;
            forget_once(&store, RETENTION, &mut before, &stop)
                .await
                .unwrap()
        };
        assert_eq!(forget(None).await, 0, "nothing to compare with");
        let set = [now - TimeDelta::days(20), now + TimeDelta::days(20)];
        for before in set {
            assert_eq!(forget(Some((before, Instant::now()))).await, 0, "{before}");
        }
        assert!(store.knows("one", "old").await.unwrap());
        assert_eq!(forget(Some((now, Instant::now()))).await, 1);
        assert!(!store.knows("one", "old").await.unwrap());
        // The outcome has reached its maximum age.
        let later = now + TimeDelta::hours(1);
        assert_eq!(store.forget(later, &stop).await.unwrap(), 1);
        store.close().await;
    }
}
