use std::ops::Range;

use futures_util::StreamExt as _;
use mesh_bus::{Bus, Config, Error, RawMessage, StartPosition};
use mesh_events::EventType::{JobCompleted, JobStarted, JobSubmitted};
use mesh_events::catalogue::MESH_AUDIT;
use mesh_events::subject;
use mesh_testkit::fixtures::{ended, job, job_event};
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
    let mut messages = Box::pin(
        bus.follow("slurm.>", StartPosition::Sequence(1))
            .await
            .unwrap(),
    );
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
    let messages = bus
        .follow("slurm.>", StartPosition::Sequence(1))
        .await
        .unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn many_messages_are_each_stored_once_with_batches_and_without() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "admin").await;
    let messages = |numbers: Range<u32>| -> Vec<RawMessage> {
        let message = |n: u32| RawMessage {
            subject: subject::audit("testbed", "delivery"),
            id: format!("outcome-{n}"),
            body: n.to_string().into(),
        };
        numbers.map(message).collect()
    };
    let publish = async |numbers: Range<u32>| {
        let results = bus.publish_many(&messages(numbers.clone())).await;
        assert_eq!(results.len(), numbers.len());
        results.into_iter().for_each(Result::unwrap);
        let state = bus.stream_state(MESH_AUDIT).await;
        state.unwrap().last_sequence
    };
    assert_eq!(publish(0..700).await, 700);
    assert_eq!(publish(650..800).await, 800, "some are there already");
    assert_eq!(publish(800..801).await, 801, "one is no batch");

    let client = async_nats::connect(nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let mut stream = jetstream.get_stream(MESH_AUDIT).await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    assert!(config.allow_atomic_publish, "this is what is meant");
    config.allow_atomic_publish = false;
    jetstream.update_stream(config).await.unwrap();
    assert_eq!(publish(790..900).await, 900, "the stream takes no batches");

    for n in 0..900_u32 {
        let stored = bus.stored_from(MESH_AUDIT, u64::from(n) + 1).await;
        assert_eq!(stored.unwrap().unwrap().body, n.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_messages_only_those_that_cannot_be_stored_are_not() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "admin").await;
    let message = |n: u32, length: usize| RawMessage {
        subject: subject::dead("webhook-dispatcher"),
        id: format!("letter-{n}"),
        body: vec![b'x'; length].into(),
    };
    let results = bus
        .publish_many(&[message(1, 10), message(2, 2 << 20), message(3, 10)])
        .await;
    assert!(
        matches!(
            results.as_slice(),
            [Ok(()), Err(Error::Invalid { .. }), Ok(())]
        ),
        "{results:?}"
    );
}
