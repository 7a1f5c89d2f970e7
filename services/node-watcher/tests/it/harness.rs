//! A Slurm cluster, a running watcher, and its published events.

use std::time::Duration;

use futures_util::StreamExt as _;
use mesh_bus::{Bus, Config, StartPosition};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::node::v1::NodeEvent;
use mesh_events::{Event, EventId, EventType};
use mesh_runtime::{BoxError, ConfigFile, Context, Health, Service as _, ServiceSection};
use mesh_testkit::{NatsServer, SlurmCluster, fixtures, wait_for};
use node_watcher::NodeWatcherService;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Cloud nodes take tens of seconds from one stage to the next.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// A Slurm cluster of four fixed and two cloud nodes, without accounting. Each test has its own base port.
pub fn cluster(port: u16) -> SlurmCluster {
    let knobs = [
        ("NODB", "1"),
        ("SUSPEND_TIME", "8"),
        // Long enough for a poll on a busy machine.
        ("CLOUD_BOOT", "5"),
    ];
    SlurmCluster::up(&format!("nodes{port}"), port, &knobs)
}

/// Runs `scontrol update` on nodes.
pub fn update(cluster: &SlurmCluster, nodes: &str, changes: &[&str]) {
    let nodes = format!("NodeName={nodes}");
    cluster.run_as("root", &[&["scontrol", "update", &nodes], changes].concat());
}

/// A service in this process.
pub struct Running {
    pub health: Health,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), BoxError>>,
}

impl Running {
    pub async fn start(nats: &NatsServer, cluster: &SlurmCluster) -> Self {
        let often = "poll_interval = \"200ms\"\nmax_poll_interval = \"1s\"\n";
        Self::start_with(nats, cluster, often).await
    }

    pub async fn start_with(nats: &NatsServer, cluster: &SlurmCluster, settings: &str) -> Self {
        Self::start_from(&configuration(nats, cluster, settings)).await
    }

    /// Starts with this configuration.
    pub async fn start_from(configuration: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mesh.toml");
        std::fs::write(&path, configuration).unwrap();
        let config =
            ConfigFile::load(&[ServiceSection::of::<NodeWatcherService>()], Some(&path)).unwrap();
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

    /// Ends abruptly.
    pub async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

/// Text of mesh.toml.
pub fn configuration(nats: &NatsServer, cluster: &SlurmCluster, settings: &str) -> String {
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

/// All node events so far, up to a marker event published for this purpose. Retries while NATS is not fully available.
pub async fn published_so_far(bus: &Bus) -> Vec<Event> {
    wait_for("what was said", DEADLINE, async || events(bus).await.ok()).await
}

async fn events(bus: &Bus) -> Result<Vec<Event>, mesh_bus::Error> {
    let mark = EventId::sampled(
        "mark",
        &format!("{:?}", std::time::Instant::now()),
        EventType::UserLogin,
        1,
    )
    .to_string();
    let template = fixtures::job_event(EventType::JobSuspended, fixtures::job(1));
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
        if !event.r#type.starts_with("job.") {
            events.push(event);
        }
    }
    Ok(events)
}

/// The events of one node with their causes: `draining admin`.
pub fn of_node(events: &[Event], node: &str) -> Vec<String> {
    let key = format!("node/{node}");
    let published = events.iter().filter(|event| event.entity_key() == key);
    published
        .map(|event| {
            format!("{} {}", event.kind().unwrap().event(), payload(event).cause)
                .trim_end()
                .to_owned()
        })
        .collect()
}

/// Waits until the node's last event is `last`, and returns all its events.
pub async fn until(bus: &Bus, node: &str, last: &str) -> Vec<Event> {
    wait_for(&format!("{node}: {last}"), DEADLINE, async || {
        let events = published_so_far(bus).await;
        let done = of_node(&events, node)
            .last()
            .is_some_and(|event| event == last);
        if !done {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        done.then_some(events)
    })
    .await
}

pub fn payload(event: &Event) -> &NodeEvent {
    match &event.payload {
        Some(Payload::Node(node)) => node,
        other => panic!("not about a node: {other:?}"),
    }
}
