//! Entries scheduled by a clock that was ahead are processed once it is correct.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use mesh_events::EventType;
use mesh_testkit::{CannedResponse, WebhookReceiver};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use webhook_dispatcher::store::State;
use webhook_dispatcher::store::endpoint_rows::EndpointRows;

use crate::harness::{Kind, Mesh, endpoint, event, ids, on_both, signed};
use crate::writer::{Tables, delivery, start};

on_both!(
    what_was_planned_hours_ahead_is_sent_once_the_clock_is_right,
    what_was_written_in_the_future_is_not_kept_until_then,
);

const AHEAD: TimeDelta = TimeDelta::hours(6);

async fn what_was_planned_hours_ahead_is_sent_once_the_clock_is_right(kind: Kind) {
    let (pipeline, people) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    // The delivery waits longer than the test even without the wrong clock, and its receiver asks for a pause.
    let waits = "max_attempts = 5\nmax_retry_after = \"1h\"";
    let later = CannedResponse {
        headers: vec![("retry-after".to_owned(), "3600".to_owned())],
        ..CannedResponse::status(503)
    };
    let endpoints = [
        signed("pipeline", &pipeline.url("/"), waits),
        endpoint("chat", &people.url("/"), "format = \"slack\""),
    ];
    let mut mesh = Mesh::start_on(kind, &endpoints).await;
    pipeline.answer_next([later]);
    let events = [1, 2].map(|job| event(EventType::JobFailed, job));
    mesh.publish(&events[0]).await;
    mesh.wait_for_count("pipeline", "waiting", 1).await;
    mesh.publish(&events[1]).await;
    mesh.wait_for_count("chat", "delivered", 2).await;
    mesh.stop().await;
    assert_eq!(pipeline.received().len(), 1, "the endpoint is held");

    // State as left by a dispatcher whose clock was six hours ahead.
    let millis = AHEAD.num_milliseconds();
    let (since, until) = (Utc::now() + AHEAD, Utc::now() + AHEAD + TimeDelta::hours(1));
    let held = json!({"revision": 1, "state": {"open": null, "held": {"since": since, "until": until, "reason": "slow"}}});
    mesh.change_database(format!(
        "UPDATE deliveries SET next_at = next_at + {millis}, created_at = created_at + {millis}, began_at = began_at + {millis},
             updated_at = updated_at + {millis} WHERE state = 'waiting';
         UPDATE kept SET value = '{held}' WHERE key = 'gate' AND endpoint = 'pipeline';
         INSERT INTO missed (endpoint, first_id, count, last_at) VALUES ('chat', 'first', 3, {})",
        since.timestamp_millis()
    ))
    .await;
    mesh.run(&endpoints).await;
    mesh.wait_for_count("pipeline", "delivered", 2).await;
    let mut sent = ids(&pipeline.received()[1..]);
    sent.sort();
    let mut expected = events.map(|event| event.id);
    expected.sort();
    assert_eq!(sent, expected);
    mesh.wait_for_count("chat", "delivered", 3).await;
    let sent = people.received()[2].json()["text"].to_string();
    assert!(sent.contains("While away"), "{sent}");
}

async fn what_was_written_in_the_future_is_not_kept_until_then(kind: Kind) {
    let tables = Tables::new(kind).await;
    let (store, stop) = (&tables.store, CancellationToken::new());
    let mut ahead = delivery("one", "ahead", 2, State::Delivered);
    ahead.updated_at = start() + AHEAD;
    ahead.keep = vec![("key".to_owned(), Some("value".to_owned()))];
    if let Some(attempt) = &mut ahead.attempt {
        attempt.at = start() + AHEAD;
    }
    store.save(tables.epoch, ahead).await.unwrap();
    tables.run("UPDATE deliveries SET announced = 1").await;
    let soon = start() + Duration::from_secs(60);
    assert_eq!(store.forget(soon, &stop).await.unwrap(), 0);
    let corrected = store.correct_future(start(), &stop).await.unwrap();
    assert_eq!(corrected, 3, "the delivery, its attempt, what was kept");
    assert_eq!(store.correct_future(start(), &stop).await.unwrap(), 0);
    assert_eq!(store.forget(soon, &stop).await.unwrap(), 1);
    let rows = EndpointRows {
        store,
        endpoint: "one",
        epoch: tables.epoch,
    };
    assert_eq!(rows.provider_state("key").await.unwrap(), None);
    assert_eq!(store.attempts("one", "ahead").await.unwrap().len(), 0);
    tables.store.close().await;
}
