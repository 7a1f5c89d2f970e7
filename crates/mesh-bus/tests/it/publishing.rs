use futures_util::StreamExt as _;
use mesh_bus::{Bus, Config, Error, Start};
use mesh_events::EventType::{JobCompleted, JobStarted, JobSubmitted};
use mesh_testkit::build::{ended, job, job_event};
use mesh_testkit::{NatsServer, wait_until};
use tokio_util::sync::CancellationToken;

use crate::{PATIENCE, connect};

#[tokio::test(flavor = "multi_thread")]
async fn the_same_fact_is_stored_once() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    let event = job_event(JobStarted, job(1));
    let first = bus.publish(&event).await.unwrap();
    let second = bus.publish(&event).await.unwrap();
    assert_eq!((first.duplicate, second.duplicate), (false, true));
    assert_eq!(first.sequence, second.sequence);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_carry_cloudevents_headers() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    let event = job_event(JobStarted, job(1));
    bus.publish(&event).await.unwrap();
    let mut messages = Box::pin(bus.follow(Vec::new(), Start::Sequence(1)).await.unwrap());
    let message = messages.next().await.unwrap().unwrap();
    assert_eq!(message.subject, "slurm.testbed.job.started.cpu.alice");
    assert_eq!(
        message.header("ce-type"),
        Some("org.slurm-mesh.job.started.v1")
    );
    assert_eq!(message.header("ce-source"), Some("/clusters/testbed"));
    assert_eq!(message.header("ce-subject"), Some("job/1/1763760000"));
    assert_eq!(message.header("ce-id"), Some(event.id.as_str()));
    assert_eq!(message.event().unwrap(), event);
}

#[tokio::test(flavor = "multi_thread")]
async fn publishing_waits_for_a_server_that_was_killed() {
    let mut nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    bus.publish(&job_event(JobSubmitted, job(1))).await.unwrap();
    nats.kill();
    let publisher = {
        let bus = bus.clone();
        tokio::spawn(async move {
            bus.publish_until_done(&job_event(JobStarted, job(1)), &CancellationToken::new())
                .await
        })
    };
    wait_until("the bus notices", PATIENCE, async || !bus.connected()).await;
    assert!(!publisher.is_finished());
    nats.restart().await;
    assert_eq!(publisher.await.unwrap().unwrap().sequence, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_one_run_keep_their_order() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    let events: Vec<_> = (1..=200)
        .flat_map(|id| {
            let finished = ended(job(id), "COMPLETED", 5);
            [
                job_event(JobSubmitted, job(id)),
                job_event(JobStarted, job(id)),
                job_event(JobCompleted, finished),
            ]
        })
        .collect();
    bus.publish_all(events, &CancellationToken::new())
        .await
        .unwrap();
    let messages = bus.follow(Vec::new(), Start::Sequence(1)).await.unwrap();
    let received: Vec<_> = messages
        .take(600)
        .map(|message| message.unwrap().event().unwrap())
        .collect()
        .await;
    for id in 1..=200 {
        let kinds: Vec<_> = received
            .iter()
            .filter(|event| event.job().unwrap().job_id == id)
            .map(|event| event.kind().unwrap())
            .collect();
        assert_eq!(kinds, [JobSubmitted, JobStarted, JobCompleted]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_larger_than_the_server_takes_is_refused_for_good() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    let mut large = job(1);
    large.comment = "x".repeat(2 << 20);
    let error = bus
        .publish_until_done(&job_event(JobStarted, large), &CancellationToken::new())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_does_not_wait_for_nats() {
    let config = Config {
        url: "nats://127.0.0.1:1".into(),
        ..Config::default()
    };
    let bus = Bus::connect(&config, "ingest").await.unwrap();
    assert!(!bus.connected());
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    assert!(matches!(bus.ready(&shutdown).await, Err(Error::Cancelled)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_address_is_an_error() {
    let config = Config {
        url: "not an address".into(),
        ..Config::default()
    };
    assert!(matches!(
        Bus::connect(&config, "ingest").await,
        Err(Error::Connect { .. })
    ));
}
