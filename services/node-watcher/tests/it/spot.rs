//! Notices of a cloud provider.

use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::Bus;
use mesh_events::proto::mesh::event::v1::{Confidence, Source};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::{hooks, subject, timestamp};
use mesh_testkit::{NatsServer, SlurmCluster, wait_until};
use prost::Message as _;

use crate::harness::{
    DEADLINE, bus, cluster, of_node, payload, published_so_far, start_with, until, update,
};

/// A hook brings a notice.
async fn ring(bus: &Bus, cluster: &SlurmCluster, id: &str, nodes: &str, notice: &str) {
    let doorbell = Doorbell {
        id: id.to_owned(),
        hook: hooks::SPOT_NOTICE_HOOK.to_owned(),
        cluster: cluster.name().to_owned(),
        called_at: Some(timestamp(Utc::now())),
        nodes: nodes.to_owned(),
        arguments: vec![notice.to_owned()],
        ..Doorbell::default()
    };
    let subject = subject::doorbell(cluster.name(), hooks::SPOT_NOTICE_HOOK);
    bus.publish_raw(subject, id, doorbell.encode_to_vec())
        .await
        .unwrap();
}

/// Text of AWS.
fn notice_until(deadline: DateTime<Utc>) -> String {
    let time = deadline.format("%Y-%m-%dT%H:%M:%SZ");
    format!(r#"{{"action": "terminate", "time": "{time}"}}"#)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_is_published_once_with_the_jobs_on_the_node_and_explains_its_end() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    // Polls are so rare that only the doorbell causes one.
    let service = start_with(
        &nats,
        &cluster,
        "poll_interval = \"1h\"\nmax_poll_interval = \"2h\"\n",
    )
    .await;
    until(&bus, "n4", "baseline").await;
    let submit = [
        "sbatch",
        "--parsable",
        "-p",
        "cloud",
        "-w",
        "c1",
        "-o",
        "/dev/null",
    ];
    let job = cluster.run_as("alice", &[&submit[..], &["--wrap", "sleep 300"]].concat());
    let job = job.trim();
    let mut submitted = String::new();
    wait_until("the job runs", DEADLINE, async || {
        let printed = cluster.run_as("alice", &["squeue", "-h", "-o", "%T %V", "-j", job]);
        let (state, time) = printed.trim().split_once(' ').unwrap_or_default();
        time.clone_into(&mut submitted);
        state == "RUNNING"
    })
    .await;
    let ring = async |id: &str, nodes: &str, notice: &str| {
        ring(&bus, &cluster, id, nodes, notice).await;
    };
    let deadline = Utc::now() + TimeDelta::minutes(2);
    let notice = notice_until(deadline);
    let notice = notice.as_str();
    // A recommendation and an empty answer of the metadata are no notices.
    ring("1", "c1", r#"{"noticeTime": "2099-11-26T08:20:00Z"}"#).await;
    ring("2", "c1", notice).await;
    let events = until(&bus, "c1", "preempted spot_preempted").await;
    let preempted = events.last().unwrap();
    let published = payload(preempted).notice.as_ref().unwrap();
    assert_eq!(
        (published.provider.as_str(), published.action.as_str()),
        ("aws", "terminate")
    );
    assert_eq!(
        published.deadline.as_ref().unwrap().seconds,
        deadline.timestamp()
    );
    // Slurm has not said it.
    assert_eq!(
        (
            preempted.confidence(),
            preempted.source(),
            preempted.source_detail.as_str()
        ),
        (Confidence::Inferred, Source::Hook, "SpotNotice")
    );
    let local = chrono::NaiveDateTime::parse_from_str(&submitted, "%Y-%m-%dT%H:%M:%S").unwrap();
    let time = local.and_local_timezone(chrono::Local).earliest().unwrap();
    let run = format!("job/{job}/{}", time.timestamp());
    assert_eq!(preempted.correlation.as_ref().unwrap().entities, [run]);

    // The metadata are read every few seconds.
    ring("3", "c1", notice).await;
    // Slurm would take back a node whose slurmd still answers.
    cluster.ctl("kill", "slurmd:c1");
    let down = ["scontrol", "update", "NodeName=c1", "State=DOWN"];
    cluster.run_as("root", &[&down[..], &["Reason=Not responding"]].concat());
    ring("4", "c1", notice).await;
    until(&bus, "c1", "down spot_preempted").await;
    let mut events = of_node(&published_so_far(&bus).await, "c1");
    // Slurm 22.05 hides powered-down cloud nodes. Versions that show them may include them in the baseline.
    events.retain(|event| event != "baseline power_saving");
    assert_eq!(
        events,
        ["active", "preempted spot_preempted", "down spot_preempted"]
    );
    service.stop().await;
}

/// The password of the hooks lies on every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_notice_does_not_decide_the_cause_of_an_outage() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    let settings = "poll_interval = \"200ms\"\nmax_poll_interval = \"1s\"\n";
    let service = start_with(&nats, &cluster, settings).await;
    until(&bus, "n4", "baseline").await;
    // No provider says it a day before.
    let far = notice_until(Utc::now() + TimeDelta::hours(23));
    ring(&bus, &cluster, "1", "n1", &far).await;
    // No provider reclaims it: Slurm's record is not of a cloud machine.
    let near = notice_until(Utc::now() + TimeDelta::minutes(2));
    ring(&bus, &cluster, "2", "n2", &near).await;
    until(&bus, "n2", "preempted spot_preempted").await;
    for node in ["n1", "n2"] {
        cluster.ctl("kill", &format!("slurmd:{node}"));
        update(&cluster, node, &["State=DOWN", "Reason=Not responding"]);
        until(&bus, node, "down unreachable").await;
    }
    let events = published_so_far(&bus).await;
    assert_eq!(of_node(&events, "n1"), ["baseline", "down unreachable"]);
    service.stop().await;
}
