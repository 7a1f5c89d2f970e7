//! Grouped writes have the same effect as if each had been committed separately, in order.

use std::collections::BTreeSet;
use std::pin::Pin;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::join_all;
use futures_util::poll;
use mesh_db::Location;
use mesh_testkit::Postgres;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use tempfile::TempDir;
use webhook_dispatcher::error::Error;
use webhook_dispatcher::store::outbox::Key;
use webhook_dispatcher::store::redeliveries::{RedeliverRequest, RedeliveryJob};
use webhook_dispatcher::store::{Attempt, Delivery, State, Store};

use crate::harness::{Kind, on_both};

on_both!(
    writes_about_one_delivery_in_one_batch_keep_their_order,
    in_one_batch_only_what_shows_the_lease_is_written,
    hundreds_in_one_batch_are_stored_once_each,
    of_many_attempts_the_newest_are_kept,
    what_arrives_at_once_has_its_attempt_in_its_row,
    dead_letters_are_begun_again_in_their_order,
    an_outcome_that_was_begun_again_is_not_taken_for_announced,
);

/// A store without a dispatcher, with the leases of two endpoints.
pub struct Tables {
    pub store: Store,
    pub epoch: i64,
    location: String,
    folder: TempDir,
}

/// Blocks the writer, so that writes requested in the meantime form one batch.
enum Obstacle {
    File(SqliteConnection),
    Server(PgConnection),
}

impl Obstacle {
    async fn remove(self) {
        match self {
            Self::File(connection) => connection.close().await.unwrap(),
            Self::Server(connection) => connection.close().await.unwrap(),
        }
    }
}

impl Tables {
    pub async fn new(kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let location = match kind {
            Kind::Sqlite => "sqlite:tables.db".to_owned(),
            Kind::Postgres => Postgres::shared().await.create_database(),
        };
        let parsed = Location::parse(&location, folder.path()).unwrap();
        let store = Store::open(&parsed).await.unwrap();
        let (names, spec) = (["one", "two"], "{}");
        let files = names.iter().map(|name| (*name, spec));
        store.note_files(files, start()).await.unwrap();
        let wanted = names.map(|name| (name.to_owned(), 0)).into();
        let leases = store.take("me", &wanted).await.unwrap();
        let epoch = leases["one"];
        assert_eq!(leases["two"], epoch);
        Self {
            store,
            epoch,
            location,
            folder,
        }
    }

    async fn obstacle(&self) -> Obstacle {
        if self.location.starts_with("sqlite:") {
            let file = self.folder.path().join("tables.db");
            let options = SqliteConnectOptions::new().filename(file);
            let mut connection = options.connect().await.unwrap();
            let lock = sqlx::query("BEGIN IMMEDIATE");
            lock.execute(&mut connection).await.unwrap();
            Obstacle::File(connection)
        } else {
            let options: PgConnectOptions = self.location.parse().unwrap();
            let mut connection = options.connect().await.unwrap();
            let lock = sqlx::raw_sql("BEGIN; LOCK TABLE leases IN ACCESS EXCLUSIVE MODE");
            lock.execute(&mut connection).await.unwrap();
            Obstacle::Server(connection)
        }
    }

    /// Executes a statement on a separate connection.
    pub async fn run(&self, sql: &str) {
        if self.location.starts_with("sqlite:") {
            let file = self.folder.path().join("tables.db");
            let options = SqliteConnectOptions::new().filename(file);
            let mut connection = options.connect().await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
                .execute(&mut connection)
                .await
                .unwrap();
        } else {
            let options: PgConnectOptions = self.location.parse().unwrap();
            let mut connection = options.connect().await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
                .execute(&mut connection)
                .await
                .unwrap();
        }
    }

    /// Saves these deliveries with their epochs, in order, in one transaction.
    async fn save_together(&self, deliveries: Vec<(i64, Delivery)>) -> Vec<Result<(), Error>> {
        let obstacle = self.obstacle().await;
        let first = delivery("two", "first", 1, State::Delivered);
        let mut first: Pin<Box<_>> = Box::pin(self.store.save(self.epoch, first));
        assert!(poll!(first.as_mut()).is_pending());
        // The writer has taken the first write once it waits for the lock. Later ones go into the next transaction.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let mut saving = Vec::new();
        for (epoch, delivery) in deliveries {
            let mut save = Box::pin(self.store.save(epoch, delivery));
            assert!(poll!(save.as_mut()).is_pending());
            saving.push(save);
        }
        obstacle.remove().await;
        first.await.unwrap();
        join_all(saving).await
    }

    async fn saved(&self, id: &str) -> Delivery {
        self.store.load("one", id).await.unwrap().unwrap()
    }

    async fn numbers(&self, id: &str) -> Vec<u32> {
        let attempts = self.store.attempts("one", id).await.unwrap();
        attempts.iter().map(|attempt| attempt.n).collect()
    }
}

pub fn start() -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000, 0).unwrap()
}

/// A delivery after this many attempts.
pub fn delivery(endpoint: &str, id: &str, attempts: u32, state: State) -> Delivery {
    let now = start() + TimeDelta::seconds(attempts.into());
    let failed = state != State::Delivered;
    let next_at = (state == State::Waiting).then(|| now + TimeDelta::seconds(1));
    Delivery {
        state,
        attempts,
        next_at,
        status: if failed { 503 } else { 204 },
        error: if failed {
            format!("\0 {attempts}")
        } else {
            String::new()
        },
        updated_at: now,
        attempt: Some(Attempt {
            n: attempts,
            at: now,
            status: 503,
            latency_ms: 7,
            cause: None,
            error: String::new(),
            snippet: format!("answer {attempts}"),
            next_at,
        }),
        ..Delivery::message(endpoint, id.to_owned(), vec![0, 255, 7], start())
    }
}

async fn writes_about_one_delivery_in_one_batch_keep_their_order(kind: Kind) {
    let tables = Tables::new(kind).await;
    let of = |id: &str, attempts, state| (tables.epoch, delivery("one", id, attempts, state));
    let batch = vec![
        of("a", 1, State::Waiting),
        of("b", 1, State::Delivered),
        of("a", 2, State::Waiting),
        of("c", 1, State::Waiting),
        of("a", 3, State::Dead),
        // A final state is not overwritten.
        of("b", 2, State::Waiting),
    ];
    for result in tables.save_together(batch).await {
        result.unwrap();
    }
    let a = tables.saved("a").await;
    assert_eq!((a.state, a.attempts), (State::Dead, 3));
    assert_eq!(a.error, "\u{fffd} 3", "no zero byte, as on PostgreSQL");
    assert_eq!(a.body, [0, 255, 7].as_slice(), "may be delivered again");
    assert_eq!(tables.numbers("a").await, [1, 2, 3]);
    let b = tables.saved("b").await;
    assert_eq!((b.state, b.attempts, b.status), (State::Delivered, 1, 204));
    assert!(b.body.is_empty(), "not needed any more");
    let c = tables.saved("c").await;
    assert_eq!(
        (c.state, c.next_at),
        (State::Waiting, Some(start() + TimeDelta::seconds(2)))
    );
    tables.store.close().await;
}

async fn in_one_batch_only_what_shows_the_lease_is_written(kind: Kind) {
    let tables = Tables::new(kind).await;
    let stale = tables.epoch - 1;
    let batch = vec![
        (tables.epoch, delivery("one", "a", 1, State::Waiting)),
        (stale, delivery("one", "a", 2, State::Delivered)),
        (stale, delivery("one", "b", 1, State::Delivered)),
        (tables.epoch, delivery("two", "c", 1, State::Delivered)),
        (tables.epoch, delivery("three", "d", 1, State::Delivered)),
    ];
    let results = tables.save_together(batch).await;
    let ours: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(ours, [true, false, false, true, false]);
    for result in results {
        assert!(matches!(result, Ok(()) | Err(Error::NotOurs(_))));
    }
    let a = tables.saved("a").await;
    assert_eq!((a.state, a.attempts), (State::Waiting, 1));
    assert_eq!(tables.numbers("a").await, [1]);
    let known = [
        ("one", "a"),
        ("one", "b"),
        ("two", "c"),
        ("three", "d"),
        ("two", "a"),
    ];
    let asked = known.map(|(endpoint, id)| tables.store.knows(endpoint, id));
    let known: Vec<bool> = join_all(asked)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(known, [true, false, true, false, false]);
    tables.store.close().await;
}

async fn hundreds_in_one_batch_are_stored_once_each(kind: Kind) {
    const COUNT: usize = 333;
    let tables = Tables::new(kind).await;
    let ids: Vec<String> = (0..COUNT).map(|n| format!("event-{n}")).collect();
    // Twice, as after a transaction whose commit is uncertain.
    for _ in 0..2 {
        let batch = ids
            .iter()
            .map(|id| (tables.epoch, delivery("one", id, 1, State::Delivered)));
        for result in tables.save_together(batch.collect()).await {
            result.unwrap();
        }
    }
    let asked = ids.iter().map(|id| tables.store.knows("one", id));
    for known in join_all(asked).await {
        assert!(known.unwrap());
    }
    for id in &ids {
        assert_eq!(tables.numbers(id).await, [1], "{id}");
    }
    let outcomes = || tables.store.outbox(vec!["one".to_owned()], 1_000);
    let outbox = outcomes().await.unwrap();
    assert_eq!(outbox.len(), COUNT);
    let (sent, left) = outbox.split_at(200);
    tables
        .store
        .mark_published(sent.iter().map(Key::of).collect())
        .await
        .unwrap();
    let keys = |outcomes: &[Delivery]| outcomes.iter().map(Key::of).collect::<BTreeSet<_>>();
    assert_eq!(keys(&outcomes().await.unwrap()), keys(left));
    tables.store.close().await;
}

async fn of_many_attempts_the_newest_are_kept(kind: Kind) {
    let tables = Tables::new(kind).await;
    let batch = (1..=60).map(|n| (tables.epoch, delivery("one", "a", n, State::Waiting)));
    for result in tables.save_together(batch.collect()).await {
        result.unwrap();
    }
    assert_eq!(tables.numbers("a").await, (11..=60).collect::<Vec<u32>>());
    assert_eq!(tables.saved("a").await.attempts, 60);
    tables.store.close().await;
}

async fn what_arrives_at_once_has_its_attempt_in_its_row(kind: Kind) {
    let tables = Tables::new(kind).await;
    let of = |id: &str, attempts, state| (tables.epoch, delivery("one", id, attempts, state));
    let batch = vec![
        of("at once", 1, State::Delivered),
        of("later", 1, State::Waiting),
        of("later", 2, State::Delivered),
        of("never", 1, State::Dead),
    ];
    for result in tables.save_together(batch).await {
        result.unwrap();
    }
    let attempts = tables.store.attempts("one", "at once").await.unwrap();
    let [attempt] = attempts.as_slice() else {
        panic!("{attempts:?}")
    };
    assert_eq!((attempt.n, attempt.status, attempt.latency_ms), (1, 204, 7));
    assert_eq!(attempt.at, start() + TimeDelta::seconds(1));
    assert_eq!(
        (attempt.snippet.as_str(), attempt.next_at),
        ("answer 1", None)
    );
    assert_eq!((attempt.cause, attempt.error.as_str()), (None, ""));
    assert_eq!(tables.numbers("later").await, [1, 2]);
    assert_eq!(tables.numbers("never").await, [1]);
    assert!(tables.numbers("unknown").await.is_empty());
    tables.run("DELETE FROM attempts").await;
    assert_eq!(tables.numbers("at once").await, [1], "is in its row");
    assert!(tables.numbers("later").await.is_empty());
    tables.store.close().await;
}

/// Deliveries of the same time keep the order of their publication, whatever their ids are.
async fn dead_letters_are_begun_again_in_their_order(kind: Kind) {
    let tables = Tables::new(kind).await;
    let ids = ["e", "a", "d", "b", "c"];
    for (n, id) in (0_u32..).zip(ids) {
        let dead = Delivery {
            created_at: start() + TimeDelta::seconds(i64::from(n) / 2),
            stream_sequence: n.into(),
            ..delivery("one", id, 1, State::Dead)
        };
        tables.store.save(tables.epoch, dead).await.unwrap();
    }
    let mut job = job();
    let mut seen = Vec::new();
    loop {
        let next = tables.store.dead_after(&job, 2).await.unwrap();
        let Some((last, _)) = next.last() else {
            break;
        };
        job.cursor = last.cursor();
        seen.extend(next.into_iter().map(|(place, _)| place.event_id));
    }
    assert_eq!(seen, ids);
    job.filter.ids = vec!["d".to_owned(), "e".to_owned()];
    job.cursor = String::new();
    let named = tables.store.dead_after(&job, 10).await.unwrap();
    let named: Vec<_> = named.iter().map(|(place, _)| &place.event_id).collect();
    assert_eq!(named, ["e", "d"]);
    tables.store.close().await;
}

fn job() -> RedeliveryJob {
    RedeliveryJob {
        id: "again".to_owned(),
        webhook: "one".to_owned(),
        filter: RedeliverRequest::default(),
        state: "running".to_owned(),
        queued: 0,
        by: "alice".to_owned(),
        created_at: start() + TimeDelta::days(1),
        updated_at: start(),
        cursor: String::new(),
    }
}

/// Two dispatchers publish the same outcome while an endpoint changes owner, and one of them is late.
async fn an_outcome_that_was_begun_again_is_not_taken_for_announced(kind: Kind) {
    let tables = Tables::new(kind).await;
    let (store, epoch) = (&tables.store, tables.epoch);
    let outbox = async || store.outbox(vec!["one".to_owned()], 10).await.unwrap();
    let dead = delivery("one", "a", 1, State::Dead);
    store.save(epoch, dead).await.unwrap();
    let sent = outbox().await;
    assert_eq!((sent.len(), sent[0].round), (1, 0));
    assert_eq!(sent[0].body[..], [0, 255, 7], "its letter has the event");
    let keys = || sent.iter().map(Key::of).collect();
    store.mark_published(keys()).await.unwrap();
    assert!(outbox().await.is_empty());
    let job = job();
    let dead = tables.saved("a").await;
    let begun = store.begin_again(epoch, &job, vec![dead.place()], true, start());
    assert_eq!(begun.await.unwrap(), 1);
    store.mark_published(keys()).await.unwrap();
    let mut delivered = Delivery {
        round: 1,
        ..delivery("one", "a", 1, State::Delivered)
    };
    delivered.attempt.as_mut().unwrap().at += TimeDelta::seconds(1);
    store.save(epoch, delivered).await.unwrap();
    assert_eq!(tables.numbers("a").await, [1, 2], "of both rounds");
    let again = outbox().await;
    assert_eq!((again.len(), again[0].round), (1, 1));
    assert_eq!(again[0].state, State::Delivered);
    store.close().await;
}
