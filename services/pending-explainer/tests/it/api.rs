//! The API for owners and other users.

use axum::Router;
use axum::http::StatusCode;
use chrono::{TimeDelta, Utc};
use mesh_events::EventType;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::service::ask;
use mesh_testkit::{NatsServer, wait_until};
use serde_json::Value;

use crate::harness::{DEADLINE, bus, explained, row, snapshot, start, waiting};

pub async fn get(router: &Router, path: &str, user: &str, role: Role) -> (StatusCode, Value) {
    let caller = Caller::peer(user, 20_001, role);
    ask(router, caller, "GET", path, None).await
}

pub async fn post(router: &Router, path: &str, user: &str, body: &Value) -> (StatusCode, Value) {
    let caller = Caller::peer(user, 20_001, Role::User);
    ask(router, caller, "POST", path, Some(body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_see_only_their_own_jobs() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let service = start(&nats).await;
    bus.publish(&waiting(1, EventType::JobPending, "Priority", 1))
        .await
        .unwrap();
    bus.publish(&waiting(1, EventType::JobHeld, "JobHeldUser", 2))
        .await
        .unwrap();
    bus.publish(&waiting(1, EventType::JobPending, "Priority", 3))
        .await
        .unwrap();
    explained(&bus, 3).await;
    let start = Utc::now() + TimeDelta::hours(1);
    snapshot(
        &bus,
        vec![row(1, 5, Some(start)), row(2, 9, None)],
        Utc::now() + TimeDelta::seconds(2),
    )
    .await;
    wait_until("the snapshot is taken in", DEADLINE, async || {
        get(&service.router, "/v1/queue/testbed/1", "alice", Role::User)
            .await
            .1["jobs_ahead"]
            == 1
    })
    .await;

    let (status, detail) = get(&service.router, "/v1/queue/testbed/1", "alice", Role::User).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(detail["waiting"], true);
    assert_eq!(detail["explanation"]["reasonClass"], "waiting_turn");
    assert_eq!(detail["explanation"]["method"], "slurm-plan");
    let classes: Vec<_> = detail["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .take(3)
        .map(|events| events["class"].as_str().unwrap())
        .collect();
    assert_eq!(classes, ["waiting_turn", "held", "waiting_turn"]);

    let (_, list) = get(&service.router, "/v1/queue", "alice", Role::User).await;
    assert_eq!(
        (&list["total"], &list["jobs"][0]["job"]),
        (&Value::from(1), &Value::from("1"))
    );
    assert!(list["jobs"][0]["expected_start"].is_string());

    assert_eq!(
        get(&service.router, "/v1/queue/testbed/1", "bob", Role::User)
            .await
            .0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        get(&service.router, "/v1/queue", "bob", Role::User).await.1["total"],
        0
    );
    assert_eq!(
        get(&service.router, "/v1/queue/testbed/1", "root", Role::Admin)
            .await
            .0,
        StatusCode::OK
    );
    assert_eq!(
        get(&service.router, "/v1/queue/other/1", "root", Role::Admin)
            .await
            .0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        get(&service.router, "/v1/queue?nonsense=1", "root", Role::Admin)
            .await
            .0,
        StatusCode::BAD_REQUEST
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_reports_that_it_waits_for_nats() {
    let mut nats = NatsServer::start().await;
    nats.kill();
    let service = start(&nats).await;
    assert_eq!(
        get(&service.router, "/v1/queue", "alice", Role::User)
            .await
            .0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    service.stop().await;
}
