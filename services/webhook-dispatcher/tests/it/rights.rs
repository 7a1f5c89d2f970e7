//! Permissions of the API, and what it rejects.

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use mesh_events::EventType;
use mesh_runtime::api::Role;
use mesh_testkit::{WebhookReceiver, wait_until};
use serde_json::{Value, json};

use crate::harness::{DEADLINE, FOR_API, Kind, Mesh, alice, event, on_both, signed};

on_both!(
    what_is_wrong_is_named_and_nothing_is_stored,
    each_may_do_what_is_theirs,
);

async fn what_is_wrong_is_named_and_nothing_is_stored(kind: Kind) {
    let mesh = Mesh::for_api(kind).await;
    let cases = [
        (json!([]), "a JSON object"),
        (json!({"url": "https://example.org"}), "name: missing"),
        (json!({"name": "a b"}), "name: letters, digits"),
        (json!({"name": "x"}), "url: not a URL"),
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
            "is not a header name",
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
            json!({"name": "x", "url": "https://example.org", "timeout": "5 parsecs"}),
            "timeout: ",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "max_attempts": "many"}),
            "max_attempts: ",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "rate_limit": "10"}),
            "rate_limit: \"10\" is no rate",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "rate_limit": "1/s", "burst": 0}),
            "burst: from 1",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "success": ["200", "2x"]}),
            "success: \"2x\" is no HTTP status",
        ),
        (
            json!({"name": "x", "url": "https://example.org", "give_up_after": "0s"}),
            "give_up_after: above 0",
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
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::for_api(kind).await;
    mesh.stop().await;
    mesh.settings.push_str("\nmax_endpoints_per_user = 1");
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
    let hers = "/v1/webhooks/alice%2Fmine";
    let of_file = "/v1/webhooks/pipeline";
    for (method, path, who, role, body, expected) in [
        (&get, mine, "alice", user, &nothing, 200),
        (&get, mine, "bob", user, &nothing, 404),
        (&get, hers, "eve", auditor, &nothing, 200),
        (&get, hers, "root", admin, &nothing, 200),
        (&get, mine, "root", admin, &nothing, 404),
        (&get, hers, "bob", user, &nothing, 404),
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
        (&patch, hers, "eve", auditor, &json!({}), 403),
        (&delete, hers, "eve", auditor, &nothing, 403),
        (
            &post,
            "/v1/webhooks/alice%2Fmine/pause",
            "eve",
            auditor,
            &nothing,
            403,
        ),
        (
            &post,
            "/v1/webhooks/alice%2Fmine/test",
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
            201,
        ),
        (&delete, mine, "bob", user, &nothing, 204),
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
    // Without users, a user's endpoint receives the events of that user only.
    let (_, shown) = alice(&mesh, Method::GET, mine, &Value::Null).await;
    assert_eq!(shown["users"], json!(["alice"]));
    // After a restart everything is still there.
    mesh.stop().await;
    mesh.start_dispatcher(&[signed("pipeline", &receiver.url("/"), "")])
        .await;
    mesh.wait_for_positions(4).await;
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
async fn nobody_makes_more_than_they_may_by_asking_at_once() {
    let mut mesh = Mesh::for_api(Kind::Sqlite).await;
    mesh.stop().await;
    mesh.settings.push_str("\nmax_endpoints_per_user = 2");
    mesh.run(&[]).await;
    let specs: Vec<Value> = (0..8)
        .map(|n| json!({"name": format!("alices-{n}"), "url": "https://example.org/"}))
        .collect();
    let asked = specs
        .iter()
        .map(|spec| alice(&mesh, Method::POST, "/v1/webhooks", spec));
    let answers = join_all(asked).await;
    let made = answers
        .iter()
        .filter(|(status, _)| *status == StatusCode::CREATED);
    assert_eq!(made.count(), 2, "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_shared_database_without_a_key_nothing_secret_is_taken() {
    let mut mesh = Mesh::on(Kind::Postgres).await;
    mesh.settings = FOR_API.to_owned();
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
