//! The OpenAPI description: committed, served, and matching the API's behaviour.

use std::process::Command;

use axum::http::{Method, StatusCode};
use mesh_events::EventType;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::{CannedResponse, WebhookReceiver};
use serde_json::json;
use webhook_dispatcher::api::openapi::document;

use crate::harness::{Kind, Mesh, event, ids, signed};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

#[test]
fn the_committed_description_is_what_the_code_gives() {
    mesh_testkit::assert_committed_openapi("webhook-dispatcher", COMMITTED, &document());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_served_and_every_route_in_it_answers() {
    let mesh = Mesh::start(&[]).await;
    let (status, served) = mesh.call(Method::GET, "/v1/webhooks/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(served, serde_json::to_value(document()).unwrap());
    for (path, methods) in served["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let (status, _) = mesh
                .call(method.clone(), &path.replace("{name}", "nobody"))
                .await;
            let statuses = described["responses"].as_object().unwrap();
            assert!(
                statuses.contains_key(status.as_str()),
                "{method} {path}: {status}"
            );
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_as_described_whatever_is_asked() {
    let program = std::env::var("SCHEMATHESIS").expect(
        "SCHEMATHESIS is the path of schemathesis; `make test` sets it (scripts/schemathesis)",
    );
    let receiver = WebhookReceiver::start().await;
    receiver.answer_next([
        CannedResponse::status(204),
        CannedResponse::status(503),
        CannedResponse::status(400),
    ]);
    let mut mesh = Mesh::on(Kind::Sqlite).await;
    mesh.settings =
        "allow_http = true\nallow_subnets = [\"127.0.0.0/8\"]\nmax_endpoints_per_user = 100000"
            .to_owned();
    mesh.run(&[signed("pipeline", &receiver.url("/"), "concurrency = 1")])
        .await;
    for job in 1..=3 {
        mesh.publish(&event(EventType::JobStarted, job)).await;
    }
    mesh.wait_for_count("pipeline", "dead", 1).await;
    let admin = Caller::peer("root", 1, Role::Admin);
    for name in ["one", "other"] {
        let spec = json!({"name": name, "url": receiver.url("/"), "owner": "root"});
        let (status, made) = mesh
            .ask(Method::POST, "/v1/webhooks", "root", Role::Admin, &spec)
            .await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
    }
    let url = mesh.serve(admin).await;
    let config = mesh.folder.path().join("schemathesis.toml");
    let known = |ids: &[String]| format!("values = {ids:?}");
    let event = &ids(&receiver.received())[0];
    let text = format!(
        "[dictionaries.names]\n{}\n[dictionaries.ids]\n{}\n[parameters]\n\"path.name\" = {{ dictionary = \"names\", probability = 0.8 }}\n\
         \"path.id\" = {{ dictionary = \"ids\", probability = 0.8 }}\n\
         [[operations]]\ninclude-method = \"DELETE\"\nparameters = {{ \"path.name\" = \"other\" }}\n",
        known(&["pipeline".into(), "one".into()]),
        known(std::slice::from_ref(event)),
    );
    std::fs::write(&config, text).unwrap();
    let output = Command::new(program)
        .arg("--config-file")
        .arg(config)
        .args(["run", &format!("{url}/v1/webhooks/openapi.json"), "--seed", "1", "-n", "10", "--no-color"])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,unsupported_method"])
        .current_dir(mesh.folder.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
