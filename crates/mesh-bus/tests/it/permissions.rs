//! Every role can do its work with the rights of the catalogue, and no more.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use mesh_bus::{Bus, Config, Disposition, Handler, Message, ReplayedEvent, StartPosition};
use mesh_events::EventType::JobStarted;
use mesh_events::catalogue::{
    self, Accounts, BUCKET_EXPLAINER, BUCKET_INGEST, BUCKET_NODES, BUCKET_QUEUE, BUCKET_WEBHOOKS,
    CONSUMERS, Login,
};
use mesh_events::subject;
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{job, job_event};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use crate::PATIENCE;

pub(crate) fn users() -> String {
    let mut accounts = Accounts::default();
    for role in catalogue::ROLES {
        let (name, password) = (*role, *role);
        accounts.add(role, "testbed", Login::Password { name, password });
    }
    format!("accounts {{\n{}}}\n", accounts.render())
}

pub(crate) async fn connect_as(nats: &NatsServer, role: &str) -> Bus {
    let config = Config {
        url: nats.url(),
        user: Some(role.into()),
        password: Some(role.into()),
        provision: role == "admin",
        ..Config::default()
    };
    let bus = Bus::connect(&config, role).await.unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    bus
}

/// The bare client, for requests that the mesh never sends.
pub(crate) async fn async_nats_as(nats: &NatsServer, role: &str) -> async_nats::Client {
    let options = async_nats::ConnectOptions::with_user_and_password(role.into(), role.into());
    options.connect(nats.url()).await.unwrap()
}

struct Stop(CancellationToken);

impl Handler for Stop {
    async fn handle(&self, _message: &Message) -> Disposition {
        self.0.cancel();
        Disposition::Ack
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_consumer_of_the_catalogue_can_be_read_by_its_role() {
    let nats = NatsServer::start_with(&users()).await;
    connect_as(&nats, "admin").await;
    let ingest = connect_as(&nats, "ingest").await;
    ingest
        .publish(&job_event(JobStarted, job(1)))
        .await
        .unwrap();
    for (subject, role) in [
        ("mesh.testbed.hook.PrologSlurmctld", "hook"),
        ("mesh.testbed.hook.ResumeProgram", "hook"),
        ("mesh.testbed.audit.delivery", "webhook-dispatcher"),
        ("slurm.testbed.capture.gap_opened.stream", "ledger"),
        ("mesh.testbed.in.minio", "workflow-trigger"),
    ] {
        connect_as(&nats, role)
            .await
            .publish_raw(subject.into(), subject, b"x".to_vec())
            .await
            .unwrap();
    }
    for consumer in CONSUMERS {
        let bus = connect_as(&nats, consumer.name).await;
        let stop = CancellationToken::new();
        let durable = consumer.durable("testbed");
        let reading = bus.consume(consumer.stream, &durable, 1, Stop(stop.clone()), &stop);
        tokio::time::timeout(PATIENCE, reading)
            .await
            .unwrap_or_else(|_| panic!("{consumer:?}"))
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dispatcher_names_endpoints_and_it_and_readers_follow() {
    let nats = NatsServer::start_with(&users()).await;
    connect_as(&nats, "admin").await;
    let dispatcher = connect_as(&nats, "webhook-dispatcher").await;
    let ledger = connect_as(&nats, "ledger").await;
    let mut names = dispatcher.webhook_names().await.unwrap();
    let mut late = dispatcher.webhook_names().await.unwrap();
    let all: BTreeSet<String> = ["ci", "alice/ci"].map(str::to_owned).into();
    assert!(names.write(&all).await.unwrap());
    for (name, exists) in [("ci", true), ("alice/ci", true), ("absent", false)] {
        assert_eq!(ledger.has_webhook(name).await.unwrap(), exists, "{name}");
    }
    // Another dispatcher, which had read before, does not write over it unseen.
    let fewer: BTreeSet<String> = ["ci".to_owned()].into();
    assert!(!late.write(&fewer).await.unwrap());
    assert!(late.write(&fewer).await.unwrap());
    assert!(names.write(&fewer).await.unwrap());
    assert!(!ledger.has_webhook("alice/ci").await.unwrap());
    // Names that somebody deleted come back.
    let context = jetstream::new(async_nats_as(&nats, "admin").await);
    let stream = format!("KV_{BUCKET_WEBHOOKS}");
    let stream = context.get_stream(stream).await.unwrap();
    stream.purge().await.unwrap();
    assert!(!ledger.has_webhook("ci").await.unwrap());
    names.check().await.unwrap();
    assert!(names.write(&fewer).await.unwrap());
    assert!(ledger.has_webhook("ci").await.unwrap());

    connect_as(&nats, "ingest")
        .await
        .publish(&job_event(JobStarted, job(1)))
        .await
        .unwrap();
    let (stream, subjects) = (catalogue::SLURM_EVENTS, vec!["slurm.*.job.>".to_owned()]);
    let mut batches = Box::pin(dispatcher.messages_from(stream, 1).await.unwrap());
    assert_eq!(batches.next().await.unwrap().len(), 1);
    for (first, count) in [(1, 1), (2, 0)] {
        let stored = dispatcher
            .stored_page(stream, &subjects, first, 2, 10)
            .await;
        assert_eq!(stored.unwrap().len(), count);
    }
    let before = dispatcher.sequence_before(stream, chrono::DateTime::UNIX_EPOCH);
    assert_eq!(before.await.unwrap(), 0);

    let reader = connect_as(&nats, "reader").await;
    let mut events = Box::pin(
        reader
            .follow("slurm.*.job.>", StartPosition::Sequence(1))
            .await
            .unwrap(),
    );
    assert!(events.next().await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_replays_and_deletes_the_replay() {
    let nats = NatsServer::start_with(&users()).await;
    let admin = connect_as(&nats, "admin").await;
    let ledger = connect_as(&nats, "ledger").await;
    let event = job_event(JobStarted, job(1));
    let replay_one = async |replay: &str, endpoint: Option<&str>| {
        let replayed = ReplayedEvent {
            original: subject::of(&event).unwrap(),
            body: event.encode_to_vec().into(),
            event: event.clone(),
        };
        let replayed_all = ledger.publish_replayed(replay, endpoint, vec![replayed]);
        replayed_all.await.unwrap();
    };
    for replay in ["r1", "r2"] {
        replay_one(replay, None).await;
    }
    let stored = async || {
        let context = jetstream::new(async_nats_as(&nats, "admin").await);
        let stream = context.get_stream(catalogue::MESH_REPLAY).await.unwrap();
        let subjects = stream.info_with_subjects(">").await.unwrap();
        let subjects: Vec<(String, usize)> = subjects.try_collect().await.unwrap();
        subjects
            .into_iter()
            .map(|(subject, _)| subject)
            .collect::<Vec<_>>()
    };
    assert_eq!(stored().await.len(), 2);
    ledger.purge_replay("r1").await.unwrap();
    let left = stored().await;
    assert!(
        left.len() == 1 && left[0].starts_with("mesh.replay.r2."),
        "{left:?}"
    );
    // No other role may.
    let ingest = connect_as(&nats, "ingest").await;
    assert!(ingest.purge_replay("r2").await.is_err());
    assert_eq!(stored().await, left);
    // The dispatcher learns which endpoints have replayed events, stored and new.
    let dispatcher = connect_as(&nats, "webhook-dispatcher").await;
    replay_one("r3", Some("chat")).await;
    let mut endpoints = Box::pin(dispatcher.follow_replayed_endpoints().await.unwrap());
    assert_eq!(endpoints.next().await.unwrap(), ("chat".to_owned(), 3));
    replay_one("r4", Some("a.b")).await;
    assert_eq!(endpoints.next().await.unwrap(), ("a.b".to_owned(), 4));
    drop(admin);
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_are_written_by_their_owner_only() {
    let nats = NatsServer::start_with(&users()).await;
    connect_as(&nats, "admin").await;
    for (role, bucket) in [
        ("ingest", BUCKET_INGEST),
        ("ingest", BUCKET_QUEUE),
        ("node-watcher", BUCKET_NODES),
        ("pending-explainer", BUCKET_EXPLAINER),
    ] {
        let bucket = connect_as(&nats, role).await.bucket(bucket).await.unwrap();
        let key = "testbed.0";
        let revision = bucket.put(key, "x".into(), None).await.unwrap();
        bucket.put(key, "y".into(), Some(revision)).await.unwrap();
        assert_eq!(bucket.load("testbed").await.unwrap().len(), 1, "{role}");
    }
    let queue = connect_as(&nats, "pending-explainer")
        .await
        .bucket(BUCKET_QUEUE)
        .await
        .unwrap();
    let read = queue.load("testbed").await.unwrap();
    assert_eq!(read[0].value.as_ref(), b"y");
    let nodes = connect_as(&nats, "node-watcher").await;
    let nodes = nodes.bucket(BUCKET_NODES).await.unwrap();
    // Refused requests are never answered, so both wait at the same time.
    let (queue, elsewhere) = tokio::join!(
        queue.put("testbed.0", "z".into(), None),
        nodes.put("elsewhere.0", "z".into(), None)
    );
    assert!(queue.is_err(), "the explainer only reads the queue");
    assert!(elsewhere.is_err(), "a service writes about its own cluster");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_cannot_publish_events_nor_read_anything() {
    let nats = NatsServer::start_with(&users()).await;
    connect_as(&nats, "admin").await;
    let hook = connect_as(&nats, "hook").await;
    assert!(hook.publish(&job_event(JobStarted, job(1))).await.is_err());
    let client = async_nats::ConnectOptions::with_user_and_password("hook".into(), "hook".into())
        .connect(nats.url())
        .await
        .unwrap();
    let mut spying = client.subscribe("slurm.>").await.unwrap();
    connect_as(&nats, "ingest")
        .await
        .publish(&job_event(JobStarted, job(1)))
        .await
        .unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(300), spying.next())
            .await
            .is_err()
    );
    let anonymous = async_nats::connect(nats.url()).await;
    assert!(
        anonymous.is_err(),
        "without credentials there is no connection"
    );
}
