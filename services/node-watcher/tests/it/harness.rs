//! A Slurm cluster, a running watcher, and its published events.

use std::time::Duration;

use mesh_bus::Bus;
use mesh_events::Event;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::node::v1::NodeEvent;
pub use mesh_testkit::service::admin_bus as bus;
use mesh_testkit::service::{self, TestService};
use mesh_testkit::{ClusterPorts, NatsServer, SlurmCluster, wait_for};
use node_watcher::NodeWatcherService;

/// Cloud nodes take tens of seconds from one stage to the next.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// A Slurm cluster of four fixed and two cloud nodes, without accounting.
pub fn cluster() -> SlurmCluster {
    cluster_of("1")
}

/// The same with slurmdbd.
pub fn cluster_with_accounting() -> SlurmCluster {
    cluster_of("0")
}

fn cluster_of(without_slurmdbd: &str) -> SlurmCluster {
    let knobs = [
        ("NODB", without_slurmdbd),
        ("SUSPEND_TIME", "8"),
        // Long enough for a poll on a busy machine.
        ("CLOUD_BOOT", "5"),
    ];
    let ports = ClusterPorts::take();
    // Two of them may have one NATS.
    SlurmCluster::up_on(&format!("nodes{}", ports.base()), ports, &knobs)
}

/// Runs `scontrol update` on nodes.
pub fn update(cluster: &SlurmCluster, nodes: &str, changes: &[&str]) {
    let nodes = format!("NodeName={nodes}");
    cluster.run_as("root", &[&["scontrol", "update", &nodes], changes].concat());
}

/// Starts a watcher that polls often.
pub async fn start(nats: &NatsServer, cluster: &SlurmCluster) -> TestService {
    let often = "poll_interval = \"200ms\"\nmax_poll_interval = \"1s\"\n";
    start_with(nats, cluster, often).await
}

pub async fn start_with(nats: &NatsServer, cluster: &SlurmCluster, settings: &str) -> TestService {
    start_from(&configuration(nats, cluster, settings)).await
}

/// Starts with this configuration.
pub async fn start_from(configuration: &str) -> TestService {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.toml");
    std::fs::write(&path, configuration).unwrap();
    let started = TestService::start::<NodeWatcherService>(&path).await;
    started.unwrap()
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

/// All node events so far.
pub async fn published_so_far(bus: &Bus) -> Vec<Event> {
    let is_of_nodes = |event: &Event| !event.r#type.starts_with("job.");
    service::published_so_far(bus, DEADLINE, is_of_nodes).await
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
