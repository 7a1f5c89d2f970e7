//! No event lost or duplicated: restarts, an unavailable slurmctld, two instances.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mesh_bus::Bus;
use mesh_events::proto::mesh::event::v1::Source;
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::{EventId, EventType, subject};
use mesh_testkit::{NatsServer, Replicas, SlurmCluster, wait_for, wait_until};
use node_watcher::adapters::store::Store;
use node_watcher::domain::absence::{NewNode, confirm_absence};
use node_watcher::domain::event;
use prost::Message as _;
use slurm_client::NodeRecord;

use crate::harness::{
    DEADLINE, bus, cluster, cluster_with_accounting, configuration, of_node, published_so_far,
    start, start_with, until, update,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_of_an_absence_are_published_once() {
    let (mut nats, cluster) = (NatsServer::start().await, cluster());
    {
        let bus = bus(&nats).await;
        let service = start(&nats, &cluster).await;
        until(&bus, "n4", "baseline").await;
        wait_until("the watcher is ready", DEADLINE, async || {
            service.health.problems().is_empty()
        })
        .await;
        service.kill().await;
    }
    cluster.run_as(
        "root",
        &[
            "scontrol",
            "update",
            "NodeName=n1",
            "State=DRAIN",
            "Reason=bad disk",
        ],
    );
    let bus = bus(&nats).await;
    let service = start(&nats, &cluster).await;
    until(&bus, "n1", "drained admin").await;

    // Without slurmctld the state is unknown, so nothing is published.
    cluster.ctl("kill", "slurmctld");
    wait_until(
        "the watcher says that Slurm is away",
        DEADLINE,
        async || service.health.problems().contains_key("node-watcher.slurm"),
    )
    .await;
    cluster.ctl("start", "slurmctld");
    wait_until("the watcher is ready again", DEADLINE, async || {
        service.health.problems().is_empty()
    })
    .await;

    // NATS restarts while the service runs.
    nats.restart().await;
    cluster.run_as(
        "root",
        &[
            "scontrol",
            "update",
            "NodeName=n2",
            "State=DOWN",
            "Reason=replaced",
        ],
    );
    let events = until(&bus, "n2", "down admin").await;
    assert_eq!(of_node(&events, "n1"), ["baseline", "drained admin"]);
    assert_eq!(of_node(&events, "n2"), ["baseline", "down admin"]);
    assert_eq!(of_node(&events, "n3"), ["baseline"]);
    service.stop().await;
}

/// slurmctld shows nothing of it any more; accounting has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downtime_between_two_polls_is_published_from_accounting() {
    let (nats, cluster) = (NatsServer::start().await, cluster_with_accounting());
    let bus = bus(&nats).await;
    let settings = "accounting_interval = \"1s\"\n";
    let service = start_with(&nats, &cluster, settings).await;
    until(&bus, "n4", "baseline").await;
    wait_until("the watcher is ready", DEADLINE, async || {
        service.health.problems().is_empty()
    })
    .await;
    service.kill().await;
    for change in [
        ["State=DRAIN", "Reason=a|b"].as_slice(),
        &["State=DOWN", "Reason=bad disk"],
        &["State=RESUME"],
    ] {
        update(&cluster, "n1", change);
        // Slurm's times are whole seconds.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    wait_until(
        "accounting has the drain and the downtime",
        DEADLINE,
        async || {
            let ask = ["sacctmgr", "-nP", "show", "event", "nodes=n1", "format=End"];
            let ends = cluster.run_as("root", &ask);
            let is_over = |end: &str| !end.is_empty() && end != "Unknown";
            ends.lines().count() >= 2 && ends.lines().all(is_over)
        },
    )
    .await;
    for _ in 0..2 {
        let service = start_with(&nats, &cluster, settings).await;
        let events = until(&bus, "n1", "recovered").await;
        let of_n1 = of_node(&events, "n1").join(", ");
        assert_eq!(of_n1, "baseline, drained admin, down admin, recovered");
        let unseen = events
            .iter()
            .filter(|event| event.source() == Source::Accounting);
        let unseen: Vec<_> = unseen.collect();
        assert_eq!(unseen.len(), 3, "{unseen:?}");
        assert!(
            unseen
                .iter()
                .all(|event| event.late && event.occurred_at != event.observed_at)
        );
        service.kill().await;
    }
}

/// A hook of the cluster sends a doorbell for n2.
async fn ring(bus: &Bus, cluster: &str, hook: &str) {
    let id = format!("{cluster} {hook}");
    let doorbell = Doorbell {
        id: id.clone(),
        hook: hook.to_owned(),
        cluster: cluster.to_owned(),
        nodes: "n2".to_owned(),
        ..Doorbell::default()
    };
    let subject = subject::doorbell(cluster, hook);
    bus.publish_raw(subject, &id, doorbell.encode_to_vec())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doorbell_triggers_a_poll_at_once() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    let seldom = "poll_interval = \"1h\"\nmax_poll_interval = \"2h\"\n";
    let service = start_with(&nats, &cluster, seldom).await;
    until(&bus, "n4", "baseline").await;
    for (hook, state, published) in [
        ("HealthCheckProgram", "State=DRAIN", "drained admin"),
        ("strigger-down", "State=DOWN", "down admin"),
    ] {
        update(&cluster, "n2", &[state, "Reason=bad disk"]);
        ring(&bus, cluster.name(), hook).await;
        until(&bus, "n2", published).await;
    }
    service.stop().await;
}

/// How long an outage makes one look last, and within which time the next two looks have to come. Each comes up to twenty ordinary answers
/// later, on this machine as it is now; together that is far below twenty times the outage.
fn outage_and_bound(cluster: &SlurmCluster) -> (Duration, Duration) {
    const NEXT: Duration = Duration::from_secs(20);
    let mut took = [(); 3].map(|()| {
        let began = Instant::now();
        cluster.run_as("root", &["scontrol", "show", "node"]);
        began.elapsed()
    });
    took.sort_unstable();
    let bound = NEXT + took[1] * 40;
    (bound / 20 + Duration::from_secs(1), bound)
}

/// A slow answer lengthens the pauses, to spare a slow Slurm. A slow write does not indicate Slurm's load, and neither does one slow
/// answer: a much longer pause would miss a booting cloud node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_slow_look_does_not_make_the_next_ones_seldom() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    let settings = "poll_interval = \"200ms\"\nmax_poll_interval = \"10m\"\n";
    let service = start_with(&nats, &cluster, settings).await;
    until(&bus, "n4", "baseline").await;

    let (outage, bound) = outage_and_bound(&cluster);
    nats.pause();
    update(&cluster, "n1", &["State=DRAIN", "Reason=bad disk"]);
    tokio::time::sleep(outage).await;
    nats.resume();
    until(&bus, "n1", "drained admin").await;
    let began = Instant::now();
    update(&cluster, "n1", &["State=RESUME"]);
    until(&bus, "n1", "recovered").await;
    let took = began.elapsed();
    assert!(took < bound, "NATS: {took:?} of {bound:?}");

    let (outage, bound) = outage_and_bound(&cluster);
    cluster.ctl("pause", "slurmctld");
    tokio::time::sleep(outage).await;
    cluster.ctl("continue", "slurmctld");
    let began = Instant::now();
    update(&cluster, "n2", &["State=DRAIN", "Reason=bad disk"]);
    until(&bus, "n2", "drained admin").await;
    update(&cluster, "n2", &["State=RESUME"]);
    until(&bus, "n2", "recovered").await;
    let took = began.elapsed();
    assert!(took < bound, "Slurm: {took:?} of {bound:?}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_the_leader_each_event_is_published_once() {
    let (mut nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("mesh.toml");
    let settings = "poll_interval = \"200ms\"\nmax_poll_interval = \"1s\"";
    std::fs::write(&config, configuration(&nats, &cluster, settings)).unwrap();
    let program = env!("CARGO_BIN_EXE_node-watcher");
    let mut replicas = Replicas::start("node-watcher", program, &config, folder.path());
    until(&bus, "n4", "baseline").await;
    // One poll may include only some of them.
    let all = async |published| {
        for node in ["n1", "n2", "n3"] {
            until(&bus, node, published).await;
        }
    };
    let drain = async || {
        update(&cluster, "n1,n2,n3", &["State=DRAIN", "Reason=bad disk"]);
        all("drained admin").await;
    };
    let resume = async || {
        update(&cluster, "n1,n2,n3", &["State=RESUME"]);
        all("recovered").await;
    };
    drain().await;
    replicas.kill_leader().await;
    resume().await;
    replicas.pause_leader(Duration::from_secs(15), drain).await;
    resume().await;
    drain().await;
    replicas.stop_leader().await;
    resume().await;
    nats.kill();
    nats.restart().await;
    drain().await;
    replicas.settled().await;
    resume().await;
    replicas.stop().await;
    let events = published_so_far(&bus).await;
    for node in ["n1", "n2", "n3"] {
        let rounds = ["drained admin", "recovered"].repeat(4);
        assert_eq!(
            of_node(&events, node),
            [vec!["baseline"], rounds].concat(),
            "{node}"
        );
    }
    let ids: BTreeSet<_> = events.iter().map(|event| &event.id).collect();
    assert_eq!(ids.len(), events.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clusters_on_one_nats_have_nothing_in_common() {
    let nats = NatsServer::start().await;
    let (here, there) = (cluster(), cluster());
    let bus = bus(&nats).await;
    let seldom = "poll_interval = \"1h\"\nmax_poll_interval = \"2h\"";
    let services = [
        start_with(&nats, &here, seldom).await,
        start_with(&nats, &there, seldom).await,
    ];
    let of = async |cluster: &SlurmCluster, last: &str| {
        wait_for(last, DEADLINE, async || {
            let mut events = published_so_far(&bus).await;
            events.retain(|event| event.cluster == cluster.name());
            let published = of_node(&events, "n2");
            (published.last().map(String::as_str) == Some(last)).then_some(published)
        })
        .await
    };
    for cluster in [&here, &there] {
        assert_eq!(of(cluster, "baseline").await, ["baseline"]);
        update(cluster, "n2", &["State=DRAIN", "Reason=bad disk"]);
    }
    // Each doorbell reaches only the watcher of its cluster.
    ring(&bus, there.name(), "strigger-drained").await;
    assert_eq!(
        of(&there, "drained admin").await,
        ["baseline", "drained admin"]
    );
    assert_eq!(of(&here, "baseline").await, ["baseline"]);
    ring(&bus, here.name(), "strigger-drained").await;
    assert_eq!(
        of(&here, "drained admin").await,
        ["baseline", "drained admin"]
    );
    for service in services {
        wait_until("it leads", DEADLINE, async || {
            service.health.leadership()["node-watcher"] == "leader"
        })
        .await;
        service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_events_are_published_after_a_crash() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    // An instance that dies between write and publish during the first poll.
    let mut store = Store::load(&bus, cluster.name()).await.unwrap();
    let mut node = NodeRecord {
        name: "n1".into(),
        ..NodeRecord::default()
    };
    node.state = "DOWN".parse().unwrap();
    let seen = confirm_absence(
        &store.nodes(),
        |_| NewNode::Baseline { count_from: 0 },
        vec![node],
        chrono::Utc::now(),
    );
    let events = event::of(cluster.name(), "scontrol show node", &seen[0]);
    store
        .write(vec![("n1".into(), seen[0].after.clone())], &events)
        .await
        .unwrap();
    drop(store);

    let service = start(&nats, &cluster).await;
    let events = until(&bus, "n1", "recovered").await;
    // The stored event itself is published. The other nodes are still baseline, because the first poll was not complete.
    assert_eq!(events[0], events[0]);
    assert_eq!(
        events[0].id,
        EventId::sampled(cluster.name(), "node/n1", EventType::NodeBaseline, 1).to_string()
    );
    let events = until(&bus, "n4", "baseline").await;
    assert_eq!(of_node(&events, "n2"), ["baseline"]);
    service.stop().await;
}
