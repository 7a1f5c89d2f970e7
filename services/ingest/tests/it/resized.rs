//! Resizes that no poll has shown: every event has what the run held at its time.

use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::proto::mesh::job::v1::Job;
use slurm_types::Tres;

use crate::cluster::{self, Cluster};
use crate::doorbell::ring;
use crate::mesh::Mesh;

const SLOW: &str = "poll_interval = \"1h\"\nusage_delay = \"1s\"";
/// Its jobs may have nodes of every kind.
const WIDE: [&str; 2] = ["-plow", "-N3"];

/// Shrinks a running job.
pub async fn resize(cluster: &Cluster, job: u32, nodes: u32) {
    let job = format!("JobId={job}");
    let nodes = format!("NumNodes={nodes}");
    let command = ["scontrol", "update", &job, &nodes];
    cluster.run("alice", &command).await;
}

/// Waits until the clock shows another second. Slurm's times are whole seconds, and two resizes of one second are one.
pub async fn next_second() {
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
}

/// Number of nodes, of nodes by TRES, and confidence of the last event of a type.
fn held(mesh: &Mesh, job: u32, kind: &str) -> Vec<(u32, Option<u64>, Confidence)> {
    let nodes = |job: &Job| Tres::parse_lossy(&job.alloc_tres).0.get("node");
    let events = mesh.of_job(job).into_iter();
    let events = events.filter(|event| event.r#type == kind);
    events
        .map(|event| {
            let job = event.job().unwrap();
            (job.node_count, nodes(job), event.confidence())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_resized_before_it_was_seen_started_with_what_it_held_then() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let job = cluster.sbatch(&WIDE, "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    next_second().await;
    resize(cluster, job, 1).await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started resized").await;
    let observed = |nodes: u32| (nodes, Some(nodes.into()), Confidence::Observed);
    assert_eq!(held(&mesh, job, "job.started"), [observed(3)]);
    assert_eq!(held(&mesh, job, "job.resized"), [observed(1)]);
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    cluster.wait_state(job, "CANCELLED").await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started resized cancelled")
        .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_resize_that_nobody_saw_has_what_the_run_held_after_it() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let job = cluster.sbatch(&WIDE, "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    ingest.stop().await;
    for nodes in [2, 1] {
        next_second().await;
        resize(cluster, job, nodes).await;
    }
    next_second().await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    cluster.wait_state(job, "CANCELLED").await;

    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let observed = |nodes: u32| (nodes, Some(nodes.into()), Confidence::Observed);
    // The order in which slurmctld and accounting show them is open.
    mesh.wait_event("both resizes and what it used", |_| {
        held(&mesh, job, "job.resized").len() == 2 && mesh.updates_of(job).len() == 1
    })
    .await;
    assert_eq!(held(&mesh, job, "job.started"), [observed(3)]);
    let mut resized = held(&mesh, job, "job.resized");
    resized.sort_by_key(|(nodes, ..)| std::cmp::Reverse(*nodes));
    assert_eq!(resized, [observed(2), observed(1)]);
    assert_eq!(held(&mesh, job, "job.cancelled").len(), 1);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
