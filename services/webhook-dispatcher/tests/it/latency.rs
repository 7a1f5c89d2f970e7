//! A measurement: event on the bus → POST received, at a thousand a second.
//!
//! `cargo test --release -p webhook-dispatcher --test it -- --ignored --nocapture latency`

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use mesh_events::EventType;
use mesh_testkit::{Receiver, wait_until};
use tokio::task::JoinSet;

use crate::harness::{DEADLINE, Mesh, event, signed};

const RATE: u32 = 1_000;
const SECONDS: u32 = 5;

#[ignore = "a measurement of an optimised build"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latency_at_a_thousand_events_a_second() {
    let receiver = Receiver::start().await;
    let mesh = Mesh::start(&[signed("pipeline", &receiver.url("/"), "")]).await;
    let mut publishing: JoinSet<(String, Instant)> = JoinSet::new();
    let ticks = futures_util::stream::iter(1..=RATE * SECONDS);
    let mut ticks = std::pin::pin!(ticks);
    let start = Instant::now();
    while let Some(n) = ticks.next().await {
        tokio::time::sleep_until((start + Duration::from_secs(1) / RATE * n).into()).await;
        let (bus, event) = (mesh.bus.clone(), event(EventType::JobStarted, n));
        publishing.spawn(async move {
            bus.publish(&event).await.unwrap();
            (event.id, Instant::now())
        });
    }
    let stored: HashMap<String, Instant> = publishing.join_all().await.into_iter().collect();
    wait_until("all deliveries", DEADLINE, async || {
        receiver.received().len() >= stored.len()
    })
    .await;
    let mut latencies: Vec<Duration> = receiver
        .received()
        .iter()
        .map(|request| {
            request
                .at
                .saturating_duration_since(stored[request.header("webhook-id")])
        })
        .collect();
    assert_eq!(latencies.len(), stored.len(), "none twice");
    latencies.sort();
    let at = |percent: usize| latencies[latencies.len() * percent / 100];
    println!(
        "stored on the bus -> POST received, {} events at {RATE}/s: p50 {:?}, p99 {:?}, max {:?}",
        stored.len(),
        at(50),
        at(99),
        latencies[latencies.len() - 1]
    );
}
