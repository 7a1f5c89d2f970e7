//! `/v1/costs/nodes`: the lines of a node add up to its cost.

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

on_both!(every_second_of_a_node_has_a_line_and_the_lines_add_up);

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

async fn every_second_of_a_node_has_a_line_and_the_lines_add_up(site: Site) {
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
    let lines =
        json!({"booting": "29278", "allocated": "85000", "idle": "197389", "drained": "28333"});
    assert_eq!(node["line_micros"], lines, "{view}");
    assert_eq!(node["cost_micros"], "340000");
    assert_eq!(
        node["state_seconds"],
        json!({"booting": 310, "active": 2990, "drained": 300})
    );
    assert_eq!(node["instance_ids"], json!(["i-1"]));
    let sums = [
        &view["line_micros"],
        &view["cost_micros"],
        &view["currency"],
    ];
    assert_eq!(sums, [&lines, &json!("340000"), &json!("EUR")]);
    // It shows what everybody holds.
    let (status, _) = get(&engine.router, "alice", path).await;
    assert_eq!(status, axum::http::StatusCode::FORBIDDEN);
    engine.stop().await;
}
