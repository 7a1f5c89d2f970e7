//! The OpenAPI description: committed, served, complete, and matching the API's behaviour.

use axum::http::StatusCode;
use chrono::Utc;
use mesh_events::EventType;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::service::TestService;
use mesh_testkit::service::openapi::{assert_answers_conform, assert_describes_every_route};
use mesh_testkit::{NatsServer, assert_committed_openapi, wait_until};
use pending_explainer::api::openapi::document;
use serde_json::json;

use crate::api::get;
use crate::estimates::evidence;
use crate::harness::{DEADLINE, bus, row, snapshot, start, waiting};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
const PATH: &str = "/v1/queue/openapi.json";

fn admin() -> Caller {
    Caller::peer("root", 0, Role::Admin)
}

/// Waits until the state is loaded and job 1 has an estimate.
async fn estimated(service: &TestService) {
    wait_until("job 1 has an estimate", DEADLINE, async || {
        let path = "/v1/queue/testbed/1";
        let (_, job) = get(&service.router, path, "root", Role::Admin).await;
        job["estimate"]["start_p90"].is_string()
    })
    .await;
}

#[test]
fn the_committed_description_is_what_the_code_gives() {
    assert_committed_openapi("pending-explainer", COMMITTED, &document());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_served_and_has_every_route_and_answers_are_as_described() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    for id in 1..=3 {
        let event = waiting(id, EventType::JobPending, "Priority", 1);
        bus.publish(&event).await.unwrap();
    }
    let service = start(&nats).await;
    let now = Utc::now();
    evidence(&bus, &[9], 1, now).await;
    let rows = (1..=3).map(|id| row(id, 10 - id, None));
    snapshot(&bus, rows.collect(), now).await;
    estimated(&service).await;
    assert_describes_every_route(&service, &admin(), PATH, &document()).await;
    let known = [
        ("path.cluster", json!(["testbed"])),
        ("path.job", json!(["1", "2", "9"])),
        ("query.cluster", json!(["testbed"])),
        ("query.user", json!(["alice"])),
    ];
    assert_answers_conform(&service, admin(), PATH, &known).await;
    let path = "/v1/queue?limit=many";
    let (status, problem) = get(&service.router, path, "root", Role::Admin).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(problem["detail"].as_str().unwrap().contains("limit"));
    service.stop().await;
}
