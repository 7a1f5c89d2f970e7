//! Events replayed to an endpoint.

use mesh_bus::ReplayedEvent;
use mesh_events::{Event, EventType, subject};
use mesh_testkit::{ReceivedRequest, WebhookReceiver, wait_until};
use prost::Message as _;
use standardwebhooks::Webhook;

use crate::harness::{DEADLINE, Kind, Mesh, SECRET, event, on_both, signed};

on_both!(
    what_was_delivered_is_delivered_again_once_for_each_replay,
    replays_are_found_whenever_they_come,
);

pub async fn replay(mesh: &Mesh, id: &str, endpoint: &str, events: &[&Event]) {
    let events = events.iter().map(|event| ReplayedEvent {
        original: subject::of(event).unwrap(),
        event: (*event).clone(),
        body: event.encode_to_vec().into(),
    });
    mesh.bus
        .publish_replayed(id, Some(endpoint), events.collect())
        .await
        .unwrap();
}

/// Publishes outside JetStream's duplicate window of ten minutes, by leaving out the message id.
async fn once_more_without_an_id(mesh: &Mesh, id: &str, event: &Event) {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("ce-replayid", id);
    let subject = subject::replay(id, Some("a.b"), &subject::of(event).unwrap());
    let jetstream = async_nats::jetstream::new(client);
    let published = jetstream
        .publish_with_headers(subject, headers, event.encode_to_vec().into())
        .await;
    assert!(!published.unwrap().await.unwrap().duplicate);
}

async fn what_was_delivered_is_delivered_again_once_for_each_replay(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let of = |name: &str| {
        signed(
            name,
            &receiver.url(&format!("/{name}")),
            "types = [\"job.completed\"]\nmax_event_age = \"1h\"",
        )
    };
    let mut mesh = Mesh::start_on(kind, &[of("a.b"), of("other")]).await;
    let (done, started) = (
        event(EventType::JobCompleted, 7),
        event(EventType::JobStarted, 7),
    );
    mesh.publish(&done).await;
    mesh.wait_for_count("a.b", "delivered", 1).await;
    mesh.wait_for_count("other", "delivered", 1).await;

    // The filter applies, the maximum age does not, and only the target endpoint receives the replay.
    let mut old = event(EventType::JobCompleted, 8);
    old.occurred_at = Some(mesh_events::timestamp(
        chrono::Utc::now() - chrono::TimeDelta::days(9),
    ));
    replay(&mesh, "r1", "a.b", &[&started, &done, &old]).await;
    mesh.wait_for_count("a.b", "delivered", 3).await;
    let again = |receiver: &WebhookReceiver| -> Vec<ReceivedRequest> {
        let mut all = receiver.received();
        all.retain(|request| request.headers.contains_key("webhook-replay"));
        all
    };
    let requests = again(&receiver);
    assert_eq!(requests.len(), 2);
    for event in [&done, &old] {
        let of_event = |request: &&ReceivedRequest| request.header("webhook-id") == event.id;
        let request = requests.iter().find(of_event).expect("the event's own id");
        assert_eq!(request.path, "/a.b");
        assert_eq!(request.header("webhook-replay"), "r1");
        assert_eq!(request.json()["replayid"], "r1");
        assert_eq!(request.json()["id"], event.id);
        Webhook::new(SECRET)
            .unwrap()
            .verify(&request.body, &request.headers)
            .expect("the signature verifies");
    }

    // A restarted dispatcher finds replays requested in the meantime, and recognises completed ones.
    mesh.stop().await;
    once_more_without_an_id(&mesh, "r1", &done).await;
    replay(&mesh, "r2", "a.b", &[&done]).await;
    mesh.run(&[of("a.b"), of("other")]).await;
    wait_until("the second replay", DEADLINE, async || {
        again(&receiver)
            .iter()
            .any(|request| request.header("webhook-replay") == "r2")
    })
    .await;
    mesh.wait_for_count("a.b", "delivered", 4).await;
    let first = again(&receiver)
        .iter()
        .filter(|request| request.header("webhook-replay") == "r1")
        .count();
    assert_eq!(first, 2, "each once for a replay");
}

async fn replays_are_found_whenever_they_come(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let endpoints = ["one", "two"].map(|name| signed(name, &receiver.url("/"), ""));
    let mut mesh = Mesh::start_on(kind, &endpoints).await;
    let event = event(EventType::JobCompleted, 7);
    let sent = async |mesh: &Mesh, id: &str, endpoint: &str, count: u64| {
        replay(mesh, id, endpoint, &[&event]).await;
        mesh.wait_for_count(endpoint, "delivered", count).await;
    };
    sent(&mesh, "r1", "one", 1).await;

    // The listener for replays survives a restart of NATS.
    mesh.nats.kill();
    mesh.nats.restart().await;
    sent(&mesh, "r2", "two", 1).await;
    sent(&mesh, "r3", "one", 2).await;

    // It also finds replays requested while the dispatcher was stopped.
    mesh.stop().await;
    replay(&mesh, "r4", "two", &[&event]).await;
    mesh.run(&endpoints).await;
    mesh.wait_for_count("two", "delivered", 2).await;
}
