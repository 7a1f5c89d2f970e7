//! After the recovery of a damaged file nothing fires twice; where it is not known what a rule has done, it is paused.

use std::fs;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::PullConsumer;
use chrono::TimeDelta;
use futures_util::StreamExt as _;
use mesh_bus::Bus;
use mesh_db::damage;
use mesh_events::catalogue::{MESH_AUDIT, SLURM_EVENTS};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::{Event, EventType};
use mesh_testkit::{NatsServer, wait_until};
use prost::Message as _;
use serde_json::Value;

use crate::support::{DEADLINE, Site, Trigger, admin, bus, end, publish, rule};

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
        let subject = "mesh.*.audit.trigger".to_owned();
        let mut stored = bus.stored_messages(MESH_AUDIT, subject);
        loop {
            let messages = stored.next().await.unwrap();
            if messages.is_empty() {
                return false;
            }
            let entries = messages.iter().map(|message| &*message.body);
            let mut acts = entries.filter_map(|body| AuditEntry::decode(body).unwrap().act);
            let is_it = |act: Act| match act {
                Act::Trigger(act) => act.event_id == event.id && act.what == what,
                _ => false,
            };
            if acts.any(is_it) {
                return true;
            }
        }
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
    let tables = rule("one", "") + NO_SLURM;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    trigger.stop().await;
    lose(&site).await;
    let unknown = event(EventType::JobCompleted, 1);
    publish(&bus, &unknown).await;
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    context
        .delete_consumer_from_stream("workflow-trigger", SLURM_EVENTS)
        .await
        .unwrap();
    let trigger = site.start(&nats, SELDOM, &tables).await;
    trigger.wait_run(&unknown.id, "refused").await;
    let rule = rule_of(&trigger, "one").await.to_string();
    assert!(rule.contains("may have fired before"), "{rule}");
    trigger.stop().await;
}
