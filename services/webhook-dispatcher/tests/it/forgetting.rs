//! Retention and the removal of endpoints delete rows in batches, and writes of deliveries run in between.

use chrono::Utc;
use mesh_testkit::wait_until;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use webhook_dispatcher::store::State;
use webhook_dispatcher::store::endpoint_rows::EndpointRows;
use webhook_dispatcher::store::endpoint_stats::Counts;
use webhook_dispatcher::store::endpoints::Activity;

use crate::harness::{DEADLINE, Kind, on_both};
use crate::writer::{Tables, delivery, start};

on_both!(
    a_hundred_thousand_old_outcomes_are_forgotten_while_deliveries_go_on,
    what_a_removed_endpoint_leaves_is_ended_and_erased_while_deliveries_go_on,
);

const COUNT: u64 = 100_000;

/// Inserts deliveries with one attempt each, dated 1970.
async fn fill(tables: &Tables, state: State) {
    let (state, next_at) = match state {
        State::Waiting => ("waiting", "n"),
        _ => ("delivered", "NULL"),
    };
    let sql = format!(
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {COUNT})
         INSERT INTO deliveries (endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at, subject,
             stream_sequence, trace, announced)
         SELECT 'one', 'old-' || n, 'job.started', '{state}', 1, {next_at}, 503, '', n, n, '', n, '', 1 FROM numbers;
         INSERT INTO attempts (endpoint, event_id, n, at, status, latency_ms, error, snippet)
         SELECT endpoint, event_id, 1, created_at, 503, 7, '', '' FROM deliveries"
    );
    tables.run(&sql).await;
}

async fn assert_no_attempts_are_left(tables: &Tables) {
    let left = tables.store.attempts("one", "old-1").await.unwrap();
    assert!(left.is_empty());
}

async fn counts(tables: &Tables) -> Counts {
    let endpoints = vec!["one".to_owned()];
    let mut standings = tables.store.standings(endpoints).await.unwrap();
    standings.remove("one").unwrap_or_default().counts
}

/// Waits until some rows are deleted, and stores one before the last is.
async fn store_in_between(tables: &Tables, work: &JoinHandle<()>, left: impl Fn(&Counts) -> u64) {
    wait_until("some of them are gone", DEADLINE, async || {
        left(&counts(tables).await) < COUNT
    })
    .await;
    let now = delivery("two", "in between", 1, State::Delivered);
    tables.store.save(tables.epoch, now).await.unwrap();
    assert!(left(&counts(tables).await) > 0, "a piece at a time");
    assert!(!work.is_finished());
}

async fn a_hundred_thousand_old_outcomes_are_forgotten_while_deliveries_go_on(kind: Kind) {
    let tables = Tables::new(kind).await;
    fill(&tables, State::Delivered).await;
    let mut waits = delivery("one", "waits", 1, State::Waiting);
    waits.updated_at = start();
    tables.store.save(tables.epoch, waits).await.unwrap();
    let store = tables.store.clone();
    let work = tokio::spawn(async move {
        let stop = CancellationToken::new();
        let forgotten = store.forget(Utc::now(), &stop).await.unwrap();
        assert_eq!(forgotten, COUNT);
    });
    store_in_between(&tables, &work, |counts| counts.delivered).await;
    work.await.unwrap();
    let counts = counts(&tables).await;
    assert_eq!((counts.delivered, counts.waiting), (0, 1));
    assert_no_attempts_are_left(&tables).await;
    assert!(tables.store.knows("two", "in between").await.unwrap());
    tables.store.close().await;
}

async fn what_a_removed_endpoint_leaves_is_ended_and_erased_while_deliveries_go_on(kind: Kind) {
    let tables = Tables::new(kind).await;
    fill(&tables, State::Waiting).await;
    let (store, epoch, stop) = (&tables.store, tables.epoch, CancellationToken::new());
    assert!(!store.erase("one", epoch, &stop).await.unwrap());
    assert_eq!(counts(&tables).await.waiting, COUNT, "it is not removed");
    let removed = store.set_activity("one", Activity::Removed, "", start(), None, &[]);
    assert!(removed.await.unwrap());
    assert!(!store.erase("one", epoch - 1, &stop).await.unwrap());
    assert_eq!(counts(&tables).await.waiting, COUNT, "it is another's");

    let (store, disable) = (tables.store.clone(), stop.clone());
    let work = tokio::spawn(async move {
        let rows = EndpointRows {
            store: &store,
            endpoint: "one",
            epoch,
        };
        let ended = rows.end(start(), &disable).await.unwrap();
        assert_eq!(ended, COUNT);
    });
    store_in_between(&tables, &work, |counts| counts.waiting).await;
    work.await.unwrap();
    assert_eq!(counts(&tables).await.dead, COUNT);

    let (store, disable) = (tables.store.clone(), stop.clone());
    let work = tokio::spawn(async move {
        assert!(store.erase("one", epoch, &disable).await.unwrap());
    });
    store_in_between(&tables, &work, |counts| counts.dead).await;
    work.await.unwrap();
    assert_eq!(counts(&tables).await, Counts::default());
    assert_no_attempts_are_left(&tables).await;
    assert!(tables.store.endpoint("one").await.unwrap().is_none());
    assert!(tables.store.knows("two", "in between").await.unwrap());
    tables.store.close().await;
}
