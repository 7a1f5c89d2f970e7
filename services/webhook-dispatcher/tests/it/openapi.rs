//! The description of the REST API: committed and served.

use axum::http::{Method, StatusCode};
use webhook_dispatcher::api::openapi::document;

use crate::harness::Mesh;

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

#[test]
fn the_committed_description_is_what_the_code_gives() {
    let mut text = serde_json::to_string_pretty(&document()).unwrap();
    text.push('\n');
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(COMMITTED, &text).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap_or_default();
    assert!(
        committed == text,
        "services/webhook-dispatcher/openapi.json is not what the code gives; look at what changed, then: UPDATE_OPENAPI=1 cargo test -p webhook-dispatcher --test it openapi"
    );
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
