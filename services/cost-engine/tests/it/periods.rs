//! Closed periods: concurrent closings, and recovered databases.

use axum::http::StatusCode;
use cost_engine::adapters::Store;
use mesh_events::EventType;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{ended, job_event};
use mesh_testkit::service::{TestService, ask};
use serde_json::{Value, json};

use crate::api::get;
use crate::late::little_memory;
use crate::support::{Outside, Site, on_both};

on_both!(
    a_correction_is_in_one_of_the_reports_that_are_closed_at_the_same_time,
    a_recovered_database_that_lacks_costs_corrects_nothing,
);

/// A run of November 2025 that costs 340000.
async fn run(outside: &Outside, id: u32) {
    let started = job_event(EventType::JobStarted, little_memory(id));
    outside.publish(&started).await;
    let record = ended(little_memory(id), "COMPLETED", 3600);
    let completed = job_event(EventType::JobCompleted, record);
    outside.publish(&completed).await;
}

async fn close(engine: &TestService, period: &str) -> (StatusCode, Value) {
    let path = format!("/v1/costs/periods/{period}");
    let caller = Caller::peer("root", 0, Role::Admin);
    ask(&engine.router, caller, "POST", &path, None).await
}

async fn report(engine: &TestService, period: &str) -> Value {
    let path = format!("/v1/costs/periods/{period}");
    let (_, shown) = get(&engine.router, "root", &path).await;
    serde_json::from_str(shown["report"].as_str().unwrap()).unwrap()
}

async fn a_correction_is_in_one_of_the_reports_that_are_closed_at_the_same_time(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    assert_eq!(close(&engine, "2025-11").await.0, StatusCode::OK);
    run(&outside, 1).await;
    outside.costs(2).await;
    let both = ["2025-12", "2026-01"];
    let (first, second) = tokio::join!(close(&engine, both[0]), close(&engine, both[1]));
    for (period, (status, answer)) in both.into_iter().zip([first, second]) {
        if status == StatusCode::CONFLICT {
            let detail = answer["detail"].as_str().unwrap();
            assert!(detail.contains("close this one again"), "{answer}");
            assert_eq!(close(&engine, period).await.0, StatusCode::OK);
        } else {
            assert_eq!(status, StatusCode::OK, "{answer}");
        }
    }
    let mut corrections = Vec::new();
    for period in both {
        let report = report(&engine, period).await;
        corrections.extend(report["corrections"].as_array().unwrap().clone());
    }
    assert_eq!(corrections.len(), 1, "{corrections:?}");
    assert_eq!(corrections[0]["total_micros"], "340000");
    engine.stop().await;
}

async fn a_recovered_database_that_lacks_costs_corrects_nothing(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    assert_eq!(close(&engine, "2025-11").await.0, StatusCode::OK);
    run(&outside, 1).await;
    outside.costs(2).await;
    engine.stop().await;
    let store = Store::open(&site.location()).await.unwrap();
    store.mark_periods_incomplete().await.unwrap();
    store.database.close().await;
    let engine = site.start(&nats.toml()).await.unwrap();
    assert_eq!(close(&engine, "2025-12").await.0, StatusCode::OK);
    let december = report(&engine, "2025-12").await;
    assert_eq!(december["corrections"], json!([]));
    assert_eq!(december["not_corrected"], json!(["2025-11"]));
    let (_, listed) = get(&engine.router, "root", "/v1/costs/periods").await;
    assert_eq!(listed["periods"][0]["incomplete"], true, "{listed}");
    assert_eq!(listed["periods"][1]["incomplete"], Value::Null, "{listed}");
    engine.stop().await;
}
