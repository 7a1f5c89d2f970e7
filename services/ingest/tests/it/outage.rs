//! Outages of Slurm's daemons and of NATS.

use mesh_testkit::wait_for;

use crate::cluster;
use crate::mesh::{DEADLINE, Mesh};

const FAST: &str = "poll_interval = \"500ms\"";

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_slurmctld_is_reported_and_proves_nothing() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    mesh.wait_history(job, "submitted started").await;
    cluster.saved(job).await;
    cluster.ctl("kill", "slurmctld").await;
    mesh.wait_event("slurmctld is down", |event| {
        event.r#type == "capture.source_down"
    })
    .await;
    wait_for("it is said not to be ready", DEADLINE, async || {
        let problems = ingest.context.health.problems();
        problems.contains_key("ingest.slurmctld").then_some(())
    })
    .await;
    cluster.ctl("start", "slurmctld").await;
    mesh.wait_event("slurmctld is up", |event| {
        event.r#type == "capture.source_up"
    })
    .await;
    assert_eq!(mesh.history(job), "submitted started");
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    mesh.wait_history(job, "submitted started cancelled").await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_unavailable_while_a_job_starts_and_ends_loses_nothing() {
    let (cluster, _guard) = cluster::shared().await;
    let mut mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let before = cluster.sbatch(&[], "true").await;
    mesh.wait_history(before, "submitted started completed")
        .await;
    mesh.nats.kill();
    let job = cluster.sbatch(&[], "exit 3").await;
    cluster.wait_state(job, "FAILED").await;
    mesh.nats.restart().await;
    mesh.wait_history(job, "submitted started failed").await;
    ingest.stop().await;
}
