//! A ledger of the first version, which did not note when an entry was recorded, is brought to this one.

use ledger::verify_database;
use mesh_events::EventType;
use mesh_testkit::build;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use crate::support::{Database, fact};

#[tokio::test(flavor = "multi_thread")]
async fn a_sqlite_ledger_of_the_first_version_is_brought_to_this_one() {
    let new = Database::sqlite();
    let store = new.store().await;
    let facts = (1..=3).map(|id| fact(&build::job_event(EventType::JobStarted, build::job(id))));
    store.append("S", 3, facts.collect()).await.unwrap();
    store.close().await;

    // The tables as they were, with the same entries.
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
    let event = build::job_event(EventType::JobStarted, build::job(4));
    store.append("S", 4, vec![fact(&event)]).await.unwrap();
    let verified = verify_database(&old.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, 4);
}
