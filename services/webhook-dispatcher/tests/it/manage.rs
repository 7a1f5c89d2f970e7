//! Endpoints that are made, changed and removed by the API.

use axum::http::{Method, StatusCode};
use mesh_api::webhook::webhooks_service_client::WebhooksServiceClient;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, audit_entry::Act};
use mesh_events::proto::mesh::webhook::v1::{
    CreateWebhookRequest, DeleteWebhookRequest, ListWebhooksRequest, TestWebhookRequest,
};
use mesh_events::{Event, EventType, cloudevents};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::{Receiver, wait_until};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tonic::Code;

use crate::harness::{DEADLINE, Kind, Mesh, SECRET, event, ids, on_both, signed};

on_both!(
    a_users_webhook_is_delivered_to_changed_rotated_paused_and_removed,
    what_is_wrong_is_named_and_nothing_is_stored,
    each_may_do_what_is_theirs,
);

/// Receivers of these tests are on this host.
const LOCAL: &str = "allow_http = true\nallow_subnets = [\"127.0.0.0/8\"]";

async fn mesh(kind: Kind) -> Mesh {
    let mut mesh = Mesh::on(kind).await;
    mesh.settings = LOCAL.to_owned();
    if kind == Kind::Postgres {
        std::fs::write(
            mesh.folder.path().join("secrets.key"),
            format!("{}\n", "A".repeat(43) + "="),
        )
        .unwrap();
        mesh.settings
            .push_str("\nsecrets_key_file = \"secrets.key\"");
    }
    mesh.run(&[]).await;
    mesh
}

async fn alice(mesh: &Mesh, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    mesh.ask(method, path, "alice", Role::User, body).await
}

fn of_bob(job: u32) -> Event {
    let mut event = event(EventType::JobStarted, job);
    event.owner.as_mut().unwrap().user = "bob".into();
    event
}

async fn received(receiver: &Receiver, expected: &[&Event]) {
    let expected: Vec<String> = expected.iter().map(|event| event.id.clone()).collect();
    wait_until("what was expected", DEADLINE, async || {
        receiver.received().len() >= expected.len()
    })
    .await;
    assert_eq!(ids(&receiver.received()), expected);
}

async fn a_users_webhook_is_delivered_to_changed_rotated_paused_and_removed(kind: Kind) {
    let receiver = Receiver::start().await;
    let mesh = mesh(kind).await;
    let mut audit = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.webhook")
        .await;
    let spec = json!({
        "name": "mine", "url": receiver.url("/hook?token=hunter2"), "types": ["job.started"],
        "headers": {"x-api-key": "hunter3"}, "description": "the next step",
    });
    let (status, made) = alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let secret = made["secret"].as_str().unwrap().to_owned();
    mesh.wait_for_consumers(1).await;
    let first = event(EventType::JobStarted, 1);
    mesh.publish(&of_bob(2)).await;
    mesh.publish(&first).await;
    received(&receiver, &[&first]).await;
    let request = &receiver.received()[0];
    Webhook::new(&secret)
        .unwrap()
        .verify(&request.body, &request.headers)
        .unwrap();
    assert_eq!(request.header("x-api-key"), "hunter3");
    assert_eq!(request.path, "/hook?token=hunter2");

    // Nothing secret is shown or stored.
    let (_, shown) = alice(&mesh, Method::GET, "/v1/webhooks/mine", &Value::Null).await;
    assert_eq!(
        (
            &shown["owner"],
            &shown["users"],
            &shown["state"],
            &shown["description"]
        ),
        (
            &"alice".into(),
            &json!(["alice"]),
            &"active".into(),
            &"the next step".into()
        )
    );
    let raw = mesh.raw_endpoint("mine").await;
    for text in [shown.to_string(), raw] {
        assert!(
            !text.contains("hunter") && !text.contains(&secret[8..]),
            "{text}"
        );
    }

    // A change is at work at once, and what was not changed stays.
    let patch = json!({"types": ["job.submitted"], "description": null});
    let (status, changed) = alice(&mesh, Method::PATCH, "/v1/webhooks/mine", &patch).await;
    assert_eq!(
        (status, &changed["types"]),
        (StatusCode::OK, &json!(["job.submitted"]))
    );
    assert_eq!(
        (&changed["headers"], &changed["description"]),
        (&json!({"x-api-key": "…"}), &Value::Null)
    );
    let second = event(EventType::JobSubmitted, 3);
    mesh.publish(&event(EventType::JobStarted, 4)).await;
    mesh.publish(&second).await;
    received(&receiver, &[&first, &second]).await;

    // Both secrets sign for a while.
    let (status, rotated) = alice(
        &mesh,
        Method::POST,
        "/v1/webhooks/mine/rotate",
        &Value::Null,
    )
    .await;
    assert_eq!(status, StatusCode::OK, "{rotated}");
    let new = rotated["secret"].as_str().unwrap();
    assert_ne!(new, secret);
    let third = event(EventType::JobSubmitted, 5);
    mesh.publish(&third).await;
    received(&receiver, &[&first, &second, &third]).await;
    let request = &receiver.received()[2];
    for secret in [&secret, new] {
        let webhook = Webhook::new(secret).unwrap();
        webhook.verify(&request.body, &request.headers).unwrap();
    }

    // While it is paused its events queue.
    let reason = json!({"reason": "maintenance"});
    let (_, paused) = alice(&mesh, Method::POST, "/v1/webhooks/mine/pause", &reason).await;
    assert_eq!(
        (&paused["state"], &paused["reason"]),
        (&"paused".into(), &"maintenance".into())
    );
    let fourth = event(EventType::JobSubmitted, 6);
    mesh.publish(&fourth).await;
    wait_until("the event is queued", DEADLINE, async || {
        mesh.pending("mine").await == 1
    })
    .await;
    assert_eq!(receiver.received().len(), 3);
    alice(
        &mesh,
        Method::POST,
        "/v1/webhooks/mine/resume",
        &Value::Null,
    )
    .await;
    received(&receiver, &[&first, &second, &third, &fourth]).await;

    wait_until("it takes replays", DEADLINE, async || {
        mesh.consumes_replays("mine").await
    })
    .await;
    let (status, _) = alice(&mesh, Method::DELETE, "/v1/webhooks/mine", &Value::Null).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    mesh.wait_for_consumers(0).await;
    assert!(!mesh.consumes_replays("mine").await);
    wait_until("nothing is left of it", DEADLINE, async || {
        alice(&mesh, Method::GET, "/v1/webhooks/mine", &Value::Null)
            .await
            .0
            == StatusCode::NOT_FOUND
    })
    .await;

    let mut told = Vec::new();
    for _ in 0..6 {
        let Some(Act::Webhook(act)) = audit.next().await.act else {
            panic!("no act on a webhook");
        };
        assert_eq!(
            (
                act.endpoint.as_str(),
                act.made_by.as_str(),
                act.role.as_str()
            ),
            ("mine", "alice", "user")
        );
        told.push((act.what, act.keys.join(","), act.reason));
    }
    // Each is told once its transaction has ended, so neighbours may change places.
    told.sort();
    let expected = [
        ("changed", "description,types", ""),
        ("created", "", ""),
        ("paused", "", "maintenance"),
        ("removed", "", ""),
        ("resumed", "", ""),
        ("rotated", "", ""),
    ];
    assert_eq!(
        told,
        expected.map(|(what, keys, why)| (what.to_owned(), keys.to_owned(), why.to_owned()))
    );

    // The name is free again, and its next owner begins anew.
    let (status, _) = mesh
        .ask(Method::POST, "/v1/webhooks", "bob", Role::User, &spec)
        .await;
    assert_eq!(status, StatusCode::CREATED);
    let path = "/v1/webhooks/mine/deliveries";
    let (_, page) = mesh
        .ask(Method::GET, path, "bob", Role::User, &Value::Null)
        .await;
    assert_eq!(page["deliveries"], json!([]));
}

async fn what_is_wrong_is_named_and_nothing_is_stored(kind: Kind) {
    let mesh = mesh(kind).await;
    let cases = [
        (json!([]), "a JSON object"),
        (json!({"url": "https://example.org"}), "name: missing"),
        (json!({"name": "a b"}), "name: letters, digits"),
        (json!({"name": "x"}), "url: no address"),
        (
            json!({"name": "x", "url": "ftp://example.org"}),
            "url: https is needed",
        ),
        (
            json!({"name": "x", "url": "https://169.254.169.254/"}),
            "url: 169.254.169.254 may not be reached",
        ),
        (
            json!({"name": "x", "url": "https://[::ffff:10.0.0.1]/"}),
            "may not be reached",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "types": ["job.exploded"]}),
            "types: unknown event type",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "format": "carrier-pigeon"}),
            "carrier-pigeon",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "headers": {"Host": "y"}}),
            "headers: Host is set by",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "headers": {"webhook-id": "y"}}),
            "headers: webhook-id is set by",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "headers": {"a b": "y"}}),
            "no name of a header",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "headers": {"x-a": {"file": "/etc/passwd"}}}),
            "only be named in mesh.toml",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "secret": "short"}),
            "secret: a secret begins with whsec_",
        ),
        (
            json!({"name": "x", "url_file": "/etc/passwd"}),
            "url_file: can only be set in mesh.toml",
        ),
        (
            json!({"name": "x", "url": "https://10.0.0.1/", "allow_private": ["10.0.0.0/8"]}),
            "allow_private: can only be set",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "timeout": "1h"}),
            "timeout: above 0 and at most 30s",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "colour": "red"}),
            "unknown field `colour`",
        ),
    ];
    for (spec, expected) in cases {
        let (status, problem) = alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert_eq!(
            status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{spec}: {problem}"
        );
        assert!(detail.contains(expected), "{spec}: {detail}");
    }
    let (_, list) = mesh.call(Method::GET, "/v1/webhooks").await;
    assert_eq!(list["webhooks"], json!([]));
}

async fn each_may_do_what_is_theirs(kind: Kind) {
    let receiver = Receiver::start().await;
    let mut mesh = mesh(kind).await;
    mesh.stop().await;
    mesh.settings.push_str("\nmost_per_user = 1");
    mesh.run(&[signed("pipeline", &receiver.url("/"), "")])
        .await;
    let spec = json!({"name": "mine", "url": receiver.url("/")});
    let (status, _) = alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
    assert_eq!(status, StatusCode::CREATED);
    let (get, post, patch, delete) = (Method::GET, Method::POST, Method::PATCH, Method::DELETE);
    let wide = json!({"name": "wide", "url": receiver.url("/"), "users": ["alice", "bob"]});
    let others = json!({"name": "others", "url": receiver.url("/"), "owner": "bob"});
    let nothing = Value::Null;
    let wider = json!({"users": ["bob"]});
    let all_users = json!({"users": []});
    let (user, auditor, admin) = (Role::User, Role::Auditor, Role::Admin);
    let mine = "/v1/webhooks/mine";
    let of_file = "/v1/webhooks/pipeline";
    for (method, path, who, role, body, expected) in [
        (&get, mine, "alice", user, &nothing, 200),
        (&get, mine, "bob", user, &nothing, 404),
        (&get, mine, "eve", auditor, &nothing, 200),
        (&get, mine, "root", admin, &nothing, 200),
        (&patch, mine, "bob", user, &json!({}), 404),
        (&delete, mine, "bob", user, &nothing, 404),
        (&post, "/v1/webhooks/mine/test", "bob", user, &nothing, 404),
        (
            &post,
            "/v1/webhooks/mine/rotate",
            "bob",
            user,
            &nothing,
            404,
        ),
        (
            &get,
            "/v1/webhooks/mine/deliveries",
            "bob",
            user,
            &nothing,
            404,
        ),
        (&patch, mine, "eve", auditor, &json!({}), 403),
        (&delete, mine, "eve", auditor, &nothing, 403),
        (
            &post,
            "/v1/webhooks/mine/pause",
            "eve",
            auditor,
            &nothing,
            403,
        ),
        (
            &post,
            "/v1/webhooks/mine/test",
            "eve",
            auditor,
            &nothing,
            403,
        ),
        (&post, "/v1/webhooks", "eve", auditor, &wide, 403),
        (&post, "/v1/webhooks", "bob", user, &wide, 403),
        (&post, "/v1/webhooks", "alice", user, &others, 403),
        (&patch, mine, "alice", user, &wider, 403),
        (
            &post,
            "/v1/webhooks",
            "alice",
            user,
            &json!({"name": "second", "url": receiver.url("/")}),
            409,
        ),
        (
            &post,
            "/v1/webhooks",
            "bob",
            user,
            &json!({"name": "mine", "url": receiver.url("/")}),
            409,
        ),
        (&post, "/v1/webhooks", "root", admin, &wide, 201),
        (&post, "/v1/webhooks", "root", admin, &others, 201),
        (&get, "/v1/webhooks/others", "bob", user, &nothing, 200),
        (&get, of_file, "alice", user, &nothing, 404),
        (
            &post,
            "/v1/webhooks/pipeline/test",
            "alice",
            user,
            &nothing,
            404,
        ),
        (&patch, of_file, "root", admin, &json!({}), 409),
        (&delete, of_file, "root", admin, &nothing, 409),
        (
            &post,
            "/v1/webhooks/pipeline/rotate",
            "root",
            admin,
            &nothing,
            409,
        ),
        (
            &post,
            "/v1/webhooks/pipeline/pause",
            "root",
            admin,
            &nothing,
            200,
        ),
        (
            &post,
            "/v1/webhooks/pipeline/resume",
            "root",
            admin,
            &nothing,
            200,
        ),
        (&patch, mine, "alice", user, &all_users, 200),
    ] {
        let (status, answer) = mesh.ask(method.clone(), path, who, role, body).await;
        assert_eq!(
            status.as_u16(),
            expected,
            "{method} {path} {body} as {who}: {answer}"
        );
        if expected == 409 && path.starts_with(of_file) {
            let file = mesh.folder.path().join("mesh.toml");
            let detail = answer["detail"].as_str().unwrap();
            assert!(detail.contains(file.to_str().unwrap()), "{detail}");
        }
    }
    // "All users" is all that are alice.
    let (_, shown) = alice(&mesh, Method::GET, mine, &Value::Null).await;
    assert_eq!(shown["users"], json!(["alice"]));
    // After a restart it is all there.
    mesh.stop().await;
    mesh.start_dispatcher(&[signed("pipeline", &receiver.url("/"), "")])
        .await;
    mesh.wait_for_consumers(4).await;
    let first = event(EventType::JobStarted, 1);
    mesh.publish(&first).await;
    wait_until("all four got it", DEADLINE, async || {
        receiver.received().len() == 4
    })
    .await;
    let (_, list) = mesh.call(Method::GET, "/v1/webhooks").await;
    let names: Vec<&str> = list["webhooks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|webhook| webhook["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["mine", "others", "pipeline", "wide"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_shared_database_without_a_key_nothing_secret_is_taken() {
    let mut mesh = Mesh::on(Kind::Postgres).await;
    mesh.settings = LOCAL.to_owned();
    mesh.run(&[]).await;
    let spec = json!({"name": "mine", "url": "https://example.org/"});
    let (status, problem) = alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("secrets_key_file"),
        "{problem}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_event_shows_what_would_be_sent() {
    let receiver = Receiver::start().await;
    let mesh = mesh(Kind::Sqlite).await;
    let spec = json!({"name": "mine", "url": receiver.url("/"), "types": ["job.started"]});
    alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
    for (kind, matches) in [
        (EventType::JobStarted, true),
        (EventType::JobCompleted, false),
    ] {
        let event = cloudevents::to_json(&event(kind, 7)).unwrap();
        let body = json!({"event": event, "dry_run": true});
        let (_, tested) = alice(&mesh, Method::POST, "/v1/webhooks/mine/test", &body).await;
        assert_eq!(tested["matches"], matches, "{tested}");
        let shown: Value = serde_json::from_str(tested["body"].as_str().unwrap()).unwrap();
        assert_eq!(shown, event);
    }
    assert_eq!(receiver.received().len(), 0, "nothing was sent");
    let body = json!({"event": {"id": "x"}});
    let (status, _) = alice(&mesh, Method::POST, "/v1/webhooks/mine/test", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_does_as_rest_does() {
    let receiver = Receiver::start().await;
    let mesh = mesh(Kind::Sqlite).await;
    let client = async |caller: Caller| {
        let url = mesh.serve(caller).await;
        let endpoint = tonic::transport::Endpoint::from_shared(url).unwrap();
        WebhooksServiceClient::new(endpoint.connect().await.unwrap())
    };
    let mut alice = client(Caller::peer("alice", 1, Role::User)).await;
    let mut bob = client(Caller::peer("bob", 2, Role::User)).await;
    let spec =
        json!({"name": "mine", "url": receiver.url("/"), "concurrency": 2, "secret": SECRET});
    let spec = Some(serde_json::from_value(spec).unwrap());
    let made = alice
        .create_webhook(CreateWebhookRequest { spec })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(made.secret, SECRET);
    let listed = alice
        .list_webhooks(ListWebhooksRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.webhooks.len(), 1);
    let over_rest = mesh.call(Method::GET, "/v1/webhooks/mine").await.1;
    let spec = serde_json::to_value(listed.webhooks[0].spec.as_ref()).unwrap();
    assert_eq!(
        (&spec["url"], &spec["users"]),
        (&over_rest["url"], &over_rest["users"])
    );
    assert!(
        bob.list_webhooks(ListWebhooksRequest {})
            .await
            .unwrap()
            .into_inner()
            .webhooks
            .is_empty()
    );
    let name = "mine".to_owned();
    let test = TestWebhookRequest {
        name: name.clone(),
        ..TestWebhookRequest::default()
    };
    assert_eq!(
        bob.test_webhook(test.clone()).await.unwrap_err().code(),
        Code::NotFound
    );
    assert!(
        alice
            .test_webhook(test)
            .await
            .unwrap()
            .into_inner()
            .delivered
    );
    let empty = alice
        .create_webhook(CreateWebhookRequest { spec: None })
        .await;
    assert_eq!(empty.unwrap_err().code(), Code::InvalidArgument);
    alice
        .delete_webhook(DeleteWebhookRequest { name })
        .await
        .unwrap();
    wait_until("it is gone", DEADLINE, async || {
        mesh.call(Method::GET, "/v1/webhooks/mine").await.0 == StatusCode::NOT_FOUND
    })
    .await;
}
