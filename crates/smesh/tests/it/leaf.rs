//! Hooks that ring through a leaf node on the Slurm host, with two real nats-servers configured by `smesh nats config`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use mesh_bus::{Bus, Config};
use mesh_hook::doorbell::{Call, doorbell};
use mesh_hook::ring::{Outcome, ring};
use mesh_hook::spool::Spool;
use mesh_testkit::{Port, nats_server, wait_until};
use tokio_util::sync::CancellationToken;

use crate::mesh::stderr;

const DEADLINE: Duration = Duration::from_secs(60);

/// A nats-server with a configuration that `smesh nats config` wrote. Killed on drop.
struct Server(Child);

impl Server {
    async fn start(config: &Path, port: &Port) -> Self {
        let log = fs::File::create(config.with_extension("log")).unwrap();
        let mut command = Command::new(nats_server());
        command
            .arg("-c")
            .arg(config)
            .stderr(log)
            .stdout(Stdio::null());
        let server = Self(command.spawn().unwrap());
        wait_until("nats-server listens", DEADLINE, async || {
            tokio::net::TcpStream::connect(port.address()).await.is_ok()
        })
        .await;
        server
    }

    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

struct Site {
    folder: tempfile::TempDir,
    hub: Port,
    hub_leaf: Port,
    /// Ports of the leaf nodes of both clusters.
    leaves: [Port; 2],
}

impl Site {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the configuration of a hub for the clusters `east` and `west`, and of their leaf nodes.
    fn configure() -> Self {
        let site = Self {
            folder: tempfile::tempdir().unwrap(),
            hub: Port::take(),
            hub_leaf: Port::take(),
            leaves: [Port::take(), Port::take()],
        };
        let [listen, leaf, leaf_listen] =
            [&site.hub, &site.hub_leaf, &site.leaves[0]].map(|port| port.address().to_string());
        let output = Command::new(env!("CARGO_BIN_EXE_smesh"))
            .args(["nats", "config", "-M", "east", "--add-cluster", "west"])
            .args(["--listen", &listen, "--leaf", &leaf])
            .args(["--leaf-listen", &leaf_listen, "--store"])
            .arg(site.at("jetstream"))
            .arg("-o")
            .arg(site.folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        // Both leaf nodes run on this host.
        let text = fs::read_to_string(site.at("west/leaf.conf")).unwrap();
        let text = text.replace(&leaf_listen, &site.leaves[1].address().to_string());
        fs::write(site.at("west/leaf.conf"), text).unwrap();
        site
    }

    /// The written configuration of the hooks of a cluster, with a spool of this test, and a port of this host.
    fn hook(&self, cluster: &str, port: &Port) -> mesh_hook::Config {
        let written = match cluster {
            "east" => self.at("hook.toml"),
            _ => self.at("west/hook.toml"),
        };
        let spool = self.at(&format!("spool-{cluster}"));
        let text = fs::read_to_string(written)
            .unwrap()
            .replace("/var/spool/slurm-mesh", &spool.to_string_lossy())
            .replace(
                &self.leaves[0].address().to_string(),
                &port.address().to_string(),
            );
        let path = self.at(&format!("{cluster}-hook.toml"));
        mesh_testkit::write_private(&path, text);
        mesh_hook::Config::load(&path).unwrap()
    }

    async fn bus(&self, role: &str, seed: &str) -> Bus {
        let config = Config {
            url: format!("nats://{}", self.hub.address()),
            nkey_file: Some(self.at(seed)),
            provision: role == "admin",
            ..Config::default()
        };
        let bus = Bus::connect(&config, role).await.unwrap();
        bus.ready(&CancellationToken::new()).await.unwrap();
        bus
    }
}

fn ring_once(config: &mesh_hook::Config, cluster: &str) -> Outcome {
    let now = SystemTime::now();
    let doorbell = doorbell(&Call {
        cluster,
        hook: "PrologSlurmctld",
        host: "h",
        called_at: now,
        environment: &Default::default(),
        arguments: &[],
    });
    ring(config, &doorbell, now, Instant::now())
}

/// Delivers the spool, as the next hook call does. Returns whether it is empty now.
fn flushed(config: &mesh_hook::Config) -> bool {
    let done = mesh_hook::flush::flush_all(config, "h", Duration::from_secs(1), true);
    done.is_ok_and(|done| done.remaining == 0 && done.refused == 0)
}

async fn stored(bus: &Bus) -> u64 {
    let state = bus.stream_state("MESH_HOOKS").await.unwrap();
    state.last_sequence
}

#[tokio::test(flavor = "multi_thread")]
async fn doorbells_pass_a_leaf_node_and_wait_in_the_spool_while_the_hub_is_away() {
    let site = Site::configure();
    let hub = Server::start(&site.at("nats.conf"), &site.hub).await;
    let _east = Server::start(&site.at("leaf.conf"), &site.leaves[0]).await;
    let _west = Server::start(&site.at("west/leaf.conf"), &site.leaves[1]).await;
    let bus = site.bus("admin", "admin.seed").await;
    let (east, west) = (
        site.hook("east", &site.leaves[0]),
        site.hook("west", &site.leaves[1]),
    );
    let mut rung = 0;
    for (config, cluster) in [(&east, "east"), (&west, "west")] {
        wait_until("the leaf node is connected", DEADLINE, async || {
            rung += 1;
            matches!(ring_once(config, cluster), Outcome::Delivered { .. })
        })
        .await;
    }
    // Those that rang before the leaf nodes were connected were delivered from the spool.
    let spool = |config: &mesh_hook::Config| Spool::new(&config.spool, config.max_spool_bytes);
    wait_until("the spools are empty", DEADLINE, async || {
        flushed(&east) && flushed(&west)
    })
    .await;
    assert_eq!(stored(&bus).await, rung);

    // The hub hangs: whether it stored a doorbell that was not answered shows later, by its id.
    hub.signal("-STOP");
    for _ in 0..3 {
        rung += 1;
        let outcome = ring_once(&east, "east");
        assert!(matches!(outcome, Outcome::Spooled(_)), "{outcome:?}");
    }
    assert_eq!(spool(&east).len().unwrap(), 3);
    hub.signal("-CONT");
    wait_until("the spool is delivered", DEADLINE, async || flushed(&east)).await;
    assert_eq!(stored(&bus).await, rung, "nothing lost, nothing twice");

    // The hub is gone.
    drop(hub);
    for _ in 0..3 {
        rung += 1;
        let outcome = ring_once(&east, "east");
        assert!(matches!(outcome, Outcome::Spooled(_)), "{outcome:?}");
    }
    let _hub = Server::start(&site.at("nats.conf"), &site.hub).await;
    wait_until("the spool is delivered", DEADLINE, async || flushed(&east)).await;
    let bus = site.bus("admin", "admin.seed").await;
    assert_eq!(stored(&bus).await, rung, "nothing lost, nothing twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_one_cluster_are_of_no_use_for_another() {
    use mesh_events::EventType::JobStarted;
    use mesh_testkit::fixtures::{job, job_event};
    let site = Site::configure();
    let _hub = Server::start(&site.at("nats.conf"), &site.hub).await;
    let _leaf = Server::start(&site.at("leaf.conf"), &site.leaves[0]).await;
    let bus = site.bus("admin", "admin.seed").await;
    // At the hub and at the leaf node: a stolen hook.toml cannot ring for another cluster.
    for (cluster, other, port) in [
        ("east", "west", &site.hub),
        ("west", "east", &site.hub),
        ("east", "west", &site.leaves[0]),
    ] {
        let hook = site.hook(cluster, port);
        wait_until("its own doorbell", DEADLINE, async || {
            matches!(ring_once(&hook, cluster), Outcome::Delivered { .. })
        })
        .await;
        let before = stored(&bus).await;
        let outcome = ring_once(&hook, other);
        assert!(!matches!(outcome, Outcome::Delivered { .. }), "{outcome:?}");
        assert_eq!(stored(&bus).await, before);
    }
    // The password of leaf nodes is for leaf nodes only.
    let leaf = Config {
        url: format!("nats://{}", site.hub.address()),
        user: Some("leaf".into()),
        password_file: Some(site.at("leaf.password")),
        provision: false,
        ..Config::default()
    };
    let refused = Bus::connect(&leaf, "hook").await.unwrap();
    let shutdown = CancellationToken::new();
    let ready = tokio::time::timeout(Duration::from_secs(2), refused.ready(&shutdown)).await;
    assert!(ready.is_err(), "it is refused: {:?}", refused.problem());

    // One dispatcher serves both clusters, and may take the consumers of neither ingest.
    let users = fs::read_to_string(site.at("users.conf")).unwrap();
    let dispatcher = users
        .lines()
        .find(|line| line.contains("webhook-dispatcher-0"));
    let dispatcher = dispatcher.unwrap();
    for name in ["ingest-east", "ingest-west", "ingest-unknown", "*", ">"] {
        for verb in ["CREATE", "DELETE", "INFO", "MSG.NEXT"] {
            let other = format!("$JS.API.CONSUMER.{verb}.SLURM_EVENTS.{name}");
            assert!(!dispatcher.contains(&other), "{users}");
        }
    }
    assert!(!site.at("west/ledger.seed").exists(), "one ledger for both");

    let mut event = job_event(JobStarted, job(1));
    let (east, west) = (
        site.bus("ingest", "ingest.seed").await,
        site.bus("ingest", "west/ingest.seed").await,
    );
    event.cluster = "east".into();
    east.publish(&event).await.unwrap();
    assert!(west.publish(&event).await.is_err());
    event.cluster = "west".into();
    event.id = uuid::Uuid::now_v7().to_string();
    west.publish(&event).await.unwrap();
    event.id = uuid::Uuid::now_v7().to_string();
    assert!(east.publish(&event).await.is_err());
}

/// A leaf node with the password of `leaf` that lets anybody publish anything, as a thief would set it up.
#[tokio::test(flavor = "multi_thread")]
async fn a_leaf_node_of_a_thief_rings_for_its_cluster_and_can_do_nothing_else() {
    let site = Site::configure();
    let _hub = Server::start(&site.at("nats.conf"), &site.hub).await;
    let bus = site.bus("admin", "admin.seed").await;
    let text = fs::read_to_string(site.at("leaf.conf")).unwrap();
    let (before, rest) = text.split_once("authorization {").unwrap();
    let (_, remotes) = rest.split_once("leafnodes {").unwrap();
    let config = site.at("thief.conf");
    fs::write(&config, format!("{before}leafnodes {{{remotes}")).unwrap();
    let _leaf = Server::start(&config, &site.leaves[0]).await;
    let url = format!("nats://{}", site.leaves[0].address());
    let options = async_nats::ConnectOptions::new().custom_inbox_prefix("_INBOX_hook");
    let thief = options.connect(url).await.unwrap();
    let doorbell = "mesh.east.hook.Epilog";
    wait_until("the leaf node is connected", DEADLINE, async || {
        thief.request(doorbell, "bell".into()).await.is_ok()
    })
    .await;
    let before = stored(&bus).await;
    let others = [
        "mesh.west.hook.Epilog",
        "slurm.east.job.completed.1",
        "$KV.mesh_leases.east.ingest",
        "$KV.mesh_ingest.east.5",
        "mesh.east.audit.key",
        "$JS.API.STREAM.PURGE.MESH_HOOKS",
    ];
    for other in others {
        thief.publish(other, "forged".into()).await.unwrap();
        let rung = thief.publish_with_reply(doorbell, other, "bell".into());
        rung.await.unwrap();
    }
    let all = before + others.len() as u64;
    wait_until("all doorbells are stored", DEADLINE, async || {
        stored(&bus).await >= all
    })
    .await;
    // The answers are under way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for stream in [
        "SLURM_EVENTS",
        "MESH_AUDIT",
        "KV_mesh_leases",
        "KV_mesh_ingest",
    ] {
        let state = bus.stream_state(stream).await.unwrap();
        assert_eq!(state.last_sequence, 0, "{stream}");
    }
    assert_eq!(stored(&bus).await, all);
    let mut hooks = bus.stored_messages("MESH_HOOKS", "mesh.*.hook.*".into());
    let hooks = hooks.next().await.unwrap();
    assert_eq!(hooks.len() as u64, all, "and none was purged");
    for message in hooks {
        assert_eq!(
            (message.subject.as_str(), message.body.as_ref()),
            (doorbell, &b"bell"[..])
        );
    }
}
