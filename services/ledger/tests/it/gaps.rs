//! Messages lost from a stream before the ledger received them are detected and reported. Messages
//! that are still there are recovered.

use std::collections::{BTreeSet, HashSet};

use ledger::verify_database;
use mesh_bus::Bus;
use mesh_events::catalogue::{MESH_AUDIT, SLURM_EVENTS};
use mesh_events::{Event, EventType, subject};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{self, CLUSTER};
use prost::Message as _;

use crate::support::{Database, Process, audit_entry, bus, on_both};

on_both!(
    purged_messages_are_reported_and_recovered,
    a_restored_ledger_stores_entries_it_had_acknowledged_before,
    a_recreated_stream_is_a_gap_of_unknown_size,
    a_ledger_whose_consumer_receives_nothing_stores_every_event_and_reports_it,
);

fn events(jobs: std::ops::RangeInclusive<u32>) -> Vec<Event> {
    jobs.map(|id| fixtures::job_event(EventType::JobSubmitted, fixtures::job(id)))
        .collect()
}

async fn publish(bus: &Bus, events: &[Event]) {
    for event in events {
        bus.publish(event).await.unwrap();
    }
}

async fn stream(nats: &NatsServer, name: &str) -> async_nats::jetstream::stream::Stream {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    context.get_stream(name).await.unwrap()
}

async fn stored_ids(database: &Database) -> HashSet<String> {
    let mut outsider = database.outsider().await;
    let ids = outsider.texts("SELECT id FROM entries").await;
    HashSet::from_iter(ids)
}

/// Returns the ledger's events about gaps: type and content.
async fn reported(process: &Process) -> Vec<(String, String, String)> {
    let page = process.json("/v1/events?category=capture").await;
    let page = page.unwrap_or_default();
    let entries = page["entries"].as_array().cloned().unwrap_or_default();
    entries
        .iter()
        .map(|entry| {
            let data = &entry["event"]["data"];
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            (
                text(&data["type"]),
                text(&data["capture"]["message"]),
                text(&data["id"]),
            )
        })
        .collect()
}

async fn until_reported(process: &Process, kind: &str, part: &str) -> String {
    process
        .until(&format!("{kind}: {part}"), async |process| {
            let found = reported(process).await;
            found.iter().any(|(k, m, _)| k == kind && m.contains(part))
        })
        .await;
    let found = reported(process).await;
    let found = found
        .into_iter()
        .find(|(k, m, _)| k == kind && m.contains(part));
    found.unwrap().2
}

async fn purged_messages_are_reported_and_recovered(database: Database) {
    let nats = NatsServer::start().await;
    let mut process = Process::start(&nats, &database).await;
    let bus = bus(&nats, "admin").await;
    let all = events(1..=60);
    publish(&bus, &all[..20]).await;
    process
        .until("20 entries", async |process| {
            process.head().await == Some(20)
        })
        .await;
    process.kill();
    // Messages 21 to 40 expire, and one in the middle of the rest is deleted. The same for audit
    // entries.
    publish(&bus, &all[20..]).await;
    for n in 1..=3 {
        let entry = audit_entry(n);
        let subject = subject::audit(&entry.cluster, &entry.kind);
        bus.publish_raw(subject, &entry.id, entry.encode_to_vec())
            .await
            .unwrap();
    }
    let public = stream(&nats, SLURM_EVENTS).await;
    public.purge().sequence(41).await.unwrap();
    public.delete_message(50).await.unwrap();
    stream(&nats, MESH_AUDIT).await.purge().await.unwrap();
    process.restart();

    let gap = until_reported(&process, "capture.gap_opened", "20 messages (21 to 40)").await;
    until_reported(&process, "capture.gap_opened", "1 messages (50 to 50)").await;
    until_reported(
        &process,
        "capture.gap_opened",
        "3 messages (1 to 3) of the stream MESH_AUDIT",
    )
    .await;
    until_reported(
        &process,
        "capture.gap_closed",
        "3 messages (1 to 3) of the stream MESH_AUDIT",
    )
    .await;
    let metrics = process.get("/metrics").await.unwrap();
    assert!(
        metrics.contains("ledger_gaps_total{stream=\"SLURM_EVENTS\"} 2"),
        "{metrics}"
    );
    process
        .until("these two are open", async |process| {
            let metrics = process.get("/metrics").await.unwrap_or_default();
            metrics.contains("ledger_gaps_open 2")
                && metrics.contains("ledger_gaps_open_messages 21")
        })
        .await;
    // The ledger is ready and reports the open gaps.
    let metrics = process.get("/metrics").await.unwrap();
    assert!(!metrics.contains("ledger_gaps_open_since_seconds 0"));
    let ready = process.json("/readyz").await.unwrap();
    assert_eq!(ready["ready"], true, "{ready}");
    let note = ready["notes"]["ledger.gaps"].as_str().unwrap();
    for part in ["20 messages (21 to 40)", "ingest", CLUSTER, "and 1 more"] {
        assert!(note.contains(part), "{note}");
    }
    let ids: BTreeSet<String> = all.iter().map(|event| event.id.clone()).collect();
    assert_eq!(
        stored_ids(&database)
            .await
            .iter()
            .filter(|id| ids.contains(*id))
            .count(),
        39
    );

    // JetStream rejects the ids as duplicates within its window; events published again are stored.
    let lost = all[25].clone();
    assert!(bus.publish(&lost).await.unwrap().duplicate);
    for event in &all {
        assert!(!bus.republish(event, &gap).await.unwrap().duplicate);
    }
    process
        .until("all of them", async |_| {
            let ids_in_ledger = stored_ids(&database).await;
            ids.iter().all(|id| ids_in_ledger.contains(id))
        })
        .await;
    // Everything is stored and reported once, even after another start.
    process.restart();
    process
        .until("ready", async |process| {
            process.get("/readyz").await.is_some()
        })
        .await;
    publish(&bus, &events(61..=61)).await;
    process
        .until("it goes on", async |_| {
            stored_ids(&database).await.len() == 61 + 4
        })
        .await;
    let found = reported(&process).await;
    assert_eq!(found.len(), 4, "{found:?}");
    // The closing events, with the ids that ingest gives them.
    let store = database.store().await;
    for gap in store.gaps(0).await.unwrap() {
        if gap.is_recoverable() {
            bus.publish(&gap.given_up(CLUSTER)).await.unwrap();
        }
    }
    store.close().await;
    process
        .until("nothing is open", async |process| {
            let ready = process.json("/readyz").await.unwrap_or_default();
            // That MESH_AUDIT was purged stays a note for an hour.
            let notes = ready["notes"].as_object();
            notes.is_some_and(|notes| !notes.contains_key("ledger.gaps"))
        })
        .await;
    let metrics = process.get("/metrics").await.unwrap();
    assert!(metrics.contains("ledger_gaps_open_since_seconds 0"));
    process.kill();
    let verified = verify_database(&database.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, 67);
}

async fn a_restored_ledger_stores_entries_it_had_acknowledged_before(database: Database) {
    let nats = NatsServer::start().await;
    let former = Database::sqlite();
    let mut process = Process::start(&nats, &former).await;
    let bus = bus(&nats, "admin").await;
    let all = events(1..=300);
    publish(&bus, &all).await;
    process
        .until("all are stored and acknowledged", async |_| {
            let positions = bus.consumer_positions(SLURM_EVENTS).await.unwrap();
            let mut own = positions.iter().filter(|one| one.name == "ledger");
            own.any(|own| own.ack_floor == 300)
        })
        .await;
    process.kill();
    // The backup is empty, and the consumer does not deliver anything again.
    let process = Process::start(&nats, &database).await;
    process
        .until("all again", async |process| {
            process.head().await == Some(300)
        })
        .await;
    let ids: HashSet<String> = all.iter().map(|event| event.id.clone()).collect();
    assert_eq!(stored_ids(&database).await, ids);
    process
        .until("all are counted as recovered", async |process| {
            let metrics = process.get("/metrics").await.unwrap_or_default();
            metrics.contains("ledger_recovered_total{stream=\"SLURM_EVENTS\"} 300")
        })
        .await;
}

async fn a_recreated_stream_is_a_gap_of_unknown_size(database: Database) {
    let nats = NatsServer::start().await;
    let mut process = Process::start(&nats, &database).await;
    let admin = bus(&nats, "admin").await;
    publish(&admin, &events(1..=5)).await;
    process
        .until("5 entries", async |process| process.head().await == Some(5))
        .await;
    process.kill();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    context.delete_stream(SLURM_EVENTS).await.unwrap();
    let admin = bus(&nats, "admin").await;
    publish(&admin, &events(6..=9)).await;
    process.restart();
    until_reported(&process, "capture.gap_opened", "messages from 6 on").await;
    let ids: HashSet<String> = events(1..=9).into_iter().map(|event| event.id).collect();
    process
        .until("the new ones", async |_| {
            let ids_in_ledger = stored_ids(&database).await;
            ids.iter().all(|id| ids_in_ledger.contains(id))
        })
        .await;
}

async fn a_ledger_whose_consumer_receives_nothing_stores_every_event_and_reports_it(
    database: Database,
) {
    let nats = NatsServer::start().await;
    let process = Process::start(&nats, &database).await;
    let admin = bus(&nats, "admin").await;
    publish(&admin, &events(1..=5)).await;
    process
        .until("5 entries", async |process| process.head().await == Some(5))
        .await;
    // A client with the right to create consumers changes this one. Its ack floor then claims that
    // nothing is left to deliver, or never moves.
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let blinded = serde_json::json!({"stream_name": SLURM_EVENTS, "config": {
        "name": "ledger", "ack_policy": "explicit", "filter_subject": "slurm.nothing",
    }});
    let answer: serde_json::Value = context
        .request(format!("CONSUMER.CREATE.{SLURM_EVENTS}"), &blinded)
        .await
        .unwrap();
    assert!(answer["error"].is_null(), "{answer}");
    publish(&admin, &events(6..=9)).await;
    process
        .until("9 entries", async |process| process.head().await == Some(9))
        .await;
    let ids: HashSet<String> = events(1..=9).into_iter().map(|event| event.id).collect();
    assert_eq!(stored_ids(&database).await, ids);
    process
        .until("the repair is told", async |process| {
            let ready = process.json("/readyz").await.unwrap_or_default();
            let note = ready["notes"]["ledger.repairs"]
                .as_str()
                .unwrap_or_default();
            note.contains("consumer ledger of SLURM_EVENTS")
        })
        .await;
}
