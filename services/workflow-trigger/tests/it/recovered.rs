//! After the recovery of a damaged file nothing fires twice; where it is not known what a rule has done, it is paused.

use std::fs;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::PullConsumer;
use chrono::{TimeDelta, Utc};
use futures_util::StreamExt as _;
use mesh_bus::Bus;
use mesh_db::sql::Sql;
use mesh_db::{Location, damage};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, TriggerActed};
use mesh_events::{Event, EventType, timestamp};
use mesh_testkit::{NatsServer, wait_until};
use serde_json::Value;
use workflow_trigger::adapters::store::Store;
use workflow_trigger::domain::recorded::Recorded;

use crate::support::{DEADLINE, Site, Trigger, admin, audit, bus, end, publish, rule};

const SELDOM: &str = "retry_initial_interval = \"1m\"";
const NO_SLURM: &str = "[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n";

/// A rule of alice for other ends of jobs.
fn rule_on(name: &str, kind: &str) -> String {
    rule(name, "").replace("job.completed", kind)
}

fn event(kind: EventType, job: u32) -> Event {
    end(kind, job, "alice", TimeDelta::zero())
}

/// Overwrites the whole file, and recovers it as `smesh recover` does.
async fn lose(site: &Site) {
    let file = site.path("workflow-trigger.db");
    for side in ["", "-wal"] {
        let path = site.path(&format!("workflow-trigger.db{side}"));
        if path.exists() {
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, vec![0xAA; bytes.len()]).unwrap();
        }
    }
    let recovered = damage::recover(&file, "damaged", workflow_trigger::prepare_file).await;
    assert!(recovered.unwrap().tables.is_empty());
}

/// Waits until the audit has what became of an event.
async fn audited(bus: &Bus, event: &Event, what: &str) {
    let description = format!("the audit has {what}");
    wait_until(&description, DEADLINE, async || {
        let acts = audit(bus, &event.id).await;
        acts.iter().any(|act| act.what == what)
    })
    .await;
}

/// The service read these messages, and was killed before it acknowledged them.
async fn deliver_without_acknowledgement(nats: &NatsServer, count: usize) {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client.clone());
    let consumer: PullConsumer = context
        .get_consumer_from_stream("workflow-trigger", SLURM_EVENTS)
        .await
        .unwrap();
    let mut messages = consumer
        .fetch()
        .max_messages(count)
        .messages()
        .await
        .unwrap();
    for _ in 0..count {
        let message = messages.next().await.unwrap().unwrap();
        message.ack_with(AckKind::Nak(None)).await.unwrap();
    }
    client.flush().await.unwrap();
}

async fn rule_of(trigger: &Trigger, name: &str) -> Value {
    let (_, answer) = trigger.ask(admin(), "GET", "/v1/triggers", None).await;
    let rules = answer["rules"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    let name = format!("alice/{name}");
    let found = rules.iter().find(|rule| rule["rule"] == name);
    found.unwrap_or_else(|| panic!("{answer}")).clone()
}

async fn runs_of(trigger: &Trigger, event: &Event) -> Vec<Value> {
    let mut runs = trigger.runs("").await;
    runs.retain(|run| run["event_id"] == event.id.as_str());
    runs
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_fires_twice_and_rules_of_unknown_runs_stay_paused() {
    let site = Site::new("");
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let tables = rule("known", "")
        + &rule("dry", "dry_run = true")
        + &rule_on("uncertain", "job.failed")
        + &rule_on("fresh", "job.timeout")
        + NO_SLURM;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    let fired = event(EventType::JobCompleted, 1);
    publish(&bus, &fired).await;
    trigger.wait_run(&fired.id, "submitting").await;
    trigger.wait_run(&fired.id, "dry_run").await;
    audited(&bus, &fired, "fired").await;
    audited(&bus, &fired, "dry_run").await;
    trigger.stop().await;

    lose(&site).await;
    let uncertain = event(EventType::JobFailed, 2);
    publish(&bus, &uncertain).await;
    deliver_without_acknowledgement(&nats, 1).await;
    // These come for the first time.
    let fresh = event(EventType::JobTimeout, 3);
    publish(&bus, &fresh).await;
    let after = event(EventType::JobCompleted, 4);
    publish(&bus, &after).await;
    // The first event again, with another message id.
    bus.republish(&fired, "again").await.unwrap();

    let trigger = site.start(&nats, SELDOM, &tables).await;
    let given_up = trigger.wait_run(&fired.id, "given_up").await;
    let error = given_up["error"].as_str().unwrap();
    assert!(error.contains("recovered"), "{given_up}");
    trigger.wait_run(&fresh.id, "submitting").await;
    trigger.wait_run(&uncertain.id, "refused").await;
    trigger.wait_run(&after.id, "refused").await;
    assert_eq!(runs_of(&trigger, &fired).await.len(), 2, "known and dry");
    for (name, words) in [
        ("known", "may have been submitted"),
        ("uncertain", "may have fired before"),
    ] {
        let rule = rule_of(&trigger, name).await.to_string();
        assert!(rule.contains(words), "{rule}");
    }
    for name in ["dry", "fresh"] {
        let rule = rule_of(&trigger, name).await.to_string();
        assert!(!rule.contains("recovered"), "{rule}");
    }
    let marker = site.path("workflow-trigger.db.recovered");
    wait_until("the recovery ends", DEADLINE, async || !marker.exists()).await;

    // A person has looked.
    let path = "/v1/triggers/alice/known/resume";
    let (status, answer) = trigger.ask(admin(), "POST", path, None).await;
    assert!(status.is_success(), "{status} {answer}");
    let later = event(EventType::JobCompleted, 5);
    publish(&bus, &later).await;
    trigger.wait_run(&later.id, "submitting").await;
    trigger.stop().await;

    // Once more, now with the outcomes of the first recovery in the audit.
    audited(&bus, &later, "fired").await;
    audited(&bus, &fired, "given_up").await;
    lose(&site).await;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    trigger.wait_run(&fired.id, "given_up").await;
    trigger.wait_run(&later.id, "given_up").await;
    let rule = rule_of(&trigger, "uncertain").await.to_string();
    assert!(rule.contains("may have fired before"), "{rule}");
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_was_made_again_fires_nothing_that_may_have_fired() {
    let site = Site::new("");
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let tables = rule("one", "") + &rule_on("two", "job.failed") + NO_SLURM;
    publish(&bus, &event(EventType::JobTimeout, 1)).await;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    trigger.stop().await;
    lose(&site).await;
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    // The first messages expired.
    let stream = context.get_stream(SLURM_EVENTS).await.unwrap();
    stream.purge().await.unwrap();
    let first = event(EventType::JobCompleted, 2);
    publish(&bus, &first).await;
    for job in 3..600 {
        publish(&bus, &event(EventType::JobCompleted, job)).await;
    }
    let last = event(EventType::JobFailed, 600);
    publish(&bus, &last).await;
    context
        .delete_consumer_from_stream("workflow-trigger", SLURM_EVENTS)
        .await
        .unwrap();

    let one_by_one = format!("{SELDOM}\nbatch_size = 1");
    let trigger = site.start(&nats, &one_by_one, &tables).await;
    trigger.wait_run(&first.id, "refused").await;
    let rule = rule_of(&trigger, "one").await.to_string();
    assert!(rule.contains("may have fired before"), "{rule}");
    trigger.kill().await;
    let progress = bus.consumer_progress(SLURM_EVENTS, "workflow-trigger");
    let delivered = progress.await.unwrap().delivered;
    assert!((2..600).contains(&delivered), "{delivered}");

    let trigger = site.start(&nats, SELDOM, &tables).await;
    trigger.wait_run(&last.id, "refused").await;
    let rule = rule_of(&trigger, "two").await.to_string();
    assert!(rule.contains("may have fired before"), "{rule}");
    trigger.stop().await;
}

/// The audit of these runs, each of a rule that is called like it.
fn recorded(entries: &[(&str, &str)]) -> Recorded {
    let mut recorded = Recorded::default();
    for (key, what) in entries {
        let act = TriggerActed {
            what: (*what).to_owned(),
            rule: format!("alice/{key}"),
            key: (*key).to_owned(),
            ..TriggerActed::default()
        };
        recorded.add(AuditEntry {
            at: Some(timestamp(Utc::now())),
            act: Some(Act::Trigger(act)),
            ..AuditEntry::default()
        });
    }
    recorded
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_older_than_the_audit_is_not_believed() {
    const REDRIVEN: &[(&str, &str)] = &[
        ("ended", "redriven"),
        ("ended", "submitted"),
        ("ended", "released"),
        ("redriven", "redriven"),
        ("submitted", "redriven"),
        ("submitted", "submitted"),
    ];
    let dead = [
        ("dead", "refused"),
        ("ended", "given_up"),
        ("redriven", "refused"),
        ("submitted", "given_up"),
    ];
    let site = Site::new("");
    let location = Location::Sqlite(site.path("workflow-trigger.db"));
    let store = Store::connect(&location).unwrap();
    store.database.prepare().await.unwrap();
    store.restore(&recorded(&dead), Utc::now()).await.unwrap();
    let all = [&dead, REDRIVEN].concat();
    let restored = store.restore(&recorded(&all), Utc::now()).await.unwrap();
    assert_eq!((restored.added, restored.given_up), (0, 2));

    let sql = Sql::new("SELECT key, state, error FROM intents ORDER BY key");
    let rows = store.database.rows("read runs", &sql).await.unwrap();
    let states: Vec<(String, String, bool)> = rows
        .iter()
        .map(|row| {
            let error: String = row.get("error").unwrap();
            let is_unknown = error.contains("not known");
            (
                row.get("key").unwrap(),
                row.get("state").unwrap(),
                is_unknown,
            )
        })
        .collect();
    let expected = [
        ("dead", "refused", false),
        ("ended", "released", false),
        ("redriven", "given_up", true),
        ("submitted", "given_up", true),
    ];
    let expected =
        expected.map(|(key, state, is_unknown)| (key.to_owned(), state.to_owned(), is_unknown));
    assert_eq!(states, expected);
    let states = store.rule_states().await.unwrap();
    let paused: Vec<&str> = states
        .iter()
        .filter(|(_, state)| state.paused_at.is_some())
        .map(|(rule, _)| rule.name.as_str())
        .collect();
    assert_eq!(paused, ["redriven", "submitted"]);
    store.database.close().await;
}
