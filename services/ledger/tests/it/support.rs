//! A ledger process, a store filled by hand, and an API served for a caller.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use bytes::Bytes;
use ledger::Store;
use ledger::api::{Events, router};
use ledger::domain::fact::Fact;
use mesh_bus::Bus;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, Delivery, audit_entry::Act};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Entity, Event};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
use mesh_events::{EventId, EventType, subject, timestamp};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::build::{self, CLUSTER};
use mesh_testkit::{NatsServer, wait_until};
use prost::Message as _;
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub const DEADLINE: Duration = Duration::from_secs(60);

/// The service's own binary, with a folder of its own.
pub struct Process {
    folder: TempDir,
    child: Option<Child>,
    http: reqwest::Client,
}

impl Process {
    pub async fn start(nats: &NatsServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("ledger.sock");
        let config = format!(
            "[mesh]\ncluster = {CLUSTER:?}\ndata_dir = {:?}\n[mesh.nats]\nurl = {:?}\n[ledger]\nbatch_size = 100\n",
            folder.path(),
            nats.url()
        );
        std::fs::write(folder.path().join("mesh.toml"), config).unwrap();
        mesh_runtime::install_tls();
        let http = reqwest::Client::builder()
            .unix_socket(socket)
            .pool_max_idle_per_host(0)
            .build()
            .unwrap();
        let mut process = Self {
            folder,
            child: None,
            http,
        };
        process.restart();
        process
            .until("ready", async |process| {
                process.get("/readyz").await.is_some()
            })
            .await;
        process
    }

    pub fn database(&self) -> PathBuf {
        self.folder.path().join("ledger.db")
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn restart(&mut self) {
        self.kill();
        let log = std::fs::File::create(self.folder.path().join("ledger.log")).unwrap();
        // A write beyond a limit of limit_files() is to fail, not to kill.
        let child = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_ledger"))
            .arg("--config")
            .arg(self.folder.path().join("mesh.toml"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Lets no file of the process grow beyond this many bytes, as a disk that is full; `None`: as large as it likes.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        let soft = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        // The colon leaves the hard limit as it is, so that the soft one can be raised again.
        let status = Command::new("prlimit")
            .args(["--pid", &pid, &format!("--fsize={soft}:")])
            .status()
            .expect("prlimit, of the package util-linux");
        assert!(status.success());
    }

    /// The answer as text; `None` unless the status is 200.
    pub async fn get(&self, path: &str) -> Option<String> {
        let answer = self
            .http
            .get(format!("http://ledger{path}"))
            .send()
            .await
            .ok()?;
        if !answer.status().is_success() {
            return None;
        }
        answer.text().await.ok()
    }

    pub async fn json(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&self.get(path).await?).ok()
    }

    pub async fn head(&self) -> Option<u64> {
        self.json("/v1/ledger/head").await?["seq"].as_u64()
    }

    pub async fn until(&self, what: &str, mut condition: impl AsyncFnMut(&Self) -> bool) {
        let log = self.folder.path().join("ledger.log");
        let result = tokio::time::timeout(
            DEADLINE,
            wait_until(what, DEADLINE * 2, async || condition(self).await),
        )
        .await;
        assert!(
            result.is_ok(),
            "not in time: {what}\n{}",
            std::fs::read_to_string(log).unwrap_or_default()
        );
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A bus whose streams exist.
pub async fn bus(nats: &NatsServer, role: &str) -> Bus {
    let config = mesh_bus::Config {
        url: nats.url(),
        ..mesh_bus::Config::default()
    };
    let bus = Bus::connect(&config, role).await.unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    bus
}

/// An event of a job of a user.
pub fn of_user(user: &str, kind: EventType, job: Job) -> Event {
    let mut event = build::job_event(kind, job);
    if let Some(owner) = &mut event.owner {
        owner.user = user.into();
    }
    event
}

pub fn node_event(name: &str, n: u64) -> Event {
    let key = format!("node/{name}");
    let kind = EventType::NodeDown;
    Event {
        id: EventId::sampled(CLUSTER, &key, kind, n).to_string(),
        cluster: CLUSTER.into(),
        r#type: kind.to_string(),
        occurred_at: Some(timestamp(build::submit_time())),
        observed_at: Some(timestamp(build::submit_time())),
        entity: Some(Entity {
            kind: "node".into(),
            key,
        }),
        payload: Some(Payload::Node(NodeEvent {
            node: Some(Node {
                name: name.into(),
                ..Node::default()
            }),
            ..NodeEvent::default()
        })),
        ..Event::default()
    }
}

pub fn audit_entry(n: u32) -> AuditEntry {
    AuditEntry {
        id: format!("00000000-0000-4000-8000-{n:012}"),
        cluster: CLUSTER.into(),
        kind: "delivery".into(),
        at: Some(timestamp(build::submit_time())),
        service: "webhook-dispatcher".into(),
        act: Some(Act::Delivery(Delivery {
            endpoint: "chat".into(),
            outcome: "delivered".into(),
            attempts: 1,
            status: 200,
            ..Delivery::default()
        })),
    }
}

pub fn fact(event: &Event) -> Fact {
    let subject = subject::of(event).unwrap();
    Fact::event(&subject, Bytes::from(event.encode_to_vec())).unwrap()
}

pub fn audit_fact(entry: &AuditEntry) -> Fact {
    let subject = subject::audit(&entry.cluster, &entry.kind);
    Fact::audit(&subject, Bytes::from(entry.encode_to_vec())).unwrap()
}

pub async fn store(folder: &Path) -> Store {
    Store::open(&folder.join("ledger.db"), 2).await.unwrap()
}

pub fn admin() -> Caller {
    Caller::peer("root", 0, Role::Admin)
}

pub fn user(name: &str) -> Caller {
    Caller::peer(name, 20_001, Role::User)
}

/// Serves the API to one caller over TCP, as the runtime would after it has found out who calls. Gives the address.
pub async fn serve(store: &Store, caller: Caller, max_page: u32, max_story: u32) -> String {
    let api = Arc::new(Events::new(store.clone(), max_page, max_story));
    let routes = router(api).layer(Extension(caller));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    format!("http://{address}")
}
