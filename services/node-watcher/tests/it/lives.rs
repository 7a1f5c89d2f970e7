//! Lifecycles of real nodes.

use mesh_events::proto::mesh::event::v1::ActorKind;
use mesh_events::subject;
use mesh_testkit::{NatsServer, wait_until};

use crate::harness::{DEADLINE, bus, cluster, of_node, payload, start, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_down_and_resume_are_published_with_cause_and_actor() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    let service = start(&nats, &cluster).await;
    until(&bus, "n4", "baseline").await;

    let job = cluster.run_as(
        "alice",
        &[
            "sbatch",
            "--parsable",
            "-w",
            "n1",
            "-o",
            "/dev/null",
            "--wrap",
            "sleep 300",
        ],
    );
    let job = job.trim();
    wait_until("the job runs", DEADLINE, async || {
        cluster
            .run_as("alice", &["squeue", "-h", "-o", "%T", "-j", job])
            .trim()
            == "RUNNING"
    })
    .await;
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
    let events = until(&bus, "n1", "draining admin").await;
    let draining = events.last().unwrap();
    let node = payload(draining).node.as_ref().unwrap();
    assert_eq!(
        (
            node.lifecycle.as_str(),
            node.reason.as_str(),
            node.reason_user.as_str()
        ),
        ("draining", "bad disk", "root")
    );
    assert_eq!(node.state_flags, ["DRAIN"]);
    assert_eq!(payload(draining).previous_lifecycle, "active");
    let actor = draining.actor.as_ref().unwrap();
    assert_eq!(
        (actor.kind(), actor.user.as_str()),
        (ActorKind::Admin, "root")
    );
    assert_eq!(
        subject::of(draining).unwrap(),
        format!("slurm.{}.node.draining.n1", subject::token(cluster.name()))
    );

    cluster.run_as("alice", &["scancel", job]);
    until(&bus, "n1", "drained admin").await;
    cluster.run_as(
        "root",
        &["scontrol", "update", "NodeName=n1", "State=RESUME"],
    );
    let events = until(&bus, "n1", "recovered").await;
    assert_eq!(
        of_node(&events, "n1"),
        ["baseline", "draining admin", "drained admin", "recovered"]
    );
    let numbers: Vec<_> = events
        .iter()
        .filter(|event| event.entity_key() == "node/n1")
        .map(|event| event.run_seq)
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4]);

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
    until(&bus, "n2", "down admin").await;
    cluster.run_as(
        "root",
        &["scontrol", "update", "NodeName=n2", "State=RESUME"],
    );
    let events = until(&bus, "n2", "recovered").await;
    assert_eq!(
        of_node(&events, "n2"),
        ["baseline", "down admin", "recovered"]
    );
    assert_eq!(of_node(&events, "n3"), ["baseline"]);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_node_is_followed_through_its_whole_cycle() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    let service = start(&nats, &cluster).await;
    until(&bus, "n4", "baseline").await;
    cluster.run_as(
        "alice",
        &[
            "sbatch",
            "-p",
            "cloud",
            "-w",
            "c1",
            "-o",
            "/dev/null",
            "--wrap",
            "true",
        ],
    );
    let events = until(&bus, "c1", "terminated power_saving").await;
    // Slurm 22.05 hides powered-down cloud nodes. Versions that show them include them in the baseline.
    let printed = |node| {
        of_node(&events, node)
            .into_iter()
            .filter(|event| event != "baseline power_saving")
            .collect::<Vec<_>>()
    };
    assert_eq!(
        printed("c1"),
        [
            "provisioning power_saving",
            "active",
            "terminating power_saving",
            "terminated power_saving"
        ]
    );
    assert_eq!(printed("c2"), [""; 0]);
    let node = payload(events.last().unwrap()).node.as_ref().unwrap();
    assert_eq!(
        (node.lifecycle.as_str(), node.cpus, &node.partitions[..]),
        ("terminated", 4, &["cloud".to_owned()][..])
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_is_down_once_slurm_reports_it() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    let service = start(&nats, &cluster).await;
    until(&bus, "n3", "baseline").await;
    cluster.ctl("kill", "slurmd:n3");
    let events = until(&bus, "n3", "down unreachable").await;
    let down = events.last().unwrap();
    assert_eq!(down.actor.as_ref().unwrap().kind(), ActorKind::System);
    assert_eq!(payload(down).cause_source, "slurm");
    cluster.ctl("start", "slurmd:n3");
    let events = until(&bus, "n3", "recovered").await;
    assert_eq!(
        of_node(&events, "n3"),
        ["baseline", "down unreachable", "recovered"]
    );
    service.stop().await;
}
