//! Endpoints that are not sent to for a while: open circuit, pause requested by the receiver, or exhausted rate
//! limit.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use chrono::{DateTime, Utc};
use mesh_events::EventType;
use mesh_runtime::api::Role;
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};
use serde_json::{Value, json};

use crate::harness::{DEADLINE, Kind, Mesh, endpoint, event, ids, on_both, signed};

on_both!(
    an_open_circuit_lets_one_probe_through_and_keeps_the_rest,
    events_of_an_open_circuit_are_read_when_it_closes,
    an_open_circuit_stays_open_over_a_restart_until_somebody_resumes,
    who_asks_for_a_pause_gets_it_for_the_whole_endpoint,
    github_asks_for_a_pause_with_403,
    a_pause_may_have_fractions_of_a_second,
    after_a_pause_one_probe_goes_and_its_success_lets_the_rest_follow,
    no_receiver_asks_for_a_longer_pause_than_the_endpoint_allows,
    a_limited_endpoint_gets_its_events_in_order_and_at_its_pace,
);

/// A sequential endpoint with the same wait before retries and before probes.
fn patient(receiver: &WebhookReceiver, wait: &str, more: &str) -> String {
    let more = format!(
        "concurrency = 1\ncircuit_breaker = {{ failure_threshold = 3 }}\nmax_attempts = 1000\n{more}"
    );
    signed("pipeline", &receiver.url("/"), &more)
        .replace("\"100ms\"", &format!("{wait:?}"))
        .replace("\"300ms\"", &format!("{wait:?}"))
}

async fn shown(mesh: &Mesh) -> Value {
    mesh.call(Method::GET, "/v1/webhooks/pipeline").await.1
}

async fn publish(mesh: &Mesh, jobs: std::ops::RangeInclusive<u32>) -> Vec<String> {
    let mut published = Vec::new();
    for job in jobs {
        let event = event(EventType::JobStarted, job);
        mesh.publish(&event).await;
        published.push(event.id);
    }
    published
}

/// Attempts of the waiting deliveries.
async fn attempts(mesh: &Mesh) -> Vec<u64> {
    let path = "/v1/webhooks/pipeline/deliveries?state=waiting&limit=500";
    let (_, answer) = mesh.call(Method::GET, path).await;
    let waiting = answer["deliveries"].as_array().unwrap().iter();
    waiting.map(|it| it["attempts"].as_u64().unwrap()).collect()
}

async fn an_open_circuit_lets_one_probe_through_and_keeps_the_rest(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse::status(503));
    let mesh = Mesh::start_on(kind, &[patient(&receiver, "2s", "")]).await;
    publish(&mesh, 1..=3).await;
    wait_until("the circuit is open", DEADLINE, async || {
        shown(&mesh).await["circuit"]["state"] != "closed"
    })
    .await;
    let circuit = shown(&mesh).await["circuit"].clone();
    assert!(
        circuit["reason"].as_str().unwrap().contains("status 503")
            && circuit["since"].is_string()
            && circuit["probe_at"].is_string(),
        "{circuit}"
    );
    let later = publish(&mesh, 11..=30).await;
    wait_until("two probes", DEADLINE, async || {
        receiver.received().len() >= 5
    })
    .await;
    receiver.answer_always(CannedResponse::status(204));
    mesh.wait_for_count("pipeline", "delivered", 23).await;
    assert_eq!(
        shown(&mesh).await["circuit"],
        json!({"state": "closed", "reason": ""})
    );

    let received = receiver.received();
    for pair in received[2..5].windows(2) {
        let wait = pair[1].at - pair[0].at;
        assert!(wait >= Duration::from_secs(1), "a probe after {wait:?}");
    }
    let mut first = ids(&received);
    first.retain(|id| later.contains(id));
    let mut seen = std::collections::HashSet::new();
    first.retain(|id| seen.insert(id.clone()));
    assert_eq!(first, later, "in the order they came");
}

async fn events_of_an_open_circuit_are_read_when_it_closes(kind: Kind) {
    let (receiver, healthy) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    receiver.answer_always(CannedResponse::status(503));
    let one = signed("healthy", &healthy.url("/"), "");
    let mesh = Mesh::start_on(kind, &[patient(&receiver, "1h", ""), one]).await;
    publish(&mesh, 1..=3).await;
    wait_until("the circuit is open", DEADLINE, async || {
        shown(&mesh).await["circuit"]["state"] == "open"
    })
    .await;
    // More than its queue takes.
    let later = publish(&mesh, 11..=210).await;
    mesh.wait_for_count("healthy", "delivered", 203).await;
    assert_eq!(
        mesh.count("pipeline", "waiting").await,
        3,
        "none is written"
    );
    assert!(mesh.behind("pipeline").await >= 200, "they are on the bus");

    receiver.answer_always(CannedResponse::status(204));
    mesh.call(Method::POST, "/v1/webhooks/pipeline/resume")
        .await;
    mesh.wait_for_count("pipeline", "delivered", 200).await;
    assert_eq!(ids(&receiver.received())[3..], later, "in order, each once");
    assert_eq!(mesh.count("pipeline", "waiting").await, 3);
}

async fn an_open_circuit_stays_open_over_a_restart_until_somebody_resumes(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse::status(503));
    let endpoints = [patient(&receiver, "1h", "")];
    let mut mesh = Mesh::start_on(kind, &endpoints).await;
    publish(&mesh, 1..=3).await;
    wait_until("the circuit is open", DEADLINE, async || {
        shown(&mesh).await["circuit"]["state"] == "open"
    })
    .await;
    let circuit = shown(&mesh).await["circuit"].clone();
    mesh.stop().await;
    mesh.run(&endpoints).await;
    assert_eq!(shown(&mesh).await["circuit"], circuit);
    publish(&mesh, 4..=4).await;
    assert_eq!(receiver.received().len(), 3);
    assert_eq!(attempts(&mesh).await, [1, 1, 1], "none was used up");

    receiver.answer_always(CannedResponse::status(204));
    let path = "/v1/webhooks/pipeline/resume";
    let (status, resumed) = mesh.call(Method::POST, path).await;
    assert_eq!(
        (status, &resumed["circuit"]["state"]),
        (StatusCode::OK, &json!("closed")),
        "{resumed}"
    );
    mesh.wait_for_count("pipeline", "delivered", 1).await;
}

async fn who_asks_for_a_pause_gets_it_for_the_whole_endpoint(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_next([CannedResponse {
        headers: vec![("retry-after".into(), "3600".into())],
        ..CannedResponse::status(429)
    }]);
    let mesh = Mesh::start_on(kind, &[patient(&receiver, "10ms", "")]).await;
    publish(&mesh, 1..=1).await;
    wait_until("the endpoint is held", DEADLINE, async || {
        shown(&mesh).await["held"]["until"].is_string()
    })
    .await;
    assert_eq!(shown(&mesh).await["circuit"]["state"], "closed");
    publish(&mesh, 2..=3).await;
    assert_eq!(receiver.received().len(), 1);
    let path = "/v1/webhooks/pipeline/resume";
    let (_, resumed) = mesh.call(Method::POST, path).await;
    assert!(resumed["held"].is_null(), "{resumed}");
    mesh.wait_for_count("pipeline", "delivered", 2).await;
    assert_eq!(
        attempts(&mesh).await,
        [1],
        "it comes when its receiver said"
    );
}

async fn github_asks_for_a_pause_with_403(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_next([CannedResponse {
        headers: vec![("retry-after".into(), "3600".into())],
        ..CannedResponse::status(403)
    }]);
    let format =
        "format = { type = \"github\", token = \"t\", repository = \"a/b\" }\nconcurrency = 1";
    let mesh = Mesh::start_on(kind, &[endpoint("pipeline", &receiver.url("/"), format)]).await;
    publish(&mesh, 1..=3).await;
    // Each waits for its cost before.
    mesh.wait_for_count("pipeline", "waiting", 3).await;
    wait_until("the endpoint is held", DEADLINE, async || {
        shown(&mesh).await["held"]["until"].is_string()
    })
    .await;
    assert_eq!(receiver.received().len(), 1, "the others wait, too");
    assert_eq!(shown(&mesh).await["circuit"]["state"], "closed");
    let mut attempts = attempts(&mesh).await;
    attempts.sort_unstable();
    assert_eq!(attempts, [0, 0, 1]);
}

async fn a_pause_may_have_fractions_of_a_second(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_next([CannedResponse {
        headers: vec![("retry-after".into(), "1800.5".into())],
        ..CannedResponse::status(429)
    }]);
    let endpoints = [signed("pipeline", &receiver.url("/"), "concurrency = 1")];
    let mesh = Mesh::start_on(kind, &endpoints).await;
    publish(&mesh, 1..=3).await;
    mesh.wait_for_count("pipeline", "waiting", 1).await;
    assert_eq!(receiver.received().len(), 1, "the others wait, too");
    let held = shown(&mesh).await["held"].clone();
    let time = |key: &str| {
        held[key]
            .as_str()
            .unwrap()
            .parse::<DateTime<Utc>>()
            .unwrap()
    };
    let asked = time("until") - time("since");
    assert!(
        (1_800_400..=1_800_600).contains(&asked.num_milliseconds()),
        "{held}"
    );
}

async fn after_a_pause_one_probe_goes_and_its_success_lets_the_rest_follow(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let busy = || CannedResponse {
        headers: vec![("retry-after".into(), "1.5".into())],
        ..CannedResponse::status(429)
    };
    let slow = CannedResponse {
        delay: Duration::from_secs(1),
        ..CannedResponse::status(204)
    };
    receiver.answer_next([busy(), busy(), slow]);
    let endpoints = [signed("pipeline", &receiver.url("/"), "concurrency = 16")];
    let mesh = Mesh::start_on(kind, &endpoints).await;
    publish(&mesh, 1..=1).await;
    wait_until("the endpoint is held", DEADLINE, async || {
        shown(&mesh).await["held"]["until"].is_string()
    })
    .await;
    publish(&mesh, 2..=20).await;
    mesh.wait_for_count("pipeline", "delivered", 20).await;
    let received = receiver.received();
    assert_eq!(received.len(), 22);
    // The probe is refused as well, and the next response is late: meanwhile nothing else is sent.
    for (n, at_least) in [(1, 1_499), (2, 1_499), (3, 950)] {
        let wait = received[n].at - received[n - 1].at;
        assert!(wait >= Duration::from_millis(at_least), "{n}: {wait:?}");
    }
}

async fn no_receiver_asks_for_a_longer_pause_than_the_endpoint_allows(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let busy = || CannedResponse {
        headers: vec![("retry-after".into(), "86400".into())],
        ..CannedResponse::status(429)
    };
    receiver.answer_next([busy()]);
    let more = "max_retry_after = \"2s\"";
    let mut mesh = Mesh::start_on(kind, &[signed("pipeline", &receiver.url("/"), more)]).await;
    publish(&mesh, 1..=2).await;
    mesh.wait_for_count("pipeline", "delivered", 2).await;
    assert_eq!(shown(&mesh).await["max_retry_after"], "2s");

    // The default is one hour.
    mesh.stop().await;
    mesh.run(&[signed("pipeline", &receiver.url("/"), "")])
        .await;
    receiver.answer_next([busy()]);
    publish(&mesh, 3..=3).await;
    wait_until("the endpoint is held", DEADLINE, async || {
        shown(&mesh).await["held"]["until"].is_string()
    })
    .await;
    let held = shown(&mesh).await["held"].clone();
    let time = |key: &str| -> DateTime<Utc> { held[key].as_str().unwrap().parse().unwrap() };
    let hours = (time("until") - time("since")).num_seconds();
    assert!((3_598..=3_600).contains(&hours), "{held}");
}

async fn a_limited_endpoint_gets_its_events_in_order_and_at_its_pace(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::for_api(kind).await;
    let as_root = async |method, path: &str, body: Value| {
        let (status, answer) = mesh.ask(method, path, "root", Role::Admin, &body).await;
        assert!(status.is_success(), "{answer}");
    };
    let spec = json!({
        "name": "pipeline", "url": receiver.url("/"), "concurrency": 1, "rate_limit": "6/h", "burst": 2,
    });
    as_root(Method::POST, "/v1/webhooks", spec).await;
    mesh.wait_for_positions(1).await;
    let published = publish(&mesh, 1..=10).await;
    // The burst.
    mesh.wait_for_count("pipeline", "delivered", 2).await;
    assert_eq!(mesh.count("pipeline", "waiting").await, 0);
    assert!(
        mesh.behind("root/pipeline").await >= 8,
        "they are on the bus"
    );

    let patch = json!({"rate_limit": "10/s", "burst": 1});
    as_root(Method::PATCH, "/v1/webhooks/pipeline", patch).await;
    mesh.wait_for_count("pipeline", "delivered", 10).await;
    let received = receiver.received();
    assert_eq!(ids(&received), published);
    let took = received[9].at - received[2].at;
    assert!(
        took >= Duration::from_millis(500),
        "7 intervals in {took:?}"
    );
}
