//! Restarts of the dispatcher or the bus.

use std::collections::BTreeSet;

use mesh_events::EventType;
use mesh_testkit::{WebhookReceiver, wait_until};

use crate::harness::{DEADLINE, Kind, Mesh, event, ids, on_both, signed};

on_both!(
    a_restart_loses_no_waiting_delivery,
    deliveries_resume_when_nats_comes_back,
    retries_go_on_while_nats_is_away,
);

async fn a_restart_loses_no_waiting_delivery(kind: Kind) {
    let mut receiver = WebhookReceiver::start().await;
    let url = receiver.url("/");
    receiver.stop().await;
    let more = "max_attempts = 100000\ncircuit_breaker = { failure_threshold = 0 }";
    let endpoints = [signed("pipeline", &url, more)];
    let mut mesh = Mesh::start_on(kind, &endpoints).await;
    let mut expected = BTreeSet::new();
    for job in 1..=10 {
        let event = event(EventType::JobStarted, job);
        mesh.publish(&event).await;
        expected.insert(event.id);
    }
    mesh.wait_for_count("pipeline", "waiting", 10).await;
    mesh.stop().await;
    // Events published in the meantime stay on the bus.
    let meanwhile = event(EventType::JobStarted, 11);
    mesh.publish(&meanwhile).await;
    expected.insert(meanwhile.id);
    receiver.restart().await;
    assert!(receiver.received().is_empty());

    mesh.run(&endpoints).await;
    mesh.wait_for_count("pipeline", "delivered", 11).await;
    let received = ids(&receiver.received());
    assert_eq!(received.len(), 11, "none twice");
    assert_eq!(received.into_iter().collect::<BTreeSet<_>>(), expected);
}

async fn deliveries_resume_when_nats_comes_back(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::start_on(kind, &[signed("pipeline", &receiver.url("/"), "")]).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("pipeline", "delivered", 1).await;
    mesh.nats.kill();
    mesh.nats.restart().await;
    mesh.publish(&event(EventType::JobStarted, 2)).await;
    mesh.wait_for_count("pipeline", "delivered", 2).await;
    assert_eq!(
        ids(&receiver.received())
            .into_iter()
            .collect::<BTreeSet<_>>()
            .len(),
        2
    );
}

async fn retries_go_on_while_nats_is_away(kind: Kind) {
    let mut receiver = WebhookReceiver::start().await;
    let url = receiver.url("/");
    receiver.stop().await;
    let endpoints = [signed("pipeline", &url, "max_attempts = 100000")];
    let mut mesh = Mesh::start_on(kind, &endpoints).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("pipeline", "waiting", 1).await;
    mesh.stop().await;
    mesh.nats.kill();
    receiver.restart().await;
    mesh.start_dispatcher(&endpoints).await;
    wait_until("a delivery without NATS", DEADLINE, async || {
        receiver.received().len() == 1
    })
    .await;
}

/// Events published before an endpoint has a position may not reach it.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_ready_once_every_endpoint_listens() {
    let endpoints: Vec<String> = (1..=40)
        .map(|n| signed(&format!("pipeline-{n}"), "http://127.0.0.1:9/", ""))
        .collect();
    let mut mesh = Mesh::without_dispatcher().await;
    mesh.start_dispatcher(&endpoints).await;
    wait_until("it is ready", DEADLINE, async || mesh.is_ready()).await;
    assert_eq!(mesh.positions().await.len(), 40);
    mesh.stop().await;
}
