//! Streams that do not store are detected without storing a message.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use mesh_bus::{Bus, Config};
use mesh_events::EventType::JobStarted;
use mesh_events::catalogue::{BUCKETS, SLURM_EVENTS, STREAMS};
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::{NatsServer, SmallDisk};
use tokio_util::sync::CancellationToken;

use crate::permissions::{connect_as, users};
use crate::{PATIENCE, connect};

/// Streams that do not store, with the reason.
async fn problems(bus: &Bus) -> BTreeMap<String, String> {
    let states = bus.probe_storage().await.unwrap();
    assert_eq!(states.len(), STREAMS.len() + BUCKETS.len());
    let broken = states
        .into_iter()
        .filter_map(|state| Some((state.stream, state.problem?)));
    broken.collect()
}

/// Each stream's declaration and contents.
async fn streams(nats: &NatsServer) -> Vec<(stream::Config, [u64; 4])> {
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let mut found = Vec::new();
    for stream in STREAMS {
        let stream = context.get_stream(stream.name).await.unwrap();
        let info = stream.cached_info();
        let state = &info.state;
        let consumers = u64::try_from(state.consumer_count).unwrap();
        let holds = [state.messages, state.bytes, state.last_sequence, consumers];
        found.push((info.config.clone(), holds));
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_had_a_write_error_is_named_and_the_probe_leaves_nothing() {
    let disk = SmallDisk::mount("24m");
    let mut nats = NatsServer::start_with_streams_at(disk.path()).await;
    let bus = connect(&nats, "admin").await;
    bus.publish(&job_event(JobStarted, job(1))).await.unwrap();
    let before = streams(&nats).await;
    assert_eq!(problems(&bus).await, BTreeMap::new());
    assert_eq!(streams(&nats).await, before);

    disk.fill();
    // The answer never arrives: the server reports the error in its log only.
    let large = vec![b'x'; 500_000];
    let publish = bus.publish_raw("slurm.testbed.job.1.x".into(), "large", large);
    let published = tokio::time::timeout(PATIENCE, publish).await;
    assert!(published.unwrap().is_err());
    let full = problems(&bus).await;
    assert_eq!(full.len(), STREAMS.len() + BUCKETS.len(), "{full:?}");
    assert!(
        full.values()
            .all(|problem| problem.contains("no space left on device")),
        "{full:?}"
    );

    // There is room again, and still this one stream stores nothing.
    disk.empty();
    let sick = problems(&bus).await;
    assert_eq!(sick.keys().collect::<Vec<_>>(), [SLURM_EVENTS], "{sick:?}");
    nats.restart().await;
    bus.ready(&CancellationToken::new()).await.unwrap();
    assert_eq!(problems(&bus).await, BTreeMap::new());
    bus.publish(&job_event(JobStarted, job(2))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_full_or_missing_is_named() {
    let nats = NatsServer::start().await;
    let config = Config {
        url: nats.url(),
        events_max_bytes: Some(1 << 20),
        ..Config::default()
    };
    let bus = Bus::connect(&config, "admin").await.unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    bus.publish(&job_event(JobStarted, job(1))).await.unwrap();
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    context.delete_stream("MESH_DEAD").await.unwrap();
    let found = problems(&bus).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[SLURM_EVENTS].contains("full"), "{found:?}");
    assert!(found["MESH_DEAD"].contains("not found"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_administrator_may_probe() {
    let nats = NatsServer::start_with(&users()).await;
    let admin = connect_as(&nats, "admin").await;
    assert_eq!(problems(&admin).await, BTreeMap::new());
    let ledger = connect_as(&nats, "ledger").await;
    let refused = tokio::time::timeout(Duration::from_secs(30), ledger.probe_storage()).await;
    assert!(refused.unwrap().is_err());
}
