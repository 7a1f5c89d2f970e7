//! Nothing lost, nothing twice: restarts, an absent slurmctld, two instances.

use std::collections::BTreeSet;

use mesh_events::{EventId, EventType};
use mesh_testkit::{NatsServer, wait_until};
use node_watcher::adapters::store::Store;
use node_watcher::domain::event;
use node_watcher::domain::sweep::sweep;
use slurm_client::NodeRecord;

use crate::harness::{Cluster, DEADLINE, Running, bus, of_node, said_so_far, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happened_while_away_is_told_once_and_nothing_again() {
    let (mut nats, cluster) = (NatsServer::start().await, Cluster::start(24_300));
    {
        let bus = bus(&nats).await;
        let service = Running::start(&nats, &cluster).await;
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
    let service = Running::start(&nats, &cluster).await;
    until(&bus, "n1", "drained admin").await;

    // Without slurmctld nothing is known, so nothing is said.
    cluster.ctl(&["kill", "slurmctld"]);
    wait_until(
        "the watcher says that Slurm is away",
        DEADLINE,
        async || service.health.problems().contains_key("node-watcher.slurm"),
    )
    .await;
    cluster.ctl(&["start", "slurmctld"]);
    wait_until("the watcher is ready again", DEADLINE, async || {
        service.health.problems().is_empty()
    })
    .await;

    // NATS restarts below it.
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
    let said = until(&bus, "n2", "down admin").await;
    assert_eq!(of_node(&said, "n1"), ["baseline", "drained admin"]);
    assert_eq!(of_node(&said, "n2"), ["baseline", "down admin"]);
    assert_eq!(of_node(&said, "n3"), ["baseline"]);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_tell_everything_once() {
    let (nats, cluster) = (NatsServer::start().await, Cluster::start(24_400));
    let bus = bus(&nats).await;
    let (one, other) = (
        Running::start(&nats, &cluster).await,
        Running::start(&nats, &cluster).await,
    );
    until(&bus, "n4", "baseline").await;
    for _ in 0..3 {
        cluster.run_as(
            "root",
            &[
                "scontrol",
                "update",
                "NodeName=n1,n2,n3",
                "State=DRAIN",
                "Reason=bad disk",
            ],
        );
        until(&bus, "n3", "drained admin").await;
        cluster.run_as(
            "root",
            &["scontrol", "update", "NodeName=n1,n2,n3", "State=RESUME"],
        );
        until(&bus, "n3", "recovered").await;
    }
    one.stop().await;
    other.stop().await;
    let said = said_so_far(&bus).await;
    for node in ["n1", "n2", "n3"] {
        let rounds = ["drained admin", "recovered"].repeat(3);
        assert_eq!(
            of_node(&said, node),
            [vec!["baseline"], rounds].concat(),
            "{node}"
        );
    }
    assert_eq!(
        said.iter()
            .map(|event| &event.id)
            .collect::<BTreeSet<_>>()
            .len(),
        said.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_but_not_published_is_published_after_a_crash() {
    let (nats, cluster) = (NatsServer::start().await, Cluster::start(24_500));
    let bus = bus(&nats).await;
    // An instance that dies between its write and its publish, at the very first look.
    let mut store = Store::load(&bus, cluster.name()).await.unwrap();
    let mut node = NodeRecord {
        name: "n1".into(),
        ..NodeRecord::default()
    };
    node.state = "DOWN".parse().unwrap();
    let seen = sweep(&store.nodes(), true, vec![node], chrono::Utc::now());
    let events = event::of(cluster.name(), &seen[0]);
    store
        .write(vec![("n1".into(), seen[0].after.clone())], &events)
        .await
        .unwrap();
    drop(store);

    let service = Running::start(&nats, &cluster).await;
    let said = until(&bus, "n1", "recovered").await;
    // The intended event itself comes out; the other nodes are still baseline, since the first look was not complete.
    assert_eq!(said[0], events[0]);
    assert_eq!(
        said[0].id,
        EventId::sampled(cluster.name(), "node/n1", EventType::NodeBaseline, 1).to_string()
    );
    let said = until(&bus, "n4", "baseline").await;
    assert_eq!(of_node(&said, "n2"), ["baseline"]);
    service.stop().await;
}
