//! Replays after a crash, and what is left of them.

use std::collections::BTreeSet;
use std::time::Duration;

use ledger::replayer::Replayer;
use mesh_events::EventType;
use mesh_testkit::fixtures::{self, CLUSTER};
use mesh_testkit::{NatsServer, wait_until};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Ledger, messages};
use crate::support::{DEADLINE, Database, Process, admin, bus, of_user, on_both, record};

on_both!(
    after_a_kill_it_resumes_and_publishes_each_event_once,
    old_replay_messages_are_purged,
    a_lease_of_the_far_future_holds_nothing,
);

async fn after_a_kill_it_resumes_and_publishes_each_event_once(database: Database) {
    // At this rate seconds are left after each condition.
    const EVENTS: u32 = 3000;
    let events: Vec<_> = (1..=EVENTS)
        .map(|id| fixtures::job_event(EventType::JobStarted, fixtures::job(id)))
        .collect();
    let store = database.store().await;
    for batch in events.chunks(500) {
        let records = batch.iter().map(record).collect();
        store.append("SLURM_EVENTS", 1, records).await.unwrap();
    }
    store.close().await;
    let mut nats = NatsServer::start().await;
    let mut process = Process::start(&nats, &database).await;
    let begun = process.post("/v1/replays", &json!({"rate": 200})).await;
    let begun = begun.unwrap();
    let path = format!("/v1/replays/{}", begun["id"].as_str().expect("a replay"));
    let sent = async |process: &Process| -> u64 {
        let replay = process.json(&path).await.unwrap_or_default();
        replay["sent"].as_u64().unwrap_or_default()
    };
    process
        .until("it goes on", async |process| sent(process).await >= 100)
        .await;
    process.kill();
    process.restart();
    process
        .until("it goes on after the kill", async |process| {
            sent(process).await >= 400
        })
        .await;
    nats.kill();
    process
        .until("it says what it waits for", async |process| {
            let replay = process.json(&path).await.unwrap_or_default();
            replay["problem"].is_string() && replay["state"] == "running"
        })
        .await;
    nats.restart().await;
    process
        .until("it is done", async |process| {
            process.json(&path).await.unwrap_or_default()["state"] == "done"
        })
        .await;
    let replay = process.json(&path).await.unwrap();
    assert_eq!(replay["problem"], Value::Null);
    assert_eq!(replay["sent"], u64::from(EVENTS));

    let sent = messages(&nats, "MESH_REPLAY", "").await;
    let ids: BTreeSet<&str> = sent.iter().map(|sent| sent.header("ce-id")).collect();
    let expected: BTreeSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids, expected, "nothing is missing");
    assert_eq!(sent.len(), events.len(), "and nothing is there twice");
}

async fn old_replay_messages_are_purged(database: Database) {
    let ledger = Ledger::start_with(database, Duration::from_secs(3600)).await;
    let event = of_user("alice", EventType::JobStarted, fixtures::job(1));
    ledger.append(&[event]).await;
    let root = ledger.as_seen_by(admin()).await;
    let [old, new] = [root.done(json!({})).await, root.done(json!({})).await];
    let count = async |replay: &Value| {
        let id = replay["id"].as_str().unwrap();
        messages(&ledger.nats, "MESH_REPLAY", id).await.len()
    };
    assert_eq!((count(&old).await, count(&new).await), (1, 1));
    let mut outsider = ledger.database.outsider().await;
    outsider
        .execute(&format!(
            "UPDATE replays SET ended_at = ended_at - 7200000000 WHERE id = '{}'",
            old["id"].as_str().unwrap()
        ))
        .await;
    // Another replica, or the next start.
    let bus = bus(&ledger.nats, "ledger").await;
    let hour = Duration::from_secs(3600);
    let next = Replayer::new(ledger.store.clone(), bus, CLUSTER, hour);
    let stop = CancellationToken::new();
    let working = tokio::spawn(next.run(stop.clone()));
    wait_until("the old one is gone", DEADLINE, async || {
        count(&old).await == 0
    })
    .await;
    assert_eq!(count(&new).await, 1);
    stop.cancel();
    working.await.unwrap();
}

/// The process that had it was killed, and its clock was ahead.
async fn a_lease_of_the_far_future_holds_nothing(database: Database) {
    let ledger = Ledger::start(database).await;
    let root = ledger.as_seen_by(admin()).await;
    root.done(json!({})).await;
    let mut outsider = ledger.database.outsider().await;
    let ended = "SELECT COUNT(*) FROM replays WHERE audited = 2";
    wait_until("its end is audited", DEADLINE, async || {
        outsider.numbers(ended).await == [1]
    })
    .await;
    let held = "UPDATE replays SET audited = 1, lease_until = 4070908800000000";
    outsider.execute(held).await;
    wait_until("another process takes it", DEADLINE, async || {
        outsider.numbers(ended).await == [1]
    })
    .await;
}
