//! An exporter per test, and the snapshots and events that it reads.

use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use chrono::{DateTime, Utc};
use exporter::ExporterService;
use mesh_bus::Bus;
use mesh_events::catalogue::{BUCKET_JOB_COUNTS, BUCKET_NODE_LIST};
use mesh_events::proto::mesh::metrics::v1::{JobCell, JobCounts, NodeList, NodeSummary};
use mesh_events::timestamp;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::CLUSTER;
use mesh_testkit::service::TestService;
pub use mesh_testkit::service::{admin_bus as bus, publish};
use mesh_testkit::{NatsServer, wait_for};
use prost::Message as _;
use tempfile::TempDir;

pub const DEADLINE: Duration = Duration::from_secs(60);

/// A folder with the configuration and, later, the database.
pub struct Site {
    folder: TempDir,
    more: String,
}

/// A running exporter.
pub struct Exporter(TestService);

impl Site {
    pub fn new(more: &str) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            more: more.to_owned(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub async fn start(&self, nats: &NatsServer) -> Exporter {
        let path = self.folder.path().join("mesh.toml");
        let text = format!(
            "[mesh]\ncluster = \"{CLUSTER}\"\ndata_dir = {:?}\n[mesh.nats]\nurl = \"{}\"\n[exporter]\nrefresh_interval = \"1s\"\n{}",
            self.folder.path(),
            nats.url(),
            self.more
        );
        mesh_testkit::write_private(&path, text);
        let started = TestService::start::<ExporterService>(&path).await;
        Exporter(started.unwrap())
    }
}

impl Exporter {
    /// The answer to a scrape as a caller with this role.
    pub async fn get(&self, page: &str, role: Role, accept: &str) -> (StatusCode, String) {
        let request = Request::get(format!("/metrics/{page}"))
            .header("Accept", accept)
            .body(Body::empty())
            .unwrap();
        let prometheus = Caller::peer("prometheus", 65_534, role);
        let (status, body) = self.0.call(prometheus, request).await;
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// A page as Prometheus' text.
    pub async fn page(&self, page: &str) -> String {
        self.get(page, Role::Metrics, "text/plain").await.1
    }

    /// Waits until a page has this line.
    pub async fn wait_line(&self, page: &str, line: &str) -> String {
        let description = format!("{line:?} on {page}");
        wait_for(&description, DEADLINE, async || {
            let text = self.page(page).await;
            text.lines().any(|found| found == line).then_some(text)
        })
        .await
    }

    /// Stops as after SIGTERM.
    pub async fn stop(self) {
        self.0.stop().await;
    }

    /// Ends abruptly, as after SIGKILL: whatever was not committed is lost.
    pub async fn kill(self) {
        self.0.kill().await;
    }
}

pub async fn write_jobs(bus: &Bus, taken_at: DateTime<Utc>, cells: Vec<JobCell>) {
    let chunk = JobCounts {
        cluster: CLUSTER.to_owned(),
        taken_at: Some(timestamp(taken_at)),
        chunk: 0,
        chunks: 1,
        cells,
        scheduler: None,
    };
    let mut writer = bus
        .take_over_chunks(BUCKET_JOB_COUNTS, CLUSTER)
        .await
        .unwrap();
    writer.write(0, chunk.encode_to_vec()).await.unwrap();
}

pub async fn write_nodes(bus: &Bus, taken_at: DateTime<Utc>, nodes: Vec<NodeSummary>) {
    let chunk = NodeList {
        cluster: CLUSTER.to_owned(),
        taken_at: Some(timestamp(taken_at)),
        chunk: 0,
        chunks: 1,
        nodes,
    };
    let mut writer = bus
        .take_over_chunks(BUCKET_NODE_LIST, CLUSTER)
        .await
        .unwrap();
    writer.write(0, chunk.encode_to_vec()).await.unwrap();
}

/// Jobs of an account in a state. Pending ones wait for `reason`.
pub fn cell(account: &str, state: &str, reason: &str, jobs: u64) -> JobCell {
    let class = match reason {
        "" => "",
        "JobHeldUser" => "held",
        "Dependency" => "dependency",
        _ => "waiting_turn",
    };
    JobCell {
        partition: "cpu".into(),
        account: account.into(),
        user: format!("{account}-user"),
        qos: "normal".into(),
        state: state.into(),
        reason: reason.into(),
        reason_class: class.into(),
        jobs,
        tasks: jobs * 2,
        cpus: jobs * 4,
        nodes: jobs,
        max_nodes: 1,
        oldest_submit: 1_763_760_000,
    }
}

/// A node with 8 CPUs and 2 GPUs.
pub fn node(name: &str, state: &str, lifecycle: &str, alloc_cpus: u32) -> NodeSummary {
    NodeSummary {
        name: name.into(),
        state: state.into(),
        lifecycle: lifecycle.into(),
        reason: if lifecycle == "active" {
            ""
        } else {
            "bad \"disk\""
        }
        .into(),
        cpus: 8,
        effective_cpus: 8,
        alloc_cpus,
        memory_mib: 16_000,
        alloc_memory_mib: u64::from(alloc_cpus) * 1_000,
        free_memory_mib: Some(9_000),
        gpus: 2,
        alloc_gpus: u32::from(alloc_cpus > 0),
        partitions: vec!["cpu".into()],
        gres: "gpu:a100:2".into(),
        ..NodeSummary::default()
    }
}
