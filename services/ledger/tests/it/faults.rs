//! PostgreSQL is killed, its disk fills up, two ledgers share it. Nothing may be lost or
//! duplicated, and the sequence has no gaps.

use std::collections::HashSet;

use ledger::verify_database;
use mesh_bus::Bus;
use mesh_events::EventType;
use mesh_testkit::{NatsServer, Postgres, SmallDisk, fixtures};
use tokio_util::sync::CancellationToken;

use crate::support::{Database, Process, bus};

/// Publishes two events per job and returns their ids.
async fn publish(bus: &Bus, jobs: std::ops::RangeInclusive<u32>) -> HashSet<String> {
    let events: Vec<_> = jobs
        .flat_map(|id| {
            [EventType::JobSubmitted, EventType::JobStarted]
                .map(|kind| fixtures::job_event(kind, fixtures::job(id)))
        })
        .collect();
    let ids = events.iter().map(|event| event.id.clone()).collect();
    let shutdown = CancellationToken::new();
    for batch in events.chunks(100) {
        bus.publish_all(batch.to_vec(), &shutdown).await.unwrap();
    }
    ids
}

/// Checks that the database holds exactly the published events, in a sequence without gaps, and
/// verifies.
async fn holds(database: &Database, ids: &HashSet<String>) {
    let mut reader = database.outsider().await;
    let seqs = reader.numbers("SELECT seq FROM entries ORDER BY seq").await;
    assert!(
        seqs.into_iter().eq(1..=ids.len() as i64),
        "the sequence is dense"
    );
    let stored_ids = reader.texts("SELECT id FROM entries").await;
    assert_eq!(&HashSet::from_iter(stored_ids), ids, "the same set");
    let verified = verify_database(&database.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, ids.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_ledgers_on_one_database_while_one_ledger_and_the_database_are_killed() {
    let nats = NatsServer::start().await;
    let mut server = Postgres::start().await;
    let database = Database::of(&server);
    let mut one = Process::start(&nats, &database).await;
    let two = Process::start(&nats, &database).await;
    let bus = bus(&nats, "admin").await;
    let appends = async |process: &Process| {
        let metrics = process.get("/metrics").await.unwrap_or_default();
        metrics.contains("ledger_entries_total{stream=\"SLURM_EVENTS\"}")
    };
    let mut ids = HashSet::new();
    let mut last = 0;
    while !(appends(&one).await && appends(&two).await) {
        assert!(last < 50_000, "only one takes part");
        ids.extend(publish(&bus, last + 1..=last + 50).await);
        last += 50;
    }

    // Each in the middle of a load.
    let load = tokio::spawn({
        let bus = bus.clone();
        async move { publish(&bus, last + 1..=last + 600).await }
    });
    let before = ids.len() as u64;
    two.until("it goes on", async |two| {
        two.head().await > Some(before + 50)
    })
    .await;
    one.kill();
    server.kill();
    two.until("it says so", async |two| two.get("/readyz").await.is_none())
        .await;
    server.restart().await;
    one.restart();
    ids.extend(load.await.unwrap());
    ids.extend(publish(&bus, last + 601..=last + 700).await);
    for process in [&one, &two] {
        // Each ledger also sees what the other appended.
        process
            .until("all of it, and ready", async |process| {
                process.head().await == Some(ids.len() as u64)
                    && process.get("/readyz").await.is_some()
            })
            .await;
    }
    holds(&database, &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_starts_before_its_database_and_continues_once_available() {
    let nats = NatsServer::start().await;
    let mut server = Postgres::start().await;
    let database = Database::of(&server);
    server.kill();
    let process = Process::spawn(&nats, &database.url, "");
    process
        .until("it says why", async |process| {
            process.log().contains("database unavailable")
        })
        .await;
    assert!(process.get("/readyz").await.is_none());
    let bus = bus(&nats, "admin").await;
    let ids = publish(&bus, 1..=20).await;
    server.restart().await;
    process
        .until("all of it, and ready", async |process| {
            process.head().await == Some(40) && process.get("/readyz").await.is_some()
        })
        .await;
    holds(&database, &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_recovers_after_the_disk_of_postgresql_was_full() {
    let disk = SmallDisk::mount("160m");
    let nats = NatsServer::start().await;
    let mut server = Postgres::start_at(disk.path()).await;
    let database = Database::of(&server);
    let process = Process::start(&nats, &database).await;
    let bus = bus(&nats, "admin").await;
    let mut ids = publish(&bus, 1..=50).await;
    process
        .until("100 entries", async |process| {
            process.head().await == Some(100)
        })
        .await;
    disk.fill();
    // More data than the allocated pages can hold.
    ids.extend(publish(&bus, 51..=5000).await);
    process
        .until("not ready", async |process| {
            process.get("/readyz").await.is_none()
        })
        .await;
    disk.empty();
    // PostgreSQL stops if it has no space for its log, and must be started again.
    server.restart().await;
    process
        .until("all of it, and ready", async |process| {
            process.head().await == Some(10_000) && process.get("/readyz").await.is_some()
        })
        .await;
    holds(&database, &ids).await;
}
