//! Estimates of starts survive kill -9: neither scores nor open estimates are lost.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::Bus;
use mesh_events::proto::mesh::queue::v1::{
    EvidenceSnapshot, NodeState, Partition, QueuedJob, RunningJob,
};
use mesh_events::{EventType, catalogue, subject, timestamp};
use mesh_runtime::api::Role;
use mesh_testkit::{NatsServer, fixtures, wait_until};
use pending_explainer::adapters::estimates::StoredEstimates;
use prost::Message as _;

use crate::api::get;
use crate::harness::{DEADLINE, bus, row, snapshot, start, waiting};

/// A process of the service, ended by SIGKILL.
struct Process(Child);

impl Process {
    fn start(folder: &Path, nats: &NatsServer) -> Self {
        let path = folder.join("mesh.toml");
        let text = format!(
            "[mesh]\ncluster = \"{}\"\n[mesh.nats]\nurl = \"{}\"\n[mesh.api]\nsocket = \"{}\"\n[pending-explainer]\npoll_interval = \"100ms\"\nestimate_interval = \"100ms\"\n",
            fixtures::CLUSTER,
            nats.url(),
            folder.join("api.sock").display(),
        );
        std::fs::write(&path, text).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_pending-explainer"))
            .arg("--config")
            .arg(&path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Stores evidence as ingest does: a node with 4 CPUs, and these running jobs on so many of them.
pub async fn evidence(bus: &Bus, running: &[u32], cpus: u32, taken_at: DateTime<Utc>) {
    let row = |id: &u32| RunningJob {
        job_id: *id,
        partition: "cpu".into(),
        start: taken_at.timestamp() - 1,
        end: taken_at.timestamp() + 3_600,
        tres: format!("cpu={cpus},mem={cpus}G"),
        ..RunningJob::default()
    };
    let node = NodeState {
        name: "n1".into(),
        state: "ALLOCATED".into(),
        cpus: 4,
        memory_mib: 8_192,
        partitions: vec!["cpu".into()],
        ..NodeState::default()
    };
    let partition = Partition {
        name: "cpu".into(),
        nodes: "n1".into(),
        ..Partition::default()
    };
    let evidence = EvidenceSnapshot {
        cluster: fixtures::CLUSTER.into(),
        taken_at: Some(timestamp(taken_at)),
        chunks: 1,
        running: running.iter().map(row).collect(),
        nodes: vec![node],
        partitions: vec![partition],
        ..EvidenceSnapshot::default()
    };
    let cluster = subject::token(fixtures::CLUSTER);
    let taken_over = bus.take_over(catalogue::BUCKET_EVIDENCE, &cluster).await;
    let (mut bucket, _) = taken_over.unwrap();
    let value = evidence.encode_to_vec().into();
    bucket.put(&format!("{cluster}.0"), value).await.unwrap();
}

/// Waits until so many jobs that waited have started, and so many estimates are open.
async fn stored(bus: &Bus, starts: u64, open: usize) {
    let description = format!("{starts} starts and {open} open estimates");
    wait_until(&description, DEADLINE, async || {
        let bucket = bus.bucket(catalogue::BUCKET_EXPLAINER).await.unwrap();
        let stored =
            StoredEstimates::load(&bucket, fixtures::CLUSTER, StoredEstimates::default()).await;
        let quality = stored.unwrap().state.quality();
        (quality.starts, quality.open) == (starts, open)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_loses_neither_scores_nor_open_estimates() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let folder = tempfile::tempdir().unwrap();
    for id in [1, 2, 3] {
        bus.publish(&waiting(id, EventType::JobPending, "Priority", 1))
            .await
            .unwrap();
    }
    let process = Process::start(folder.path(), &nats);
    let now = Utc::now();
    evidence(&bus, &[9], 4, now).await;
    let all = vec![row(1, 9, None), row(2, 8, None), row(3, 7, None)];
    snapshot(&bus, all, now).await;
    stored(&bus, 0, 3).await;
    drop(process);

    // One starts while nobody looks, another one later.
    let later = now + TimeDelta::seconds(60);
    evidence(&bus, &[1], 4, later).await;
    snapshot(&bus, vec![row(2, 8, None), row(3, 7, None)], later).await;
    let process = Process::start(folder.path(), &nats);
    stored(&bus, 1, 2).await;
    drop(process);

    let later = later + TimeDelta::seconds(60);
    evidence(&bus, &[2], 4, later).await;
    snapshot(&bus, vec![row(3, 7, None)], later).await;
    let _process = Process::start(folder.path(), &nats);
    stored(&bus, 2, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_shows_when_a_job_may_start_and_how_often_that_was_right() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    for (id, reason) in [(1, "Priority"), (2, "JobHeldUser")] {
        bus.publish(&waiting(id, EventType::JobPending, reason, 1))
            .await
            .unwrap();
    }
    let service = start(&nats).await;
    let now = Utc::now();
    evidence(&bus, &[9], 4, now).await;
    let held = QueuedJob {
        reason: "JobHeldUser".into(),
        ..row(2, 8, None)
    };
    snapshot(&bus, vec![row(1, 9, None), held], now).await;
    let router = &service.router;
    wait_until("job 1 has an estimate", DEADLINE, async || {
        let (_, job) = get(router, "/v1/queue/testbed/1", "alice", Role::User).await;
        job["estimate"]["start_p90"].is_string()
    })
    .await;
    let (_, job) = get(router, "/v1/queue/testbed/1", "alice", Role::User).await;
    // Nothing has started yet, so there is no likely time, and it says so.
    assert!(job["estimate"]["start_p50"].is_null());
    assert_eq!(job["estimate"]["method"], "uncalibrated");
    assert!(
        job["estimate"]["note"]
            .as_str()
            .unwrap()
            .starts_with("too early")
    );
    let (_, held) = get(router, "/v1/queue/testbed/2", "alice", Role::User).await;
    assert!(held["estimate"].is_null());
    let path = "/v1/queue/quality?cluster=testbed";
    let (_, quality) = get(router, path, "bob", Role::User).await;
    assert_eq!(
        (&quality["starts"], &quality["open"]),
        (&0.into(), &1.into())
    );
    service.stop().await;
}
