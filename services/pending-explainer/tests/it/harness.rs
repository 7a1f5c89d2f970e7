//! A running explainer and its published events.

use std::time::Duration;

use axum::Router;
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use mesh_bus::{Bus, Config, StartPosition};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::queue::v1::{Explanation, QueueSnapshot, QueuedJob};
use mesh_events::{Event, EventId, EventType, catalogue, subject, timestamp};
use mesh_runtime::{BoxError, ConfigFile, Context, Service as _, ServiceSection};
use mesh_testkit::{NatsServer, fixtures, wait_for};
use pending_explainer::PendingExplainerService;
use prost::Message as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const DEADLINE: Duration = Duration::from_secs(120);

/// A service in this process.
pub struct Running {
    pub router: Router,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), BoxError>>,
}

impl Running {
    pub async fn start(nats: &NatsServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mesh.toml");
        let text = format!(
            "[mesh]\ncluster = \"{}\"\n[mesh.nats]\nurl = \"{}\"\n[pending-explainer]\npoll_interval = \"100ms\"\nestimate_interval = \"100ms\"\n",
            fixtures::CLUSTER,
            nats.url()
        );
        std::fs::write(&path, text).unwrap();
        let config = ConfigFile::load(
            &[ServiceSection::of::<PendingExplainerService>()],
            Some(&path),
        )
        .unwrap();
        let shutdown = CancellationToken::new();
        let started =
            PendingExplainerService::start(Context::new(config, shutdown.clone()).unwrap())
                .await
                .unwrap();
        Self {
            router: started.router,
            shutdown,
            task: tokio::spawn(started.run),
        }
    }

    /// Stops as after SIGTERM.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// Ends abruptly.
    pub async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

/// The test's own connection, with streams and buckets declared.
pub async fn bus(nats: &NatsServer) -> Bus {
    let bus = Bus::connect(
        &Config {
            url: nats.url(),
            ..Config::default()
        },
        "admin",
    )
    .await
    .unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    bus
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

/// All explanations on the bus, up to a marker event published for this purpose. Retries while NATS is not fully available.
pub async fn published_so_far(bus: &Bus) -> Vec<Event> {
    wait_for("what was said", DEADLINE, async || events(bus).await.ok()).await
}

async fn events(bus: &Bus) -> Result<Vec<Event>, mesh_bus::Error> {
    let mark = EventId::sampled(
        "mark",
        &format!("mark/{:?}", std::time::Instant::now()),
        EventType::UserLogin,
        1,
    )
    .to_string();
    let template = fixtures::job_event(EventType::JobSuspended, fixtures::job(999_999));
    bus.publish(&Event {
        id: mark.clone(),
        ..template
    })
    .await?;
    let mut messages = Box::pin(bus.follow("slurm.>", StartPosition::Sequence(1)).await?);
    let mut events = Vec::new();
    while let Some(message) = messages.next().await {
        let event = message?.event().unwrap();
        if event.id == mark {
            break;
        }
        if event.r#type == "queue.explained" {
            events.push(event);
        }
    }
    Ok(events)
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
