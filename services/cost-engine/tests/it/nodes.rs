//! `/v1/costs/nodes`: the categories of a node add up to its cost.

use mesh_events::proto::mesh::event::v1::Entity;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
use mesh_events::{Event, EventId, EventType, timestamp};
use mesh_testkit::fixtures::{self, CLUSTER, ended, job, job_event};
use mesh_testkit::{NatsServer, wait_until};
use serde_json::json;

use crate::api::get;
use crate::support::{DEADLINE, Outside, Site, on_both};

on_both!(
    every_second_of_a_node_has_a_category_and_the_categories_add_up,
    the_power_down_after_a_period_and_runs_without_a_price_are_seen,
);

/// A change of node n1, some seconds after 21:00.
pub fn change(n: u64, seconds: i64, kind: EventType, lifecycle: &str) -> Event {
    let at = timestamp(fixtures::submit_time() + chrono::TimeDelta::seconds(seconds - 1200));
    let key = "node/n1".to_owned();
    Event {
        id: EventId::sampled(CLUSTER, &key, kind, n).to_string(),
        cluster: CLUSTER.into(),
        r#type: kind.to_string(),
        occurred_at: Some(at),
        observed_at: Some(at),
        run_seq: n,
        entity: Some(Entity {
            kind: "node".into(),
            key,
        }),
        payload: Some(Payload::Node(NodeEvent {
            node: Some(Node {
                name: "n1".into(),
                lifecycle: lifecycle.into(),
                instance_id: "i-1".into(),
                ..Node::default()
            }),
            ..NodeEvent::default()
        })),
        ..Event::default()
    }
}

async fn every_second_of_a_node_has_a_category_and_the_categories_add_up(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    // Half of the node for half an hour, from 10 s after the submission at 21:20.
    let half = Job {
        alloc_tres: "cpu=2,mem=1000M,node=1".into(),
        ..job(1)
    };
    let events = [
        change(1, 0, EventType::NodeProvisioning, "provisioning"),
        change(2, 310, EventType::NodeActive, "active"),
        job_event(EventType::JobStarted, half.clone()),
        job_event(EventType::JobCompleted, ended(half, "COMPLETED", 1800)),
        change(3, 3300, EventType::NodeDrained, "drained"),
    ];
    for event in &events {
        outside.publish(event).await;
    }
    outside.costs(2).await;
    let path = "/v1/costs/nodes?since=2025-11-21T21:00:00Z&until=2025-11-21T22:00:00Z";
    let drained = async || {
        let (_, view) = get(&engine.router, "root", path).await;
        view["nodes"][0]["state_seconds"]["drained"] == 300
    };
    wait_until("all changes of the node", DEADLINE, drained).await;
    let (_, view) = get(&engine.router, "root", path).await;
    let node = &view["nodes"][0];
    // 0.34 per hour: 310 s booting, half of 1800 s by the run, 2090 s idle, 300 s drained.
    let categories =
        json!({"booting": "29278", "allocated": "85000", "idle": "197389", "drained": "28333"});
    assert_eq!(node["category_micros"], categories, "{view}");
    assert_eq!(node["cost_micros"], "340000");
    assert_eq!(
        node["state_seconds"],
        json!({"booting": 310, "active": 2990, "drained": 300})
    );
    assert_eq!(node["instance_ids"], json!(["i-1"]));
    let sums = [
        &view["category_micros"],
        &view["cost_micros"],
        &view["currency"],
    ];
    assert_eq!(sums, [&categories, &json!("340000"), &json!("EUR")]);
    // It shows what everybody holds.
    let (status, _) = get(&engine.router, "alice", path).await;
    assert_eq!(status, axum::http::StatusCode::FORBIDDEN);
    engine.stop().await;
}

async fn the_power_down_after_a_period_and_runs_without_a_price_are_seen(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    let on_unknown_node = |id| Job {
        nodes: "x1".into(),
        ..job(id)
    };
    let now = Job {
        start_time: Some(timestamp(chrono::Utc::now())),
        ..on_unknown_node(3)
    };
    let events = [
        change(1, -7200, EventType::NodeDown, "down"),
        change(2, -3600, EventType::NodeActive, "active"),
        job_event(EventType::JobStarted, job(1)),
        job_event(EventType::JobCompleted, ended(job(1), "COMPLETED", 1800)),
        job_event(EventType::JobStarted, on_unknown_node(2)),
        job_event(
            EventType::JobCompleted,
            ended(on_unknown_node(2), "COMPLETED", 360),
        ),
        job_event(EventType::JobStarted, now),
        change(3, 5400, EventType::NodeTerminating, "terminating"),
        change(4, 6000, EventType::NodeTerminated, "terminated"),
    ];
    for event in &events {
        outside.publish(event).await;
    }
    outside.costs(5).await;
    let view = async |since: &str, until: &str| {
        let day = "2025-11-21T";
        let path = format!("/v1/costs/nodes?since={day}{since}:00:00Z&until={day}{until}:00:00Z");
        let (status, view) = get(&engine.router, "root", &path).await;
        assert_eq!(status, axum::http::StatusCode::OK, "{view}");
        view
    };
    let powered_down =
        async || view("22", "23").await["nodes"][0]["state_seconds"]["powered_down"] == 1200;
    wait_until("all changes of the node", DEADLINE, powered_down).await;
    // 0.34 per hour: 1210 s idle, 1800 s by the run, then idle until it is powered down at 22:30.
    let first = view("21", "22").await;
    assert_eq!(
        first["nodes"][0]["category_micros"],
        json!({"allocated": "170000", "idle": "114278", "idle_before_power_down": "55722"})
    );
    let second = view("22", "23").await;
    assert_eq!(
        second["nodes"][0]["category_micros"],
        json!({"idle_before_power_down": "226667", "powered_down": "113333"})
    );
    let both = view("21", "23").await;
    assert_eq!(
        both["nodes"][0]["category_micros"],
        json!({"allocated": "170000", "idle": "114278", "idle_before_power_down": "282389", "powered_down": "113333"})
    );
    // The run that is on an unknown node now began after the period.
    let unpriced = [first, second].map(|view| view["unpriced_runs"].clone());
    assert_eq!(unpriced, [json!(1), json!(0)]);
    let path = "/v1/costs/nodes?since=2020-01-01";
    let (status, _) = get(&engine.router, "root", path).await;
    assert_eq!(status, axum::http::StatusCode::BAD_REQUEST);
    engine.stop().await;
}
