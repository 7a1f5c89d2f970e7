use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use futures_util::TryStreamExt as _;
use futures_util::future::join_all;
use mesh_bus::EndpointConsumer;
use mesh_events::EventType::JobStarted;
use mesh_events::catalogue::{BUCKETS, CONSUMERS, RETIRED_CONSUMERS, SLURM_EVENTS, STREAMS};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{job, job_event};
use tokio_util::sync::CancellationToken;

use crate::{PATIENCE, connect};

#[tokio::test(flavor = "multi_thread")]
async fn however_many_wait_for_the_bus_it_is_declared_once() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "admin").await;
    let shutdown = CancellationToken::new();
    let waiting = join_all((0..100).map(|_| bus.ready(&shutdown)));
    assert!(waiting.await.iter().all(Result::is_ok));
    // A missing stream costs one more request to look it up.
    let once = 2 * STREAMS.len() + CONSUMERS.len() + RETIRED_CONSUMERS.len() + 2 * BUCKETS.len();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let account = async_nats::jetstream::new(client).query_account().await;
    let requests = usize::try_from(account.unwrap().requests.total).unwrap();
    assert!((1..=2 * once).contains(&requests), "{requests} requests");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_room_for_more_than_a_thousand_endpoints() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "admin").await;
    let consumers = (0..1_100).map(|n| EndpointConsumer {
        name: format!("wh-{n:012}"),
        endpoint: String::new(),
        owner: String::new(),
        filters: Vec::new(),
        max_ack_pending: 1,
        ack_wait: Duration::from_secs(30),
        created_at: chrono::Utc::now(),
    });
    let consumers: Vec<_> = consumers.collect();
    let declared = join_all(consumers.iter().map(|one| bus.endpoint_consumer(one))).await;
    let refused: Vec<_> = declared
        .iter()
        .filter_map(|one| one.as_ref().err())
        .collect();
    assert!(
        refused.is_empty(),
        "{} refused, {:?}",
        refused.len(),
        refused[0]
    );
    let names = bus.endpoint_consumers().await.unwrap();
    assert_eq!(names.len(), consumers.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_dead_consumer_are_redelivered_before_the_ack_wait() {
    const MESSAGES: usize = 4;
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "admin").await;
    let consumer = EndpointConsumer {
        name: "wh-000000000000".into(),
        endpoint: String::new(),
        owner: String::new(),
        filters: Vec::new(),
        max_ack_pending: i64::try_from(MESSAGES).unwrap(),
        ack_wait: Duration::from_secs(60 * 60),
        created_at: chrono::Utc::now(),
    };
    bus.endpoint_consumer(&consumer).await.unwrap();
    for n in 1..=10 {
        bus.publish(&job_event(JobStarted, job(n))).await.unwrap();
    }
    let given = take(&nats, &consumer.name, MESSAGES).await;
    assert_eq!(given.len(), MESSAGES);
    // The messages stay unacknowledged, and no more are delivered until they are acknowledged.
    bus.endpoint_consumer(&consumer).await.unwrap();
    assert_eq!(take(&nats, &consumer.name, MESSAGES).await, given);
}

/// Takes this many messages without acknowledging them; returns their sequences.
async fn take(nats: &NatsServer, consumer: &str, max: usize) -> BTreeSet<u64> {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let consumer: PullConsumer = async_nats::jetstream::new(client)
        .get_consumer_from_stream(consumer, SLURM_EVENTS)
        .await
        .unwrap();
    let batch = consumer.batch().max_messages(max).expires(PATIENCE);
    let messages: Vec<_> = batch.messages().await.unwrap().try_collect().await.unwrap();
    let place = |message: &async_nats::jetstream::Message| message.info().unwrap().stream_sequence;
    messages.iter().map(place).collect()
}
