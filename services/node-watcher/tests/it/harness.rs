//! A Slurm cluster, a running watcher, and what it says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt as _;
use mesh_bus::{Bus, Config, Start};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::node::v1::NodeEvent;
use mesh_events::{Event, EventId, EventType};
use mesh_runtime::{BoxError, ConfigFile, Context, Health, Service as _};
use mesh_testkit::{NatsServer, build, wait_for};
use node_watcher::NodeWatcherService;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Cloud nodes take tens of seconds from one stage to the next.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// A Slurm cluster of four fixed and two cloud nodes, without accounting. Wiped on drop.
pub struct Cluster {
    name: String,
    folder: TempDir,
}

impl Cluster {
    /// Each test has a base port of its own.
    pub fn start(port: u16) -> Self {
        let cluster = Self {
            name: format!("nodes{port}"),
            folder: tempfile::Builder::new()
                .prefix("nw-")
                .tempdir_in("/tmp")
                .unwrap(),
        };
        // Every user of the cluster has to enter it.
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(cluster.folder.path(), everybody).unwrap();
        cluster.script("up", &[&port.to_string()]);
        cluster
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("c")
    }

    pub fn conf(&self) -> PathBuf {
        self.dir().join("etc/slurm.conf")
    }

    pub fn commands(&self) -> PathBuf {
        self.dir().join("commands")
    }

    /// A fault: `["kill", "slurmd:n1"]`.
    pub fn ctl(&self, arguments: &[&str]) {
        self.script("ctl", arguments);
    }

    /// Runs a command as a user of the cluster and returns what it prints.
    pub fn run_as(&self, user: &str, command: &[&str]) -> String {
        self.script("as", &[&[user], command].concat())
    }

    /// `scontrol update` of nodes.
    pub fn update(&self, nodes: &str, what: &[&str]) {
        let nodes = format!("NodeName={nodes}");
        self.run_as("root", &[&["scontrol", "update", &nodes], what].concat());
    }

    fn script(&self, name: &str, arguments: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/cluster")
            .join(name);
        let output = Command::new(script)
            .arg(self.dir())
            .args(arguments)
            .env("CLUSTER", &self.name)
            .env("NODB", "1")
            .env("SUSPEND_TIME", "8")
            // So long that a look of a busy machine falls into it.
            .env("CLOUD_BOOT", "5")
            .env("OWNER", std::process::id().to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{name} {arguments:?}: {text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.script("down", &["--wipe"]);
    }
}

/// A service in this process.
pub struct Running {
    pub health: Health,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), BoxError>>,
}

impl Running {
    pub async fn start(nats: &NatsServer, cluster: &Cluster) -> Self {
        let often = "poll_interval = \"200ms\"\nmax_interval = \"1s\"\n";
        Self::start_with(nats, cluster, often).await
    }

    pub async fn start_with(nats: &NatsServer, cluster: &Cluster, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mesh.toml");
        std::fs::write(&path, configuration(nats, cluster, settings)).unwrap();
        let config = ConfigFile::load(&[NodeWatcherService::DEFAULTS], Some(&path)).unwrap();
        let shutdown = CancellationToken::new();
        let context = Context::new(config, shutdown.clone()).unwrap();
        let health = context.health.clone();
        let started = NodeWatcherService::start(context).await.unwrap();
        Self {
            health,
            shutdown,
            task: tokio::spawn(started.run),
        }
    }

    /// Stops as after SIGTERM.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// Ends without a chance to tidy up.
    pub async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

/// mesh.toml.
pub fn configuration(nats: &NatsServer, cluster: &Cluster, settings: &str) -> String {
    format!(
        "[mesh]\ncluster = \"{}\"\n[mesh.nats]\nurl = \"{}\"\n[slurm]\nconf = {:?}\nbin_dir = {:?}\n[node-watcher]\n{settings}\n",
        cluster.name(),
        nats.url(),
        cluster.conf(),
        cluster.commands()
    )
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

/// Every event about nodes so far, up to a mark that is published for the purpose. Asked again while NATS is not all there.
pub async fn said_so_far(bus: &Bus) -> Vec<Event> {
    wait_for("what was said", DEADLINE, async || said(bus).await.ok()).await
}

async fn said(bus: &Bus) -> Result<Vec<Event>, mesh_bus::Error> {
    let mark = EventId::sampled(
        "mark",
        &format!("{:?}", std::time::Instant::now()),
        EventType::UserLogin,
        1,
    )
    .to_string();
    let template = build::job_event(EventType::JobSuspended, build::job(1));
    bus.publish(&Event {
        id: mark.clone(),
        ..template
    })
    .await?;
    let filters = vec![
        "slurm.*.node.>".to_owned(),
        "slurm.*.job.suspended.>".to_owned(),
    ];
    let mut messages = Box::pin(bus.follow(filters, Start::Sequence(1)).await?);
    let mut said = Vec::new();
    while let Some(message) = messages.next().await {
        let event = message?.event().unwrap();
        if event.id == mark {
            break;
        }
        if event.r#type.starts_with("node.") {
            said.push(event);
        }
    }
    Ok(said)
}

/// What was said about one node: `draining admin`, the event and its cause.
pub fn of_node(said: &[Event], node: &str) -> Vec<String> {
    let key = format!("node/{node}");
    let told = said.iter().filter(|event| event.entity_key() == key);
    told.map(|event| {
        format!("{} {}", event.kind().unwrap().event(), payload(event).cause)
            .trim_end()
            .to_owned()
    })
    .collect()
}

/// Waits until the node's events end with `last`, and returns all of them.
pub async fn until(bus: &Bus, node: &str, last: &str) -> Vec<Event> {
    wait_for(&format!("{node}: {last}"), DEADLINE, async || {
        let said = said_so_far(bus).await;
        let done = of_node(&said, node)
            .last()
            .is_some_and(|event| event == last);
        if !done {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        done.then_some(said)
    })
    .await
}

pub fn payload(event: &Event) -> &NodeEvent {
    match &event.payload {
        Some(Payload::Node(node)) => node,
        other => panic!("not about a node: {other:?}"),
    }
}
