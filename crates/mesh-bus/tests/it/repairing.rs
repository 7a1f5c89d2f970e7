//! Changed or deleted durable consumers are repaired and reported, and no message is skipped.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use futures_util::StreamExt as _;
use mesh_bus::{Bus, Disposition, Handler, Message};
use mesh_events::EventType::{JobHeld, JobStarted};
use mesh_events::catalogue::{MESH_DEAD, MESH_HOOKS, MESH_IN, SLURM_EVENTS};
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::{NatsServer, wait_until};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::connect;
use crate::permissions::{async_nats_as, connect_as};

/// Consumers are compared every minute.
const PATIENCE: Duration = Duration::from_secs(150);

#[derive(Clone, Default)]
struct Jobs(Arc<Mutex<BTreeSet<u32>>>);

impl Handler for Jobs {
    async fn handle(&self, message: &Message) -> Disposition {
        let id = message.event().unwrap().job().unwrap().job_id;
        self.0.lock().unwrap().insert(id);
        Disposition::Ack
    }
}

impl Jobs {
    async fn wait_for(&self, expected: impl IntoIterator<Item = u32>) {
        let expected: BTreeSet<u32> = expected.into_iter().collect();
        let description = format!("jobs {expected:?}");
        wait_until(&description, PATIENCE, async || {
            *self.0.lock().unwrap() == expected
        })
        .await;
    }
}

struct Side {
    nats: NatsServer,
    bus: Bus,
    jobs: Jobs,
    stop: CancellationToken,
    consuming: JoinHandle<Result<(), mesh_bus::Error>>,
}

impl Side {
    async fn start(role: &str, durable: &str) -> Self {
        let nats = NatsServer::start().await;
        let bus = connect(&nats, role).await;
        let (jobs, stop) = (Jobs::default(), CancellationToken::new());
        let consuming = {
            let (bus, handler, stop) = (bus.clone(), jobs.clone(), stop.clone());
            let durable = durable.to_owned();
            tokio::spawn(
                async move { bus.consume(SLURM_EVENTS, &durable, 8, handler, &stop).await },
            )
        };
        let side = Self {
            nats,
            bus,
            jobs,
            stop,
            consuming,
        };
        side.publish(1).await;
        side.jobs.wait_for([1]).await;
        side
    }

    async fn publish(&self, id: u32) {
        let event = job_event(JobStarted, job(id));
        self.bus.publish(&event).await.unwrap();
    }

    async fn context(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(self.nats.url()).await.unwrap())
    }

    async fn end(self, text: &str) {
        // A message may arrive before the repair that caused it has been recorded.
        wait_until(&format!("repair: {text}"), PATIENCE, async || {
            self.bus.repairs().iter().any(|one| one.contains(text))
        })
        .await;
        self.stop.cancel();
        self.consuming.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_with_an_empty_filter_receives_what_it_missed_after_the_repair() {
    let side = Side::start("cost-engine", "cost-engine").await;
    let context = side.context().await;
    // As any role with the right to create consumers could: it becomes an ephemeral one without messages. The threshold keeps the server
    // from removing it before it is compared.
    let request = json!({"stream_name": SLURM_EVENTS, "config": {
        "name": "cost-engine", "ack_policy": "explicit", "filter_subject": "slurm.nothing",
        "inactive_threshold": Duration::from_secs(3_600).as_nanos() as u64,
    }});
    let answer: serde_json::Value = context
        .request(format!("CONSUMER.CREATE.{SLURM_EVENTS}"), &request)
        .await
        .unwrap();
    assert_eq!(answer["config"]["filter_subject"], "slurm.nothing");
    side.publish(2).await;
    side.jobs.wait_for([1, 2]).await;
    let repaired: PullConsumer = context
        .get_consumer_from_stream("cost-engine", SLURM_EVENTS)
        .await
        .unwrap();
    let config = &repaired.cached_info().config;
    assert_eq!(config.durable_name.as_deref(), Some("cost-engine"));
    side.end("consumer cost-engine of SLURM_EVENTS: its ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_consumer_is_recreated_without_skipping_messages() {
    let side = Side::start("pending-explainer", "pending-explainer").await;
    let context = side.context().await;
    let deleted = context.delete_consumer_from_stream("pending-explainer", SLURM_EVENTS);
    assert!(deleted.await.unwrap().success);
    side.publish(2).await;
    side.jobs.wait_for([1, 2]).await;
    side.end("it was deleted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_consumer_receives_everything_again() {
    let side = Side::start("cost-engine", "cost-engine").await;
    side.publish(2).await;
    side.jobs.wait_for([1, 2]).await;
    side.stop.cancel();
    side.consuming.await.unwrap().unwrap();
    side.bus
        .recreate_consumer(SLURM_EVENTS, "cost-engine")
        .await
        .unwrap();
    let (second, stop) = (Jobs::default(), CancellationToken::new());
    let reading = side
        .bus
        .consume(SLURM_EVENTS, "cost-engine", 8, second.clone(), &stop);
    let all = async {
        second.wait_for([1, 2]).await;
        stop.cancel();
    };
    tokio::join!(reading, all).0.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_gone_is_recreated_and_one_that_cannot_be_deleted_is_an_error() {
    const USERS: &str = r#"authorization { users: [
        { user: "admin", password: "admin" }
        { user: "bound", password: "bound", permissions: { publish: { deny: "$JS.API.CONSUMER.DELETE.>" } } }
    ] }"#;
    let nats = NatsServer::start_with(USERS).await;
    let admin = connect_as(&nats, "admin").await;
    let bound = connect_as(&nats, "bound").await;
    let context = jetstream::new(async_nats_as(&nats, "admin").await);
    let created = async || {
        let found = context.get_consumer_from_stream("cost-engine", SLURM_EVENTS);
        let consumer: PullConsumer = found.await.unwrap();
        consumer.cached_info().created
    };
    let before = created().await;
    let refused = bound.recreate_consumer(SLURM_EVENTS, "cost-engine").await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("delete consumer"), "{refused}");
    assert_eq!(created().await, before);

    admin
        .recreate_consumer(SLURM_EVENTS, "cost-engine")
        .await
        .unwrap();
    let deleted = context.delete_consumer_from_stream("cost-engine", SLURM_EVENTS);
    assert!(deleted.await.unwrap().success);
    admin
        .recreate_consumer(SLURM_EVENTS, "cost-engine")
        .await
        .unwrap();
    assert!(created().await > before);
}

async fn send(context: &jetstream::Context, subject: &str, count: usize) {
    for _ in 0..count {
        let sent = context.publish(subject.to_owned(), "{}".into()).await;
        sent.unwrap().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_is_noticed_in_every_stream_and_what_was_read_is_none() {
    const HOOK: &str = "mesh.testbed.hook.EpilogSlurmctld";
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "admin").await;
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let hooks = context.get_stream(MESH_HOOKS).await.unwrap();
    let config = pull::Config {
        durable_name: Some("ingest-testbed".to_owned()),
        filter_subject: HOOK.to_owned(),
        ..Default::default()
    };
    let consumer = hooks.create_consumer(config).await.unwrap();
    for subject in [HOOK, "mesh.testbed.in.ci", "mesh.dead.testbed"] {
        send(&context, subject, 3).await;
    }
    bus.note_removals().await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    for _ in 0..2 {
        let message = messages.next().await.unwrap().unwrap();
        message.double_ack().await.unwrap();
    }
    drop(messages);
    bus.note_removals().await.unwrap();
    assert_eq!(bus.repairs(), Vec::<String>::new());
    send(&context, HOOK, 4).await;
    bus.note_removals().await.unwrap();
    for stream in [MESH_HOOKS, MESH_IN, MESH_DEAD] {
        context
            .get_stream(stream)
            .await
            .unwrap()
            .purge()
            .await
            .unwrap();
    }
    for _ in 0..2 {
        bus.note_removals().await.unwrap();
    }
    let said = bus.repairs().join("\n");
    for expected in [
        "messages of MESH_HOOKS that ingest-testbed had not read were removed",
        "stream MESH_IN was purged by another client: its messages before sequence 4 are lost",
        "stream MESH_DEAD was purged by another client: its messages before sequence 4 are lost",
    ] {
        assert_eq!(said.matches(expected).count(), 1, "{expected}: {said}");
    }
    assert!(!said.contains("; repaired"), "{said}");
    // Another process, which saw nothing of before.
    let other = connect(&nats, "admin").await;
    other.note_removals().await.unwrap();
    let said = other.repairs().join("\n");
    assert!(said.contains("stream MESH_IN was purged"), "{said}");
    // It has no consumer that lacks anything.
    assert!(!said.contains("MESH_DEAD"), "{said}");
}

/// Changes the consumer of a reader, as a client with the reader's own rights can.
async fn filter(context: &jetstream::Context, subject: &str) {
    const NAME: &str = "webhook-dispatcher-0";
    let consumer: PullConsumer = context
        .get_consumer_from_stream(NAME, SLURM_EVENTS)
        .await
        .unwrap();
    let mut config = consumer.cached_info().config.clone();
    config.filter_subject = subject.to_owned();
    let request = json!({"stream_name": SLURM_EVENTS, "action": "update", "config": config});
    let subject = format!("CONSUMER.CREATE.{SLURM_EVENTS}.{NAME}.{subject}");
    let answer: serde_json::Value = context.request(subject, &request).await.unwrap();
    assert_eq!(
        answer["config"]["filter_subject"], config.filter_subject,
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_consumer_was_changed_ends_before_what_it_lacks() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "webhook-dispatcher").await;
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let publish = async |kind, id: u32| bus.publish(&job_event(kind, job(id))).await.unwrap();
    publish(JobStarted, 1).await;
    let held = mesh_events::subject::of(&job_event(JobHeld, job(1))).unwrap();
    for (first, wanted, left) in [
        // One that is left out, and one that comes.
        (2, held.as_str(), "between"),
        (4, "slurm.nothing", "at the end"),
    ] {
        let messages = bus.messages_from(SLURM_EVENTS, u64::from(first) - 1).await;
        let mut messages = Box::pin(messages.unwrap());
        let batch = messages.next().await.unwrap();
        assert_eq!(batch.len(), 1, "{left}");
        filter(&context, wanted).await;
        publish(JobStarted, first).await;
        publish(JobHeld, first + 1).await;
        let next = tokio::time::timeout(PATIENCE, messages.next()).await;
        assert!(next.unwrap().is_none(), "{left}");
        drop(messages);
        let again = bus.messages_from(SLURM_EVENTS, u64::from(first)).await;
        let mut again = Box::pin(again.unwrap());
        let mut sequences = Vec::new();
        while sequences.len() < 2 {
            let batch = again.next().await.unwrap();
            sequences.extend(batch.iter().map(|message| message.stream_sequence));
        }
        assert_eq!(
            sequences,
            [u64::from(first), u64::from(first) + 1],
            "{left}"
        );
    }
    let repairs = bus.repairs().join("\n");
    assert!(repairs.contains("it was changed; repaired"), "{repairs}");
}
