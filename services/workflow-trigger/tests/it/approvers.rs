//! Who is asked to approve a run, while NATS is away and when approvers are added.

use axum::http::StatusCode;
use mesh_bus::Bus;
use mesh_events::EventType;
use mesh_testkit::{NatsServer, wait_until};
use serde_json::{Value, json};

use crate::approval::{NO_SLURM, PUBLISH, decide, notices, rule, user};
use crate::support::{DEADLINE, Site, Trigger, alice, bus, on_both};

on_both!(
    who_becomes_an_approver_is_asked,
    approvers_are_asked_once_nats_is_back
);

const QUICK: &str = "retry_initial_interval = \"100ms\"\nretry_max_interval = \"1s\"";

fn approved_by(by: &str) -> String {
    rule("deploy", PUBLISH, &format!("by = [{by}]")) + NO_SLURM
}

/// Who was asked, in order.
async fn asked(bus: &Bus) -> Vec<String> {
    let asked = notices(bus, EventType::UserApprovalRequested).await;
    asked.into_iter().map(|(user, _)| user).collect()
}

async fn wait_asked(bus: &Bus, users: &[&str]) {
    let description = format!("{users:?} are asked");
    wait_until(&description, DEADLINE, async || asked(bus).await == users).await;
}

/// A run as its owner sees it, which needs no audit on the bus.
async fn run(trigger: &Trigger, key: &str) -> Value {
    let path = format!("/v1/trigger-runs/{key}");
    let (status, run) = trigger.ask(alice(), "GET", &path, None).await;
    assert_eq!(status, StatusCode::OK, "{run}");
    run
}

async fn who_becomes_an_approver_is_asked(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let trigger = site.start(&nats, QUICK, &approved_by("\"carol\"")).await;
    let key = trigger.fire("deploy", "1", json!({})).await;
    wait_asked(&bus, &["carol"]).await;
    let (status, _) = decide(&trigger, user("dave"), &key, "approve").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    site.configure(&nats, QUICK, &approved_by("\"carol\", \"dave\""));
    wait_asked(&bus, &["carol", "dave"]).await;
    let (status, _) = decide(&trigger, user("dave"), &key, "approve").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    trigger.wait_run(&key, "done").await;
    assert_eq!(asked(&bus).await, ["carol", "dave"], "each was asked once");
    trigger.stop().await;
}

async fn approvers_are_asked_once_nats_is_back(site: Site) {
    let mut nats = NatsServer::start().await;
    let before = bus(&nats).await;
    let trigger = site.start(&nats, QUICK, &approved_by("\"carol\"")).await;
    let key = trigger.fire("deploy", "1", json!({})).await;
    wait_asked(&before, &["carol"]).await;
    let (status, _) = decide(&trigger, user("carol"), &key, "reject").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    drop(before);
    nats.kill();
    // Asked again without a bus, and somebody more.
    let path = format!("/v1/trigger-runs/{key}/redrive");
    let (status, body) = trigger.ask(alice(), "POST", &path, None).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{body}");
    site.configure(&nats, QUICK, &approved_by("\"carol\", \"dave\""));
    wait_until("a request failed", DEADLINE, async || {
        let run = run(&trigger, &key).await;
        assert_eq!(run["state"], "approval");
        run["error"].is_string()
    })
    .await;
    nats.restart().await;
    let after = bus(&nats).await;
    wait_asked(&after, &["carol", "carol", "dave"]).await;
    let (status, _) = decide(&trigger, user("dave"), &key, "approve").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    trigger.wait_run(&key, "done").await;
    assert_eq!(asked(&after).await, ["carol", "carol", "dave"]);
    trigger.stop().await;
}
