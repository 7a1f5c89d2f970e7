//! Stored attempts, redelivery of dead letters, and automatic disabling of endpoints.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use mesh_api::webhook::webhooks_service_client::WebhooksServiceClient;
use mesh_events::EventType;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, audit_entry::Act};
use mesh_events::proto::mesh::webhook::v1::{
    GetDeliveryRequest, ListDeliveriesRequest, ListRedeliveriesRequest, RedeliverRequest,
};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

use crate::harness::{DEADLINE, Kind, Mesh, event, ids, on_both, signed};

on_both!(
    every_attempt_is_kept_and_shown,
    of_very_many_attempts_the_last_are_kept,
    dead_letters_are_delivered_again_by_id_and_by_filter,
    a_redelivery_goes_on_after_a_restart,
    a_receiver_that_wants_no_more_is_sent_no_more_until_it_is_resumed,
    the_owner_of_a_disabled_endpoint_reads_of_it_in_their_chat,
    an_endpoint_that_was_hardly_asked_is_not_paused,
    an_endpoint_to_which_nothing_arrives_is_paused,
);

fn said(status: u16, body: &str) -> CannedResponse {
    CannedResponse {
        body: body.as_bytes().to_vec(),
        ..CannedResponse::status(status)
    }
}

pub async fn client(mesh: &Mesh) -> WebhooksServiceClient<Channel> {
    let url = mesh.serve(Caller::peer("root", 1, Role::Admin)).await;
    let endpoint = Endpoint::from_shared(url).unwrap();
    WebhooksServiceClient::new(endpoint.connect().await.unwrap())
}

async fn deliveries(mesh: &Mesh, query: &str) -> Vec<Value> {
    let path = format!("/v1/webhooks/pipeline/deliveries{query}");
    let (status, answer) = mesh.call(Method::GET, &path).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer["deliveries"].as_array().unwrap().clone()
}

/// Requests a redelivery once every dead letter is published, and waits until it is done.
async fn redeliver(mesh: &Mesh, what: Value) -> Value {
    let path = "/v1/webhooks/pipeline/redeliver";
    let (status, job) = mesh
        .ask(Method::POST, path, "root", Role::Admin, &what)
        .await;
    assert_eq!(status, StatusCode::ACCEPTED, "{job}");
    wait_for_job(mesh, job["id"].as_str().unwrap()).await
}

async fn wait_for_job(mesh: &Mesh, id: &str) -> Value {
    let mut done = Value::Null;
    wait_until("the redelivery is done", DEADLINE, async || {
        let path = "/v1/webhooks/pipeline/redeliveries";
        let (_, answer) = mesh.call(Method::GET, path).await;
        let jobs = answer["redeliveries"].as_array().unwrap().clone();
        done = jobs.into_iter().find(|job| job["id"] == id).unwrap();
        done["state"] == "done"
    })
    .await;
    done
}

async fn every_attempt_is_kept_and_shown(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_next([
        said(503, "be\x07right back"),
        said(429, &"é".repeat(4_000)),
        said(404, "who?"),
    ]);
    let mesh = Mesh::start_on(kind, &[signed("pipeline", &receiver.url("/"), "")]).await;
    let event = event(EventType::JobStarted, 1);
    mesh.publish(&event).await;
    mesh.wait_for_count("pipeline", "dead", 1).await;

    let path = format!("/v1/webhooks/pipeline/deliveries/{}", event.id);
    let (status, full) = mesh.call(Method::GET, &path).await;
    assert_eq!(status, StatusCode::OK, "{full}");
    assert_eq!(
        (&full["state"], &full["cause"], &full["status"]),
        (&json!("dead"), &json!("refused"), &json!(404))
    );
    assert_eq!(full["event"]["id"], event.id.as_str());
    let tried = full["tried"].as_array().unwrap();
    let seen: Vec<_> = tried
        .iter()
        .map(|it| {
            (
                it["number"].as_u64(),
                it["status"].as_u64(),
                it["cause"].as_str(),
            )
        })
        .collect();
    let expected = [
        (Some(1), Some(503), Some("failing")),
        (Some(2), Some(429), Some("limited")),
        (Some(3), Some(404), Some("refused")),
    ];
    assert_eq!(seen, expected);
    assert_eq!(tried[0]["snippet"], "be right back", "printable");
    let long = tried[1]["snippet"].as_str().unwrap();
    assert!((1_000..=1_024).contains(&long.len()), "{}", long.len());
    assert!(tried[0]["next_at"].is_string() && tried[2]["next_at"].is_null());
    assert!(tried[2]["error"].as_str().unwrap().contains("who?"));

    // Each parameter narrows the list, and invalid values are named in the error.
    for (query, count) in [
        ("?state=dead&cause=refused&type=job.*&since=1h", 1),
        ("?type=job.started", 1),
        ("?state=waiting", 0),
        ("?cause=tls", 0),
        ("?type=node.*", 0),
        ("?type=job", 0),
        ("?until=1h", 0),
    ] {
        assert_eq!(deliveries(&mesh, query).await.len(), count, "{query}");
    }
    let path = "/v1/webhooks/pipeline/deliveries?cause=bad+luck";
    let (status, problem) = mesh.call(Method::GET, path).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    let (status, _) = mesh
        .call(Method::GET, "/v1/webhooks/pipeline/deliveries/none")
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);

    let mut client = client(&mesh).await;
    let request = GetDeliveryRequest {
        name: "pipeline".into(),
        event_id: event.id.clone(),
    };
    let twin = client.get_delivery(request).await.unwrap().into_inner();
    assert_eq!(twin.attempts.len(), 3);
    assert_eq!(twin.attempts[1].snippet, long);
    assert_eq!(twin.delivery.unwrap().cause, "refused");
    assert!(twin.event.is_some());
    let request = ListDeliveriesRequest {
        name: "pipeline".into(),
        state: "delivered".into(),
        ..Default::default()
    };
    let twin = client.list_deliveries(request).await.unwrap().into_inner();
    assert!(twin.deliveries.is_empty());
}

async fn of_very_many_attempts_the_last_are_kept(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse::status(503));
    let stubborn = signed(
        "pipeline",
        &receiver.url("/"),
        "max_attempts = 55\ncircuit_breaker = { failure_threshold = 0 }",
    );
    let stubborn = stubborn.replace("\"100ms\"", "\"1ms\"");
    let mesh = Mesh::start_on(kind, &[stubborn.replace("\"300ms\"", "\"1ms\"")]).await;
    let event = event(EventType::JobStarted, 1);
    mesh.publish(&event).await;
    mesh.wait_for_count("pipeline", "dead", 1).await;
    assert_eq!(receiver.received().len(), 55);
    let path = format!("/v1/webhooks/pipeline/deliveries/{}", event.id);
    let (_, full) = mesh.call(Method::GET, &path).await;
    assert_eq!(full["attempts"], 55);
    let tried = full["tried"].as_array().unwrap();
    let numbers: Vec<u64> = tried
        .iter()
        .map(|it| it["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (6..=55).collect::<Vec<u64>>());
}

async fn dead_letters_are_delivered_again_by_id_and_by_filter(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(said(400, "not yet"));
    let mesh = Mesh::start_on(kind, &[signed("pipeline", &receiver.url("/"), "")]).await;
    let mut audit = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.delivery")
        .await;
    let mut acts = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.webhook")
        .await;
    let events: Vec<_> = (1..=5)
        .map(|job| event(EventType::JobStarted, job))
        .collect();
    let other = event(EventType::JobSubmitted, 6);
    for event in events.iter().chain([&other]) {
        mesh.publish(event).await;
    }
    mesh.wait_for_count("pipeline", "dead", 6).await;
    let mut sent = std::collections::BTreeSet::new();
    for _ in 0..6 {
        sent.insert(audit.next().await.id);
    }
    assert_eq!(sent.len(), 6);
    receiver.answer_always(CannedResponse::status(204));

    // A single delivery by its id: the same webhook-id, and an outcome of its own.
    let job = redeliver(&mesh, json!({"ids": [events[0].id]})).await;
    assert_eq!(job["queued"], 1, "{job}");
    mesh.wait_for_count("pipeline", "delivered", 1).await;
    assert_eq!(ids(&receiver.received()).last(), Some(&events[0].id));
    let entry = audit.next().await;
    let Some(Act::Delivery(outcome)) = entry.act else {
        panic!("no delivery");
    };
    assert_eq!(
        (outcome.event_id.as_str(), outcome.outcome.as_str()),
        (events[0].id.as_str(), "delivered")
    );
    assert!(sent.insert(entry.id), "an entry of its own");
    let Some(Act::Webhook(act)) = acts.next().await.act else {
        panic!("no act");
    };
    assert_eq!(
        (act.what.as_str(), act.made_by.as_str()),
        ("redelivery", "root")
    );

    // Only dead letters are redelivered, and a selection is required.
    let ask = async |what: Value| {
        let path = "/v1/webhooks/pipeline/redeliver";
        mesh.ask(Method::POST, path, "root", Role::Admin, &what)
            .await
            .0
    };
    assert_eq!(
        ask(json!({"ids": [events[0].id]})).await,
        StatusCode::CONFLICT
    );
    assert_eq!(ask(json!({"ids": ["none"]})).await, StatusCode::NOT_FOUND);
    for wrong in [
        json!({}),
        json!({"ids": [events[1].id], "all": true}),
        json!({"all": true, "rate": 0}),
        json!({"cause": "luck"}),
    ] {
        assert_eq!(
            ask(wrong.clone()).await,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{wrong}"
        );
    }

    // By type: the other dead letter stays.
    let job = redeliver(
        &mesh,
        json!({"type": "job.started", "cause": "refused", "since": "1h"}),
    )
    .await;
    assert_eq!(job["queued"], 4, "{job}");
    mesh.wait_for_count("pipeline", "delivered", 5).await;
    assert_eq!(mesh.count("pipeline", "dead").await, 1);

    // The remaining ones, over gRPC.
    let mut client = client(&mesh).await;
    let request = RedeliverRequest {
        name: "pipeline".into(),
        all: true,
        ..Default::default()
    };
    let asked = client.redeliver(request).await.unwrap().into_inner();
    wait_for_job(&mesh, &asked.redelivery.unwrap().id).await;
    mesh.wait_for_count("pipeline", "delivered", 6).await;
    assert_eq!(receiver.received().len(), 12, "each was sent twice");
    let request = ListRedeliveriesRequest {
        name: "pipeline".into(),
    };
    let jobs = client
        .list_redeliveries(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(jobs.redeliveries.len(), 3);
}

async fn a_redelivery_goes_on_after_a_restart(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(said(400, "not yet"));
    let endpoints = [signed("pipeline", &receiver.url("/"), "")];
    let mut mesh = Mesh::start_on(kind, &endpoints).await;
    for job in 1..=20 {
        mesh.publish(&event(EventType::JobStarted, job)).await;
    }
    mesh.wait_for_count("pipeline", "dead", 20).await;
    receiver.answer_always(CannedResponse::status(204));
    // Two per second, so that the job is running when the dispatcher stops.
    let what = json!({"all": true, "rate": 2});
    let path = "/v1/webhooks/pipeline/redeliver";
    let (status, job) = mesh
        .ask(Method::POST, path, "root", Role::Admin, &what)
        .await;
    assert_eq!(status, StatusCode::ACCEPTED, "{job}");
    wait_until("it has begun", DEADLINE, async || {
        mesh.count("pipeline", "delivered").await > 0
    })
    .await;
    mesh.stop().await;
    mesh.run(&endpoints).await;
    let done = wait_for_job(&mesh, job["id"].as_str().unwrap()).await;
    assert_eq!(done["queued"], 20, "{done}");
    mesh.wait_for_count("pipeline", "delivered", 20).await;
}

async fn a_receiver_that_wants_no_more_is_sent_no_more_until_it_is_resumed(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(said(410, "moved"));
    let mesh = Mesh::start_on(kind, &[signed("pipeline", &receiver.url("/"), "")]).await;
    let mut acts = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.webhook")
        .await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    let shown = async || mesh.call(Method::GET, "/v1/webhooks/pipeline").await.1;
    wait_until("it is disabled", DEADLINE, async || {
        shown().await["state"] == "disabled"
    })
    .await;
    let reason = shown().await["reason"].to_string();
    assert!(
        reason.contains("status 410") && reason.contains("moved"),
        "{reason}"
    );
    let Some(Act::Webhook(act)) = acts.next().await.act else {
        panic!("no act");
    };
    assert_eq!((act.what.as_str(), act.made_by.as_str()), ("disabled", ""));

    // New events are queued.
    mesh.publish(&event(EventType::JobStarted, 2)).await;
    wait_until("it queues on the bus", DEADLINE, async || {
        mesh.behind("pipeline").await == 1
    })
    .await;
    assert_eq!(receiver.received().len(), 1);

    receiver.answer_always(CannedResponse::status(204));
    let (status, resumed) = mesh
        .call(Method::POST, "/v1/webhooks/pipeline/resume")
        .await;
    assert_eq!(
        (status, &resumed["state"]),
        (StatusCode::OK, &json!("active"))
    );
    mesh.wait_for_count("pipeline", "delivered", 1).await;
    assert_eq!(mesh.count("pipeline", "dead").await, 1);
}

async fn the_owner_of_a_disabled_endpoint_reads_of_it_in_their_chat(kind: Kind) {
    let (pipeline, hers, his) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    pipeline.answer_always(said(410, "moved"));
    let mesh = Mesh::for_api(kind).await;
    for (user, name, format, receiver) in [
        ("alice", "pipeline", "cloudevents", &pipeline),
        ("alice", "hers", "slack", &hers),
        ("bob", "his", "slack", &his),
    ] {
        let spec = json!({
            "name": name, "format": format, "url": receiver.url("/"), "types": ["job.started"],
        });
        let (status, made) = mesh
            .ask(Method::POST, "/v1/webhooks", user, Role::User, &spec)
            .await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
    }
    mesh.wait_for_positions(3).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    // One about the job, and one about the endpoint.
    mesh.wait_for_count("alice/hers", "delivered", 2).await;
    let sent: Vec<String> = hers
        .received()
        .iter()
        .map(|request| String::from_utf8_lossy(&request.body).into_owned())
        .filter(|body| body.contains("pipeline"))
        .collect();
    assert_eq!(sent.len(), 1, "{sent:?}");
    for part in [
        "is disabled",
        "moved",
        "smesh webhooks resume alice/pipeline",
    ] {
        assert!(sent[0].contains(part), "{part}: {}", sent[0]);
    }
    let (_, listed) = mesh
        .call(Method::GET, "/v1/webhooks/bob%2Fhis/deliveries")
        .await;
    assert_eq!(listed["deliveries"], json!([]), "{listed}");
}

/// Two failures with no attempt between them are little evidence against a receiver, however far apart they are.
async fn an_endpoint_that_was_hardly_asked_is_not_paused(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse::status(503));
    let mut mesh = Mesh::on(kind).await;
    mesh.settings = "auto_disable_after = \"1s\"".to_owned();
    mesh.run(&[signed("pipeline", &receiver.url("/"), "max_attempts = 1")])
        .await;
    let shown = async || mesh.call(Method::GET, "/v1/webhooks/pipeline").await.1;
    for job in 1..=9 {
        mesh.publish(&event(EventType::JobStarted, job)).await;
        mesh.wait_for_count("pipeline", "dead", job.into()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(shown().await["state"], "active", "after {job}");
    }
    mesh.publish(&event(EventType::JobStarted, 10)).await;
    wait_until("it is paused after ten", DEADLINE, async || {
        shown().await["state"] == "paused"
    })
    .await;
}

async fn an_endpoint_to_which_nothing_arrives_is_paused(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_next([CannedResponse::status(204)]);
    receiver.answer_always(CannedResponse::status(503));
    let mut mesh = Mesh::on(kind).await;
    mesh.settings = "auto_disable_after = \"2s\"".to_owned();
    mesh.run(&[signed(
        "pipeline",
        &receiver.url("/"),
        "max_attempts = 100000",
    )])
    .await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("pipeline", "delivered", 1).await;
    mesh.publish(&event(EventType::JobStarted, 2)).await;
    let shown = async || mesh.call(Method::GET, "/v1/webhooks/pipeline").await.1;
    wait_until("it is paused", DEADLINE, async || {
        shown().await["state"] == "paused"
    })
    .await;
    let reason = shown().await["reason"].to_string();
    assert!(reason.contains("nothing has arrived for 2s"), "{reason}");
    let waiting = deliveries(&mesh, "?state=waiting").await;
    assert_eq!(waiting.len(), 1, "what waits goes on waiting");

    // A resumed endpoint gets the full period again.
    receiver.answer_always(CannedResponse::status(204));
    mesh.call(Method::POST, "/v1/webhooks/pipeline/resume")
        .await;
    mesh.wait_for_count("pipeline", "delivered", 2).await;
    assert_eq!(shown().await["state"], "active");
}
