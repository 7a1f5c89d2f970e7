//! Retries of failing receivers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use axum::http::Method;
use chrono::{SubsecRound as _, TimeDelta, Utc};
use mesh_events::EventType;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, DeadLetter, audit_entry::Act};
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};
use standardwebhooks::Webhook;

use crate::harness::{DEADLINE, Kind, Mesh, SECRET, bytes, event, ids, on_both, signed};

on_both!(
    a_receiver_that_was_down_gets_every_event,
    a_receiver_that_always_fails_ends_in_a_dead_letter_and_others_do_not_notice,
    a_thousand_waiting_retries_hold_up_no_new_event,
);

async fn a_receiver_that_was_down_gets_every_event(kind: Kind) {
    let mut receiver = WebhookReceiver::start().await;
    let url = receiver.url("/");
    receiver.stop().await;
    let mesh = Mesh::start_on(kind, &[signed("pipeline", &url, "max_attempts = 100000")]).await;
    let mut expected = BTreeSet::new();
    for job in 1..=20 {
        let event = event(EventType::JobStarted, job);
        mesh.publish(&event).await;
        expected.insert(event.id);
    }
    let shown = async || mesh.call(Method::GET, "/v1/webhooks/pipeline").await.1;
    wait_until("the circuit is open", DEADLINE, async || {
        shown().await["circuit"]["state"] != "closed"
    })
    .await;
    let shown = shown().await;
    assert!(
        shown["counts"]["last_error"]
            .as_str()
            .unwrap()
            .contains("refused"),
        "{shown}"
    );

    receiver.restart().await;
    mesh.wait_for_count("pipeline", "delivered", 20).await;
    let received = receiver.received();
    assert_eq!(
        ids(&received).into_iter().collect::<BTreeSet<_>>(),
        expected
    );
    assert_eq!(received.len(), 20, "none twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_attempt_has_the_same_id_and_a_signature_of_its_own() {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_next([
        CannedResponse::status(503),
        CannedResponse::status(429),
        CannedResponse::status(408),
    ]);
    let mesh = Mesh::start(&[signed("pipeline", &receiver.url("/"), "")]).await;
    let event = event(EventType::JobStarted, 1);
    mesh.publish(&event).await;
    mesh.wait_for_count("pipeline", "delivered", 1).await;
    let received = receiver.received();
    assert_eq!(ids(&received), vec![event.id; 4]);
    for request in received {
        Webhook::new(SECRET)
            .unwrap()
            .verify(&request.body, &request.headers)
            .unwrap();
    }
}

async fn a_receiver_that_always_fails_ends_in_a_dead_letter_and_others_do_not_notice(kind: Kind) {
    let (bad, good) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    bad.answer_always(CannedResponse {
        body: b"out of order".to_vec(),
        ..CannedResponse::status(500)
    });
    let mesh = Mesh::start_on(
        kind,
        &[
            signed("bad", &bad.url("/"), "max_attempts = 3"),
            signed("good", &good.url("/"), ""),
        ],
    )
    .await;
    let mut letters = mesh
        .listen::<DeadLetter>("mesh.dead.webhook-dispatcher")
        .await;
    let mut audit = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.delivery")
        .await;
    let event = event(EventType::JobStarted, 1);
    mesh.publish(&event).await;
    mesh.wait_for_count("good", "delivered", 1).await;
    mesh.wait_for_count("bad", "dead", 1).await;
    assert_eq!((bad.received().len(), good.received().len()), (3, 1));

    let letter = letters.next().await;
    assert_eq!(
        (
            letter.consumer.as_str(),
            letter.attempts,
            letter.stream.as_str()
        ),
        ("webhook-dispatcher/bad", 3, "SLURM_EVENTS")
    );
    assert_eq!(letter.body, bytes(&event), "the original, unchanged");
    assert!(
        letter.reason.contains("status 500: out of order"),
        "{}",
        letter.reason
    );

    let mut outcomes = BTreeSet::new();
    for _ in 0..2 {
        let Some(Act::Delivery(delivery)) = audit.next().await.act else {
            panic!("no delivery");
        };
        assert_eq!(delivery.event_id, event.id);
        outcomes.insert((
            delivery.endpoint,
            delivery.outcome,
            delivery.attempts,
            delivery.status,
        ));
    }
    let expected = [
        ("bad".to_owned(), "dead".to_owned(), 3, 500),
        ("good".to_owned(), "delivered".to_owned(), 1, 204),
    ];
    assert_eq!(outcomes, expected.into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_be_refused_again_is_sent_once() {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::start(&[signed("pipeline", &receiver.url("/"), "")]).await;
    for (dead, status) in [400, 401, 403, 404, 422].into_iter().enumerate() {
        receiver.answer_next([CannedResponse::status(status)]);
        mesh.publish(&event(EventType::JobStarted, u32::from(status)))
            .await;
        mesh.wait_for_count("pipeline", "dead", dead as u64 + 1)
            .await;
    }
    assert_eq!(receiver.received().len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_obeyed_in_both_forms() {
    let receiver = WebhookReceiver::start().await;
    let after = |value: String| CannedResponse {
        headers: vec![("retry-after".into(), value)],
        ..CannedResponse::status(429)
    };
    // A date has whole seconds. It is late enough for the first attempt to precede it, even on a busy machine.
    let (now, wall) = (Instant::now(), Utc::now());
    let second = (wall + TimeDelta::seconds(8)).trunc_subsecs(0);
    let due = now + (second - wall).to_std().unwrap();
    let date = second.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    receiver.answer_next([after(date), after("2".into())]);
    let mesh = Mesh::start(&[signed("pipeline", &receiver.url("/"), "")]).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("pipeline", "delivered", 1).await;
    let at: Vec<_> = receiver
        .received()
        .iter()
        .map(|request| request.at)
        .collect();
    assert_eq!(at.len(), 3);
    assert!(
        at[1] + Duration::from_millis(10) >= due,
        "by date, {:?} early",
        due - at[1]
    );
    assert!(
        at[2] - at[1] >= Duration::from_millis(1_990),
        "by seconds, after {:?}",
        at[2] - at[1]
    );
}

async fn a_thousand_waiting_retries_hold_up_no_new_event(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse::status(503));
    let text = signed(
        "pipeline",
        &receiver.url("/"),
        "circuit_breaker = { failure_threshold = 0 }",
    )
    .replace("100ms", "1h")
    .replace("300ms", "1h");
    let mesh = Mesh::start_on(kind, &[text]).await;
    let events: Vec<_> = (1..=1_000)
        .map(|job| event(EventType::JobStarted, job))
        .collect();
    mesh.bus
        .publish_all(events, &Default::default())
        .await
        .unwrap();
    wait_until("1000 first attempts", DEADLINE, async || {
        receiver.received().len() >= 1_000
    })
    .await;
    receiver.answer_always(CannedResponse::status(204));
    mesh.publish(&event(EventType::JobStarted, 2_000)).await;
    wait_until("the new event", DEADLINE, async || {
        mesh.count("pipeline", "delivered").await >= 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_says_what_success_is_and_when_to_give_up() {
    let (choosy, down) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    choosy.answer_next([CannedResponse::status(200), CannedResponse::status(302)]);
    down.answer_always(CannedResponse::status(503));
    let brief = "give_up_after = \"1s\"\nmax_attempts = 100000\ncircuit_breaker = { failure_threshold = 0 }";
    let mesh = Mesh::start(&[
        signed("choosy", &choosy.url("/"), "success = [\"202\", \"3xx\"]"),
        signed("brief", &down.url("/"), brief),
    ])
    .await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("choosy", "delivered", 1).await;
    assert_eq!(choosy.received().len(), 2, "200 was no success");

    mesh.wait_for_count("brief", "dead", 1).await;
    let said = mesh.call(Method::GET, "/v1/webhooks/brief").await.1;
    let error = said["counts"]["last_error"].as_str().unwrap();
    assert!(error.contains("status 503 (given up after 1s"), "{error}");
}
