//! Suspensions that no poll has shown: times that Slurm does not record are not published as observed, and usage is correct.

use mesh_events::proto::mesh::event::v1::Confidence;

use crate::cluster;
use crate::doorbell::ring;
use crate::forged::field;
use crate::mesh::Mesh;

const SLOW: &str = "poll_interval = \"1h\"\nusage_delay = \"1s\"";

#[tokio::test(flavor = "multi_thread")]
async fn of_two_unobserved_suspensions_only_the_last_resume_is_published() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    let id = job.to_string();
    for _ in 0..2 {
        for (act, state) in [("suspend", "SUSPENDED"), ("resume", "RUNNING")] {
            tokio::time::sleep(std::time::Duration::from_millis(2_200)).await;
            cluster.run("root", &["scontrol", act, &id]).await;
            cluster.wait_state(job, state).await;
        }
    }
    ring(&mesh, "TaskProlog", job, &[]).await;
    mesh.wait_history(job, "submitted started suspended resumed")
        .await;
    let suspended = mesh.last(job, "job.suspended");
    assert_eq!(suspended.confidence(), Confidence::Inferred);
    let resumed = mesh.last(job, "job.resumed");
    assert_eq!(resumed.confidence(), Confidence::Observed);
    let at = |event: &mesh_events::Event| event.occurred_at.as_ref().unwrap().seconds;
    let last: i64 = field(cluster, job, "SuspendTime").await.parse().unwrap();
    assert_eq!(at(&resumed), last);
    cluster.run("alice", &["scancel", &id]).await;
    cluster.wait_state(job, "CANCELLED").await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started suspended resumed cancelled")
        .await;
    mesh.wait_event("what it used", |_| mesh.updates_of(job).len() == 1)
        .await;
    // As long as both together, according to accounting.
    let ask = ["sacct", "-X", "-n", "-P", "-o", "Suspended", "-j", &id];
    let sum = cluster.run("root", &ask).await;
    let seconds: i64 = sum.rsplit(':').next().unwrap().parse().unwrap();
    let published = mesh.last(job, "job.cancelled").job().unwrap().clone();
    let published = i64::try_from(published.suspended_seconds).unwrap();
    assert!(
        seconds >= 4 && (published - seconds).abs() <= 1,
        "{published} {sum}"
    );
    let span = at(&resumed) - at(&suspended);
    assert!((span - seconds).abs() <= 1, "{span} {sum}");
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_failure_in_the_second_of_a_suspend_is_no_resume() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let arguments = ["-p", "gpu", "-w", "n4", "--no-requeue"];
    let job = cluster.sbatch(&arguments, "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    tokio::time::sleep(std::time::Duration::from_millis(2_200)).await;
    let id = job.to_string();
    let acts =
        format!("scontrol suspend {id} && scontrol update NodeName=n4 State=DOWN Reason=test");
    cluster.run("root", &["sh", "-c", &acts]).await;
    cluster.wait_state(job, "NODE_FAIL").await;
    let suspended_at = field(cluster, job, "SuspendTime").await;
    assert_eq!(field(cluster, job, "EndTime").await, suspended_at);
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started suspended node_fail")
        .await;
    let suspended = mesh.last(job, "job.suspended");
    let at = suspended.occurred_at.as_ref().unwrap().seconds;
    assert_eq!(at.to_string(), suspended_at);
    mesh.assert_no_duplicates();
    ingest.stop().await;
    let resume = ["scontrol", "update", "NodeName=n4", "State=RESUME"];
    cluster.run("root", &resume).await;
}
