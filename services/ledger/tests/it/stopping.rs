//! On a stop signal, a ledger ends in time whatever it is doing, and its next start continues where
//! it was.

use std::collections::BTreeSet;
use std::time::Duration;

use ledger::Store;
use mesh_events::EventType;
use mesh_testkit::{NatsServer, Postgres, fixtures};
use reqwest::StatusCode;
use serde_json::json;

use crate::index_backfill::{empty, fill, present};
use crate::retention::interrupted::of_long_ago;
use crate::support::{Database, Process, bus, of_user, on_both, record};

on_both!(
    stopped_while_it_fills_columns_it_resumes,
    stopped_while_it_archives_it_resumes,
    stopped_while_it_replays_and_exports_it_resumes,
);

async fn stopped_while_it_fills_columns_it_resumes(database: Database) {
    let entries = fill(&database).await;
    empty(&database, "TRUE").await;
    let nats = NatsServer::start().await;
    let mut process = Process::spawn(&nats, &database.url, "");
    process
        .until("some are filled", async |process| {
            let answer = process.request("/readyz").send().await;
            // The API does not query a database during the backfill.
            match answer {
                Ok(answer) => {
                    let text = answer.text().await.unwrap_or_default();
                    text.contains("indexed") && !text.contains(" 0 indexed")
                }
                Err(_) => false,
            }
        })
        .await;
    process.stop().await;
    let (before, _) = present(&database).await;
    assert!(before > 0 && before < entries, "{before}");
    process.restart();
    process
        .until("ready", async |process| {
            process.get("/readyz").await.is_some()
        })
        .await;
    assert_eq!(present(&database).await, (entries, 1));
}

async fn stopped_while_it_archives_it_resumes(database: Database) {
    const ENTRIES: u32 = 6000;
    let nats = NatsServer::start().await;
    append(&database, ENTRIES).await;
    let mut process = Process::start(&nats, &database).await;
    process
        .until("a checkpoint of all", async |process| {
            let newest = process.json("/v1/ledger/checkpoints?limit=1000").await;
            let newest = newest.unwrap_or_default();
            let sizes = newest["checkpoints"].as_array().cloned();
            let sizes = sizes.unwrap_or_default();
            sizes.iter().any(|one| one["size"] == ENTRIES)
        })
        .await;
    process.stop().await;
    of_long_ago(&database).await;
    let folder = database.folder.path().join("archive");
    let policy = format!("[ledger.retention]\nmax_age = \"30days\"\narchive_dir = {folder:?}");
    process.configure(&policy);
    process.restart();
    process
        .until("it has begun to archive", async |_| {
            let files = std::fs::read_dir(&folder);
            files.is_ok_and(|files| files.count() > 0)
        })
        .await;
    process.stop().await;
    process.restart();
    process
        .until("all of it is archived", async |_| {
            let mut outsider = database.outsider().await;
            let left = format!("SELECT COUNT(*) FROM payloads WHERE seq <= {ENTRIES}");
            outsider.numbers(&left).await == [0]
        })
        .await;
    let location = database.location();
    process
        .until("the audit has it", async |_| {
            let verified = ledger::verify_database(&location, |_| ()).await;
            verified.is_ok_and(|found| found.unaudited == 0)
        })
        .await;
    let verified = ledger::verify_database(&location, |_| ()).await.unwrap();
    assert_eq!(verified.archived, u64::from(ENTRIES));
}

async fn stopped_while_it_replays_and_exports_it_resumes(database: Database) {
    const ENTRIES: u32 = 3000;
    append(&database, ENTRIES).await;
    let nats = NatsServer::start().await;
    let mut process = Process::start(&nats, &database).await;
    let begun = process.post("/v1/replays", &json!({"rate": 600})).await;
    let path = format!(
        "/v1/replays/{}",
        begun.unwrap()["id"].as_str().expect("a replay")
    );
    let sent = async |process: &Process| {
        let replay = process.json(&path).await.unwrap_or_default();
        replay["sent"].as_u64().unwrap_or_default()
    };
    for part in [1, 600] {
        process
            .until("it replays", async |process| sent(process).await >= part)
            .await;
        // A client stops reading: the rest of the export never arrives, and the connection does not
        // end properly.
        let mut export = process.request("/v1/events/export").send().await.unwrap();
        assert_eq!(export.status(), StatusCode::OK);
        let mut received = export.chunk().await.unwrap().unwrap().len();
        process.stop().await;
        let end = loop {
            match export.chunk().await {
                Ok(Some(bytes)) => received += bytes.len(),
                end => break end,
            }
        };
        assert!(end.is_err(), "{received} bytes are not the whole: {end:?}");
        process.restart();
    }
    process
        .until("it is done", async |process| {
            process.json(&path).await.unwrap_or_default()["state"] == "done"
        })
        .await;
    assert_eq!(sent(&process).await, u64::from(ENTRIES));
    let found = crate::replay::messages(&nats, "MESH_REPLAY", "").await;
    let ids: BTreeSet<&str> = found.iter().map(|found| found.header("ce-id")).collect();
    assert_eq!(ids.len(), ENTRIES as usize);
}

/// Clients that do not read a stream or an export, and a database server that does not respond.
#[tokio::test(flavor = "multi_thread")]
async fn neither_slow_readers_nor_a_database_that_hangs_hold_up_a_stop() {
    let postgres = Postgres::start().await;
    let nats = NatsServer::start().await;
    let mut process = Process::spawn(&nats, &postgres.create_database(), "");
    let bus = bus(&nats, "ingest").await;
    let publish = async |id| {
        let event = of_user("alice", EventType::JobSubmitted, fixtures::job(id));
        bus.publish(&event).await.unwrap();
    };
    for id in 1..=200 {
        publish(id).await;
    }
    process
        .until("all are there", async |process| {
            process.head().await.is_some_and(|head| head >= 200)
        })
        .await;
    let mut readers = Vec::new();
    for path in ["/v1/events/stream?after=0", "/v1/events/export"] {
        let reader = process.request(path).send().await.unwrap();
        assert_eq!(reader.status(), StatusCode::OK, "{path}");
        readers.push(reader);
    }
    let paused = postgres.pause();
    publish(201).await;
    let asked = tokio::spawn(process.request("/v1/events?limit=1000").send());
    // Requests to the database now wait for it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    process.stop().await;
    drop((paused, readers));
    let answer = asked.await.unwrap();
    assert!(!answer.is_ok_and(|answer| answer.status().is_success()));
    process.restart();
    process
        .until("it goes on", async |process| {
            process.head().await.is_some_and(|head| head >= 201)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_hangs_does_not_hold_up_a_stop_during_the_start() {
    // Less than the time limit of a connection.
    const DEADLINE: Duration = Duration::from_secs(4);
    let postgres = Postgres::start().await;
    let nats = NatsServer::start().await;
    let url = postgres.create_database();
    let paused = postgres.pause();
    let deadline = "drain_deadline = \"4s\"\n";
    let mut process = Process::spawn_with(&nats, &url, deadline, "");
    let pid = process.pid();
    process
        .until("it handles SIGTERM", async |_| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            let caught = status.ok().and_then(|status| {
                let line = status
                    .lines()
                    .find_map(|line| line.strip_prefix("SigCgt:"))?;
                u64::from_str_radix(line.trim(), 16).ok()
            });
            caught.is_some_and(|caught| caught & 1 << (15 - 1) != 0)
        })
        .await;
    process.stop_within(DEADLINE).await;
    drop(paused);
}

/// Appends `count` entries with some content.
async fn append(database: &Database, count: u32) {
    let store: Store = database.store().await;
    let records: Vec<_> = (1..=count)
        .map(|id| {
            let mut job = fixtures::job(id);
            job.comment = "x".repeat(500);
            {
                let mut event = of_user("alice", EventType::JobSubmitted, job);
                event.observed_at = Some(mesh_events::timestamp(
                    chrono::DateTime::from_timestamp(1_763_760_000, 0).unwrap(),
                ));
                record(&event)
            }
        })
        .collect();
    for batch in records.chunks(500) {
        store.append("S", 1, batch.to_vec()).await.unwrap();
    }
    store.close().await;
}
