//! Three servers that replicate every stream, of which each is lost in turn under load: killed, and stopped, which to the others and to the
//! clients is a host that no packet reaches any more.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use mesh_bus::{Bus, Config};
use mesh_events::EventType::JobStarted;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{job, job_event};
use tokio_util::sync::CancellationToken;

/// Events that are published while a server is away.
const EVENTS: u32 = 60;

/// Publishes events, eight at a time. Returns their ids and how long each took.
async fn publish(bus: &Bus, jobs: std::ops::Range<u32>) -> Vec<(String, Duration)> {
    let publish = |n| async move {
        let event = job_event(JobStarted, job(n));
        let begun = Instant::now();
        bus.publish_until_done(&event, &CancellationToken::new())
            .await
            .unwrap();
        (event.id, begun.elapsed())
    };
    stream::iter(jobs)
        .map(publish)
        .buffer_unordered(8)
        .collect()
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_servers_each_is_killed_and_stopped_and_no_event_is_lost_or_stored_twice() {
    let mut servers = NatsServer::start_cluster(3).await;
    let config = Config {
        url: NatsServer::urls(&servers),
        replicas: 3,
        ..Config::default()
    };
    let bus = Bus::connect(&config, "admin").await.unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    let mut published = Vec::new();
    let mut next = 1;
    for server in &mut servers {
        server.kill();
        published.extend(publish(&bus, next..next + EVENTS).await);
        server.restart().await;
        next += EVENTS;
        server.pause();
        published.extend(publish(&bus, next..next + EVENTS).await);
        server.resume();
        next += EVENTS;
    }
    let ids: BTreeSet<String> = published.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids.len(), published.len());

    let client = async_nats::connect(servers[0].url()).await.unwrap();
    let stream = async_nats::jetstream::new(client);
    let mut stream = stream.get_stream(SLURM_EVENTS).await.unwrap();
    let last = stream.info().await.unwrap().state.last_sequence;
    let mut stored = Vec::new();
    for sequence in 1..=last {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let id = message.headers.get(async_nats::header::NATS_MESSAGE_ID);
        stored.push(id.unwrap().to_string());
    }
    assert_eq!(stored.len(), ids.len(), "none twice");
    assert_eq!(
        stored.into_iter().collect::<BTreeSet<_>>(),
        ids,
        "none lost"
    );

    let mut took: Vec<Duration> = published.into_iter().map(|(_, took)| took).collect();
    took.sort();
    let at = |part: usize| took[took.len() * part / 100 - 1];
    println!(
        "time until stored: median {:?}, p99 {:?}, longest {:?}",
        at(50),
        at(99),
        at(100)
    );
}
