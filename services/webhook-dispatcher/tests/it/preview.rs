//! Previews in every format: requests are displayed and nothing is sent.

use axum::http::{Method, StatusCode};
use mesh_api::webhook::webhooks_service_client::WebhooksServiceClient;
use mesh_events::proto::mesh::webhook::v1::PreviewWebhookRequest;
use mesh_events::{EventType, cloudevents};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::WebhookReceiver;
use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::harness::{Mesh, endpoint, event, signed};

const FORMATS: [(&str, &str); 8] = [
    ("cloudevents", "format = \"cloudevents\""),
    ("slack", "format = \"slack\""),
    ("teams", "format = \"teams\""),
    ("discord", "format = \"discord\""),
    (
        "slack-api",
        "format = { type = \"slack-api\", token = \"xoxb-hunter2\", direct = true, channel = \"#jobs\" }",
    ),
    (
        "pagerduty",
        "format = { type = \"pagerduty\", routing_key = \"hunter2hunter2hunter2hunter2hunt\" }\ntypes = [\"job.*\", \"node.*\"]",
    ),
    (
        "github",
        "format = { type = \"github\", token = \"hunter2\", repository = \"physics/pipeline\" }",
    ),
    (
        "template",
        "format = { type = \"template\", body = '{\"text\": {{ id ~ \" \" ~ type }}}' }",
    ),
];

async fn ask(mesh: &Mesh, draft: &Value) -> (StatusCode, Value) {
    let path = "/v1/webhooks/preview";
    mesh.ask(Method::POST, path, "root", Role::Admin, draft)
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_format_shows_what_it_would_send_and_sends_nothing() {
    let receiver = WebhookReceiver::start().await;
    let endpoints = FORMATS.map(|(name, format)| {
        let url = receiver.url("/hunter2?key=hunter2");
        match name {
            "cloudevents" | "template" => signed(name, &url, format),
            _ => endpoint(name, &url, format),
        }
    });
    let mesh = Mesh::start(&endpoints).await;
    let given = event(EventType::JobFailed, 4711);
    let json = cloudevents::to_json(&given).unwrap();
    for (name, _) in FORMATS {
        for (draft, mark) in [
            (json!({"webhook": name, "event": json}), "4711"),
            (json!({"webhook": name, "type": "job.failed"}), "1230_4"),
            (json!({"webhook": name}), "1230_4"),
        ] {
            let (status, answer) = ask(&mesh, &draft).await;
            assert_eq!(status, StatusCode::OK, "{name}: {answer}");
            let requests = answer["requests"].as_array().unwrap();
            let last = requests.last().unwrap();
            let body = last["body"].as_str().unwrap();
            let body: Value = serde_json::from_str(body).unwrap();
            assert!(body.is_object() && last["content_type"].as_str().unwrap().contains("json"));
            // The template writes the event's id, the others name the job.
            let mark = if name == "template" {
                answer["event_id"].as_str().unwrap()
            } else {
                mark
            };
            assert!(body.to_string().contains(mark), "{name}: {body}");
            assert_eq!(answer["matches"], true, "{name}: {answer}");
            // The path of these formats is not a secret.
            let path = if matches!(
                name,
                "cloudevents" | "template" | "slack-api" | "pagerduty" | "github"
            ) {
                "/hunter2"
            } else {
                "\0"
            };
            let shown = answer.to_string().replace(path, "");
            assert!(!shown.contains("hunter2"), "{name}: {shown}");
            let direct = name == "slack-api" && draft.get("event").is_none();
            assert_eq!(
                requests.len(),
                if direct { 3 } else { 1 },
                "{name}: {answer}"
            );
        }
        for kind in EventType::ALL {
            let kind = kind.to_string();
            let (status, answer) = ask(&mesh, &json!({"webhook": name, "type": kind})).await;
            let silent = status == StatusCode::UNPROCESSABLE_ENTITY
                && answer["detail"]
                    .as_str()
                    .is_some_and(|sent| sent.contains("nothing to show"));
            assert!(
                status == StatusCode::OK || silent,
                "{name} {kind}: {answer}"
            );
        }
    }
    assert!(receiver.received().is_empty());
    let (_, list) = mesh
        .call(Method::GET, "/v1/webhooks/template/deliveries")
        .await;
    assert_eq!(list["deliveries"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_format_is_shown_before_there_is_an_endpoint_and_its_faults_name_the_place() {
    let mesh = Mesh::start(&[]).await;
    let template = |body: &str| json!({"format": {"type": "template", "body": body}});
    let (status, answer) = ask(
        &mesh,
        &template("{\"job\": {{ job.name }},\n \"code\": {{ job.exit_code }}}"),
    )
    .await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(
        answer["requests"][0]["body"],
        "{\"job\": \"train\",\n \"code\": 1}"
    );
    let (_, answer) = ask(&mesh, &json!({"format": "slack", "type": "node.down"})).await;
    assert!(
        answer["requests"][0]["body"]
            .as_str()
            .unwrap()
            .contains("n1"),
        "{answer}"
    );

    let long =
        format!("{}{{{{ job.name }}}}", "{% for a in job %}".repeat(8)) + &"{% endfor %}".repeat(8);
    for (draft, expected) in [
        (
            template("{\n \"a\": {{ job.nam }}}"),
            "line 2, column 10: undefined value",
        ),
        (template("{\"a\": {{ job.name }"), "line 1, column "),
        (
            template("{% include 'x' %}"),
            "line 1, column 1: no \"include\" here",
        ),
        (template(&long), "fuel"),
        (template(&" ".repeat(9_000)), "at most 8192 bytes"),
        (json!({"format": "telegram"}), "format: "),
        (
            json!({"format": "slack", "type": "job.exploded"}),
            "type: unknown event type",
        ),
        (
            json!({"format": "slack", "type": "job.failed", "event": {}}),
            "type: applies to samples",
        ),
        (json!({"format": "slack", "event": {"id": "x"}}), "event: "),
        (
            json!({"format": "slack", "webhook": "x"}),
            "webhook: name a webhook, or give a format",
        ),
        (json!({}), "webhook: name a webhook, or give a format"),
        (json!({"formt": "slack"}), "unknown field"),
    ] {
        let (status, answer) = ask(&mesh, &draft).await;
        assert_eq!(
            status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{draft}: {answer}"
        );
        let sent = answer["detail"].as_str().unwrap();
        assert!(sent.contains(expected), "{draft}: {sent}");
    }
    let taken = json!({"name": "preview", "url": "https://example.org/"});
    let (status, answer) = mesh
        .ask(Method::POST, "/v1/webhooks", "root", Role::Admin, &taken)
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_may_try_an_endpoint_sees_what_it_would_be_sent() {
    let mesh = Mesh::start(&[]).await;
    let path = "/v1/webhooks";
    let made = json!({"name": "mine", "url": "https://example.org/"});
    let (status, _) = mesh
        .ask(Method::POST, path, "alice", Role::User, &made)
        .await;
    assert_eq!(status, StatusCode::CREATED);
    let draft = json!({"webhook": "alice/mine"});
    for (user, role, expected) in [
        ("alice", Role::User, StatusCode::OK),
        ("bob", Role::User, StatusCode::NOT_FOUND),
        ("eve", Role::Auditor, StatusCode::FORBIDDEN),
        ("root", Role::Admin, StatusCode::OK),
    ] {
        let (status, answer) = mesh
            .ask(Method::POST, &format!("{path}/preview"), user, role, &draft)
            .await;
        assert_eq!(status, expected, "{user}: {answer}");
        // A sample concerns the caller, so the filter of the caller's own webhook matches it.
        assert!(user != "alice" || answer["matches"] == true, "{answer}");
    }

    let url = mesh.serve(Caller::peer("alice", 1, Role::User)).await;
    let channel = Endpoint::from_shared(url).unwrap().connect().await;
    let mut client = WebhooksServiceClient::new(channel.unwrap());
    let request = PreviewWebhookRequest {
        webhook: "mine".into(),
        r#type: "job.completed".into(),
        ..PreviewWebhookRequest::default()
    };
    let shown = client.preview_webhook(request).await.unwrap().into_inner();
    assert!(shown.matches && shown.requests.len() == 1);
    assert!(
        shown.requests[0].body.contains("job.completed"),
        "{:?}",
        shown.requests
    );
}
