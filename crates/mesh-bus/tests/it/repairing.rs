//! Changed or deleted durable consumers are repaired and reported, and no message is skipped.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::PullConsumer;
use mesh_bus::{Bus, Disposition, Handler, Message};
use mesh_events::EventType::JobStarted;
use mesh_events::catalogue::SLURM_EVENTS;
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
