//! What a dispatcher of an earlier version left in its database is there for this one: deliveries, their attempts, and work that was begun.

use mesh_db::Location;
use mesh_testkit::Postgres;
use sqlx::migrate::Migrator;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use webhook_dispatcher::adapters::store::{State, Store};

use crate::harness::{Kind, on_both};

on_both!(deliveries_from_before_their_key_began_with_the_event_are_kept);

/// The tables as they were, with what was in them.
const BEFORE: &str = "
INSERT INTO endpoints (name, id, source, owner, spec, state, since, revision, created_at, updated_at)
    VALUES ('one', 'id', 'file', '', '{}', 'active', 0, 1, 0, 0);
INSERT INTO leases (endpoint, holder, epoch, since) VALUES ('one', '', 7, 0);
INSERT INTO deliveries (endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at, subject,
    stream_sequence, trace, announced, began_at)
VALUES ('one', 'arrived', 'job.started', 'delivered', 1, NULL, 204, '', 1000, 1100, 's', 1, '', 1, 1000),
    ('one', 'waits', 'job.started', 'waiting', 1, 5000, 503, 'busy', 1000, 1100, 's', 2, '', 0, 1000),
    ('one', 'dead', 'job.started', 'dead', 2, NULL, 400, 'no', 1000, 1100, 's', 3, '', 1, 1000),
    ('one', 'untold', 'job.started', 'dead', 1, NULL, 400, 'no', 1000, 1100, 's', 4, '', 0, 1000);
INSERT INTO attempts (endpoint, event_id, n, at, status, latency_ms, error, snippet)
VALUES ('one', 'arrived', 1, 1000, 204, 5, '', 'thanks'), ('one', 'waits', 1, 1000, 503, 5, 'busy', ''),
    ('one', 'dead', 1, 1000, 503, 5, 'busy', ''), ('one', 'dead', 2, 1050, 400, 5, 'no', '');
INSERT INTO redeliveries (id, endpoint, filter, cursor, state, by, created_at, updated_at)
VALUES ('job', 'one', '{\"all\":true}', 'arrived', 'running', 'alice', 2000, 2000);
";

/// The first migrations, as a folder.
async fn first(kind: &str, count: usize) -> Migrator {
    let folder = tempfile::tempdir().unwrap();
    let all = format!("{}/migrations/{kind}", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = std::fs::read_dir(all)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    for file in &files[..count] {
        std::fs::copy(file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    Migrator::new(folder.path()).await.unwrap()
}

async fn deliveries_from_before_their_key_began_with_the_event_are_kept(kind: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let location = match kind {
        Kind::Sqlite => {
            let options = SqliteConnectOptions::new()
                .filename(folder.path().join("old.db"))
                .create_if_missing(true);
            let pool = SqlitePoolOptions::new();
            let pool = pool.connect_with(options).await.unwrap();
            first("sqlite", 5).await.run(&pool).await.unwrap();
            sqlx::raw_sql(BEFORE).execute(&pool).await.unwrap();
            pool.close().await;
            "sqlite:old.db".to_owned()
        }
        Kind::Postgres => {
            let url = Postgres::shared().await.create_database();
            let pool = PgPoolOptions::new().connect(&url).await.unwrap();
            first("postgres", 4).await.run(&pool).await.unwrap();
            sqlx::raw_sql(BEFORE).execute(&pool).await.unwrap();
            pool.close().await;
            url
        }
    };
    let location = Location::parse(&location, folder.path()).unwrap();
    let store = Store::open(&location).await.unwrap();

    let states = [
        ("arrived", State::Delivered, 1),
        ("waits", State::Waiting, 1),
        ("dead", State::Dead, 2),
        ("untold", State::Dead, 0),
    ];
    for (id, state, attempts) in states {
        assert!(store.knows("one", id).await.unwrap(), "{id}");
        let delivery = store.load("one", id).await.unwrap().unwrap();
        assert_eq!(delivery.state, state, "{id}");
        let kept = store.attempts("one", id).await.unwrap();
        assert_eq!(kept.len(), attempts, "{id}");
    }
    let arrived = &store.attempts("one", "arrived").await.unwrap()[0];
    assert_eq!((arrived.status, arrived.snippet.as_str()), (204, "thanks"));
    let outbox = store.outbox(vec!["one".to_owned()], 10).await.unwrap();
    let untold: Vec<_> = outbox.iter().map(|outcome| &outcome.event_id).collect();
    assert_eq!(untold, ["untold"]);
    let job = store.next_redelivery("one").await.unwrap().unwrap();
    let dead = store.dead_after(&job, 10).await.unwrap();
    let dead: Vec<_> = dead
        .iter()
        .map(|(place, announced)| (place.event_id.as_str(), *announced))
        .collect();
    // Where an earlier version stood is not known any more; what it began again is no dead letter.
    assert_eq!(dead, [("dead", true), ("untold", false)]);
    store.close().await;
}
