//! Which events are delivered, and to which endpoints.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::Method;
use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::{Event, EventType, cloudevents, subject};
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};
use standardwebhooks::Webhook;

use crate::harness::{DEADLINE, Kind, Mesh, SECRET, bytes, endpoint, event, ids, on_both, signed};

on_both!(
    a_delivery_is_a_signed_cloudevent_with_the_id_of_the_event,
    each_endpoint_gets_what_its_filter_says,
    an_event_that_is_on_the_bus_twice_is_sent_once,
    an_incident_is_closed_after_it_was_opened,
);

async fn a_delivery_is_a_signed_cloudevent_with_the_id_of_the_event(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::start_on(kind, &[signed("pipeline", &receiver.url("/hook?x=1"), "")]).await;
    let event = event(EventType::JobCompleted, 7);
    mesh.publish(&event).await;
    wait_until("a delivery", DEADLINE, async || {
        receiver.received().len() == 1
    })
    .await;

    let request = &receiver.received()[0];
    Webhook::new(SECRET)
        .unwrap()
        .verify(&request.body, &request.headers)
        .expect("the signature verifies");
    assert_eq!(request.path, "/hook?x=1");
    assert_eq!(
        request.header("content-type"),
        "application/cloudevents+json"
    );
    assert_eq!(request.header("webhook-id"), event.id);
    let body = request.json();
    assert_eq!(
        (&body["type"], &body["id"]),
        (
            &"org.slurm-mesh.job.completed.v1".into(),
            &event.id.clone().into()
        )
    );
    assert_eq!(
        cloudevents::from_json(&body).unwrap(),
        event,
        "the event arrives whole"
    );
    mesh.wait_for_count("pipeline", "delivered", 1).await;

    let mut forged = request.body.clone();
    forged[10] ^= 1;
    assert!(
        Webhook::new(SECRET)
            .unwrap()
            .verify(&forged, &request.headers)
            .is_err(),
        "and would not verify if it were changed"
    );
}

async fn each_endpoint_gets_what_its_filter_says(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::start_on(
        kind,
        &[
            signed(
                "ends",
                &receiver.url("/ends"),
                "types = [\"job.completed\", \"job.failed\"]",
            ),
            signed(
                "bob",
                &receiver.url("/bob"),
                "types = [\"job.*\"]\nusers = [\"bob\"]",
            ),
            signed(
                "gpu",
                &receiver.url("/gpu"),
                "types = [\"job.*\", \"cost.*\"]\npartitions = [\"gpu\"]",
            ),
            signed("all", &receiver.url("/all"), ""),
        ],
    )
    .await;
    let started = event(EventType::JobStarted, 1);
    let completed = event(EventType::JobCompleted, 1);
    let mut bobs = event(EventType::JobStarted, 2);
    bobs.owner.as_mut().unwrap().user = "bob".into();
    let mut pending = mesh_testkit::fixtures::job(3);
    pending.partition = "debug,gpu".into();
    let pending = mesh_testkit::fixtures::job_event(EventType::JobHeld, pending);
    let mut cost = mesh_testkit::fixtures::job(4);
    cost.partition = "gpu".into();
    let cost = mesh_testkit::fixtures::job_event(EventType::CostFinalized, cost);
    let baseline = event(EventType::JobBaseline, 5);
    for event in [&started, &completed, &bobs, &pending, &cost, &baseline] {
        mesh.publish(event).await;
    }
    mesh.wait_for_count("all", "delivered", 5).await;
    mesh.wait_for_count("gpu", "delivered", 2).await;
    mesh.wait_for_count("bob", "delivered", 1).await;
    mesh.wait_for_count("ends", "delivered", 1).await;

    let at = |path: &str| -> BTreeSet<String> {
        let requests = receiver.received();
        requests
            .iter()
            .filter(|request| request.path == path)
            .map(|request| request.header("webhook-id").to_owned())
            .collect()
    };
    let of = |events: &[&Event]| -> BTreeSet<String> {
        events.iter().map(|event| event.id.clone()).collect()
    };
    assert_eq!(at("/ends"), of(&[&completed]));
    assert_eq!(at("/bob"), of(&[&bobs]));
    assert_eq!(at("/gpu"), of(&[&pending, &cost]));
    assert_eq!(
        at("/all"),
        of(&[&started, &completed, &bobs, &pending, &cost]),
        "everything but baselines"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_endpoint_begins_with_new_events_and_a_removed_one_leaves_no_consumer() {
    let receiver = WebhookReceiver::start().await;
    let old = signed("old", &receiver.url("/old"), "");
    let mut mesh = Mesh::start(std::slice::from_ref(&old)).await;
    let before = event(EventType::JobStarted, 1);
    mesh.publish(&before).await;
    mesh.wait_for_count("old", "delivered", 1).await;
    mesh.stop().await;

    mesh.run(&[old, signed("new", &receiver.url("/new"), "")])
        .await;
    let after = event(EventType::JobCompleted, 1);
    mesh.publish(&after).await;
    mesh.wait_for_count("new", "delivered", 1).await;
    mesh.wait_for_count("old", "delivered", 2).await;
    let new: Vec<_> = receiver
        .received()
        .into_iter()
        .filter(|request| request.path == "/new")
        .collect();
    assert_eq!(ids(&new), [after.id]);
    mesh.stop().await;

    mesh.run(&[signed("new", &receiver.url("/new"), "")]).await;
    mesh.wait_for_positions(1).await;
    assert!(mesh.positions().await.contains_key("new"));
}

async fn an_event_that_is_on_the_bus_twice_is_sent_once(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::start_on(kind, &[signed("pipeline", &receiver.url("/"), "")]).await;
    let (twice, last) = (
        event(EventType::JobStarted, 1),
        event(EventType::JobCompleted, 1),
    );
    mesh.publish(&twice).await;
    mesh.wait_for_count("pipeline", "delivered", 1).await;
    // Simulates a publish outside the stream's duplicate window: the same event under another message id.
    mesh.bus
        .publish_raw(subject::of(&twice).unwrap(), "another", bytes(&twice))
        .await
        .unwrap();
    mesh.publish(&last).await;
    mesh.wait_for_count("pipeline", "delivered", 2).await;
    assert_eq!(ids(&receiver.received()), [twice.id, last.id]);
}

async fn an_incident_is_closed_after_it_was_opened(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse {
        delay: Duration::from_millis(300),
        ..CannedResponse::status(202)
    });
    let more = "format = { type = \"pagerduty\", routing_key = \"key\" }\ntypes = [\"job.*\"]";
    let mesh = Mesh::start_on(kind, &[endpoint("alerts", &receiver.url("/"), more)]).await;
    let failed = event(EventType::JobFailed, 7);
    // An end of the next run: each run has one end.
    let completed = Event {
        id: event(EventType::JobCompleted, 8).id,
        ..event(EventType::JobCompleted, 7)
    };
    for event in [&failed, &completed] {
        mesh.publish(event).await;
    }
    mesh.wait_for_count("alerts", "delivered", 2).await;
    let mut tried = Vec::new();
    for event in [&failed, &completed] {
        let path = format!("/v1/webhooks/alerts/deliveries/{}", event.id);
        let delivery = mesh.call(Method::GET, &path).await.1;
        let attempt = delivery["tried"][0].clone();
        let at: DateTime<Utc> = attempt["at"].as_str().unwrap().parse().unwrap();
        tried.push((
            at,
            TimeDelta::milliseconds(attempt["latency_ms"].as_i64().unwrap()),
        ));
    }
    let [(opened, took), (closed, _)] = tried[..] else {
        panic!("{tried:?}")
    };
    assert!(closed >= opened + took, "one after the other: {tried:?}");
    let actions = receiver
        .received()
        .iter()
        .map(|it| it.json()["event_action"].to_string())
        .collect::<Vec<_>>();
    assert_eq!(actions, ["\"trigger\"", "\"resolve\""]);
}
