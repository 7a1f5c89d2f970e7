//! A running explainer and its published events.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_bus::Bus;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::queue::v1::{Explanation, QueueSnapshot, QueuedJob};
use mesh_events::{Event, EventId, EventType, catalogue, subject, timestamp};
pub use mesh_testkit::service::admin_bus as bus;
use mesh_testkit::service::{self, TestService};
use mesh_testkit::{NatsServer, fixtures, wait_for};
use pending_explainer::PendingExplainerService;
use prost::Message as _;

pub const DEADLINE: Duration = Duration::from_secs(120);

/// Starts an explainer.
pub async fn start(nats: &NatsServer) -> TestService {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"{}\"\n[mesh.nats]\nurl = \"{}\"\n[pending-explainer]\npoll_interval = \"100ms\"\nestimate_interval = \"100ms\"\n",
        fixtures::CLUSTER,
        nats.url()
    );
    std::fs::write(&path, text).unwrap();
    let started = TestService::start::<PendingExplainerService>(&path).await;
    started.unwrap()
}

/// An event about job `id`, pending for `reason`, with sequence `seq` of its run.
pub fn waiting(id: u32, kind: EventType, reason: &str, seq: u64) -> Event {
    let job = Job {
        state: "PENDING".into(),
        reason: reason.into(),
        start_time: None,
        nodes: String::new(),
        ..fixtures::job(id)
    };
    let event_id = EventId::sampled(fixtures::CLUSTER, &job.run, kind, seq).to_string();
    Event {
        id: event_id,
        run_seq: seq,
        ..fixtures::job_event(kind, job)
    }
}

/// Waits until exactly `count` explanations are on the bus, and returns them.
pub async fn explained(bus: &Bus, count: usize) -> Vec<Event> {
    let description = format!("{count} explanations");
    wait_for(&description, DEADLINE, async || {
        let events = published_so_far(bus).await;
        assert!(
            events.len() <= count,
            "more than {count} explanations: {events:#?}"
        );
        (events.len() == count).then_some(events)
    })
    .await
}

/// All explanations on the bus.
pub async fn published_so_far(bus: &Bus) -> Vec<Event> {
    let is_explanation = |event: &Event| event.r#type == "queue.explained";
    service::published_so_far(bus, DEADLINE, is_explanation).await
}

pub fn explanation(event: &Event) -> &Explanation {
    match &event.payload {
        Some(Payload::Queue(queue)) => queue.explanation.as_ref().unwrap(),
        other => panic!("no explanation: {other:?}"),
    }
}

/// Stores a queue snapshot as ingest does.
pub async fn snapshot(bus: &Bus, jobs: Vec<QueuedJob>, taken_at: DateTime<Utc>) {
    let snapshot = QueueSnapshot {
        cluster: fixtures::CLUSTER.into(),
        taken_at: Some(timestamp(taken_at)),
        chunk: 0,
        chunks: 1,
        jobs,
        running: 0,
    };
    let cluster = subject::token(fixtures::CLUSTER);
    let taken_over = bus.take_over(catalogue::BUCKET_QUEUE, &cluster).await;
    let (mut queue, _) = taken_over.unwrap();
    let key = format!("{cluster}.0");
    queue
        .put(&key, snapshot.encode_to_vec().into())
        .await
        .unwrap();
}

pub fn row(id: u32, priority: u32, expected_start: Option<DateTime<Utc>>) -> QueuedJob {
    QueuedJob {
        run: fixtures::run(id).entity_key(),
        job_id: id,
        display_id: id.to_string(),
        user: "alice".into(),
        partition: "cpu".into(),
        reason: "Priority".into(),
        priority,
        expected_start: expected_start.map_or(0, |start| start.timestamp()),
    }
}
