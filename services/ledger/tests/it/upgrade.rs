//! Ledgers of earlier versions are migrated: of the first version, which did not store the time of
//! recording, and of the version before the table of nodes.

use ledger::verify_database;
use mesh_events::EventType;
use mesh_testkit::fixtures;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use crate::support::{Database, admin, node_event, on_both, record, serve};

on_both!(a_ledger_without_nodes_is_filled_in);

#[tokio::test(flavor = "multi_thread")]
async fn a_sqlite_ledger_of_the_first_version_is_brought_to_this_one() {
    let new = Database::sqlite();
    let store = new.store().await;
    let records = (1..=3).map(|id| {
        record(&fixtures::job_event(
            EventType::JobStarted,
            fixtures::job(id),
        ))
    });
    store.append("S", 3, records.collect()).await.unwrap();
    store.close().await;

    // The old tables with the same entries.
    let old = Database::sqlite();
    let first = tempfile::tempdir().unwrap();
    let migrations = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite");
    let name = "0001_ledger.sql";
    std::fs::copy(format!("{migrations}/{name}"), first.path().join(name)).unwrap();
    let options = SqliteConnectOptions::new()
        .filename(old.folder.path().join("ledger.db"))
        .create_if_missing(true);
    let pool = SqlitePoolOptions::new()
        .connect_with(options)
        .await
        .unwrap();
    let migrator = Migrator::new(first.path()).await.unwrap();
    migrator.run(&pool).await.unwrap();
    pool.close().await;
    let mut outsider = old.outsider().await;
    let columns = "seq, cluster, category, type, job_id, run, user_name, account, partition, occurred_at, observed_at";
    for statement in [
        format!(
            "ATTACH '{}' AS new",
            new.folder.path().join("ledger.db").display()
        ),
        "INSERT INTO entries SELECT * FROM new.entries".to_owned(),
        "INSERT INTO payloads SELECT seq, cluster, subject, body FROM new.payloads".to_owned(),
        format!("INSERT INTO event_index ({columns}) SELECT {columns} FROM new.event_index"),
        "UPDATE head SET (seq, chain) = (SELECT seq, chain FROM new.head)".to_owned(),
    ] {
        outsider.execute(&statement).await;
    }

    let store = old.store().await;
    let verified = verify_database(&old.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, 3);
    let times = "SELECT count(*) FROM payloads p JOIN event_index i ON i.seq = p.seq AND i.recorded_at = p.recorded_at
                 WHERE p.recorded_at = i.observed_at AND p.recorded_at > 0";
    assert_eq!(outsider.numbers(times).await, [3]);
    for refused in [
        "UPDATE payloads SET recorded_at = 1",
        "UPDATE event_index SET recorded_at = 1",
    ] {
        assert!(outsider.try_execute(refused).await.is_err(), "{refused}");
    }
    let event = fixtures::job_event(EventType::JobStarted, fixtures::job(4));
    store.append("S", 4, vec![record(&event)]).await.unwrap();
    let verified = verify_database(&old.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, 4);
}

async fn a_ledger_without_nodes_is_filled_in(database: Database) {
    let store = database.store().await;
    let started = |id: u32| {
        let mut job = fixtures::job(id);
        job.nodes = format!("n[{id}-5000]");
        record(&fixtures::job_event(EventType::JobStarted, job))
    };
    // More entries than one backfill step fills.
    for first in [1, 501, 1001] {
        let records = (first..first + 500).map(started).collect();
        store.append("S", 1, records).await.unwrap();
    }
    let last = vec![record(&node_event("n7", 1))];
    store.append("S", 1, last).await.unwrap();
    store.close().await;
    let mut outsider = database.outsider().await;
    let nodes = "SELECT seq FROM event_nodes ORDER BY seq, block";
    let before = outsider.numbers(nodes).await;
    for statement in [
        "DROP TABLE event_nodes",
        // Objects of a later migration on PostgreSQL.
        "DROP INDEX IF EXISTS payloads_other_recorded_at",
        "DROP INDEX event_index_category",
        "CREATE INDEX event_index_category ON event_index (category, seq)",
        "CREATE INDEX event_index_run ON event_index (run, seq) WHERE run IS NOT NULL",
        "CREATE INDEX event_index_cluster ON event_index (cluster, seq) WHERE seq > 0",
        "CREATE INDEX event_index_time ON event_index (occurred_at, seq)",
        "CREATE INDEX event_index_subject ON event_index (subject, seq) WHERE subject IS NOT NULL",
        "CREATE INDEX event_index_email ON event_index (email, seq) WHERE email IS NOT NULL",
        "ALTER TABLE archives DROP COLUMN note",
        "ALTER TABLE archives DROP COLUMN ids",
        "DELETE FROM _sqlx_migrations WHERE version >= 14",
    ] {
        outsider.execute(statement).await;
    }
    let location = database.location();
    let error = verify_database(&location, |_| ()).await.unwrap_err();
    assert!(error.to_string().contains("earlier version"), "{error}");

    let store = database.store().await;
    assert_eq!(outsider.numbers(nodes).await, before);
    let verified = verify_database(&location, |_| ()).await.unwrap();
    assert_eq!(verified.count, 1501);
    mesh_runtime::install_crypto_provider();
    let url = serve(&store, admin(), 1000, 100).await;
    let page = reqwest::get(format!("{url}/v1/events?node=n7&limit=1000")).await;
    let page: serde_json::Value = page.unwrap().json().await.unwrap();
    let entries = page["entries"].as_array().unwrap();
    let seqs: Vec<i64> = entries
        .iter()
        .map(|entry| entry["seq"].as_i64().unwrap())
        .collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6, 7, 1501]);
    for refused in ["UPDATE event_nodes SET seq = 1", "DELETE FROM event_nodes"] {
        assert!(outsider.try_execute(refused).await.is_err(), "{refused}");
    }
}
