//! The OpenAPI description: committed, served, complete, and matching the API's behaviour.

use cost_engine::api::openapi::document;
use mesh_events::EventType;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::service::openapi::{assert_answers_conform, assert_describes_every_route};
use mesh_testkit::{NatsServer, assert_committed_openapi};
use serde_json::json;

use crate::budgets::{budget, evaluated};
use crate::support::{EXAMPLE, Outside, Site, on_both};

on_both!(answers_are_as_described_whatever_is_asked);

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
const PATH: &str = "/v1/costs/openapi.json";

fn admin() -> Caller {
    Caller::peer("root", 0, Role::Admin)
}

#[test]
fn the_committed_description_is_what_the_code_gives() {
    assert_committed_openapi("cost-engine", COMMITTED, &document());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_served_and_has_every_route() {
    let nats = NatsServer::start().await;
    Outside::connect(&nats, None).await;
    let site = Site::new(EXAMPLE);
    site.write_budgets(&budget("1.00"));
    let engine = site.start(&nats.toml()).await.unwrap();
    evaluated(&engine, 0).await;
    assert_describes_every_route(&engine, &admin(), PATH, &document()).await;
    engine.stop().await;
}

async fn answers_are_as_described_whatever_is_asked(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    site.write_budgets(&budget("1.00"));
    let engine = site.start(&nats.toml()).await.unwrap();
    evaluated(&engine, 0).await;
    // A run that ended, one that goes on, and one that no price covers.
    let mut unpriced = job(42);
    unpriced.nodes = "x1".into();
    for event in [
        job_event(EventType::JobStarted, job(40)),
        job_event(EventType::JobCompleted, ended(job(40), "COMPLETED", 3600)),
        job_event(EventType::JobStarted, job(41)),
        job_event(EventType::JobFailed, ended(unpriced, "FAILED", 60)),
    ] {
        outside.publish(&event).await;
    }
    outside.costs(4).await;
    let known = [
        ("path.name", json!(["physics", "own"])),
        ("path.period", json!(["2025-10", "2025-Q3", "2024"])),
        ("query.period", json!(["2025-11", "2025-Q4", "2025"])),
        ("query.since", json!(["2025-11-01", "30d"])),
        ("query.until", json!(["2025-12-01", "now"])),
        ("query.timezone", json!(["Europe/Berlin", "UTC"])),
    ];
    assert_answers_conform(&engine, admin(), PATH, &known).await;
    engine.stop().await;
}
