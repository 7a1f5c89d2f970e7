//! What happens faster than anybody looks: attempts that last no second, suspensions one after the other.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cluster::{self, Cluster};
use crate::mesh::Mesh;

const FAST: &str = "sweep_interval = \"500ms\"\nproof_patience = \"5s\"";

/// Slurm counts in seconds: what comes now is another second than what was.
async fn next_second() {
    tokio::time::sleep(Duration::from_millis(1_100)).await;
}

async fn scontrol(cluster: &Cluster, action: &str, job: u32) {
    cluster
        .run("root", &["scontrol", action, &job.to_string()])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_suspension_that_is_seen_is_told_and_of_unseen_ones_the_last_resume() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    let mut story = "submitted started".to_owned();
    mesh.wait_story(job, &story).await;
    for _ in 0..3 {
        for (action, word) in [("suspend", "suspended"), ("resume", "resumed")] {
            next_second().await;
            scontrol(cluster, action, job).await;
            story = format!("{story} {word}");
            mesh.wait_story(job, &story).await;
        }
    }
    next_second().await;
    scontrol(cluster, "suspend", job).await;
    mesh.wait_story(job, &format!("{story} suspended")).await;
    // Nobody looks while it is resumed, suspended and resumed again: Slurm keeps the last time only.
    ingest.stop().await;
    for action in ["resume", "suspend", "resume"] {
        next_second().await;
        scontrol(cluster, action, job).await;
    }
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    story = format!("{story} suspended resumed");
    mesh.wait_story(job, &story).await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    mesh.wait_story(job, &format!("{story} cancelled")).await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

/// Submits jobs and requeues each as soon as Slurm lets it, from one shell.
const AT_ONCE: &str = "for i in 1 2 3; do
    job=$(setpriv --reuid=alice --regid=alice --init-groups sbatch --parsable --requeue --mem=10 --chdir=/tmp --output=/dev/null --wrap='sleep 300')
    until scontrol requeue $job 2>/dev/null; do :; done
    echo $job
done";

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_last_no_second_are_runs_of_their_own() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let printed = cluster.run("root", &["sh", "-c", AT_ONCE]).await;
    let jobs: Vec<u32> = printed.lines().map(|id| id.parse().unwrap()).collect();
    assert_eq!(jobs.len(), 3);
    for job in &jobs {
        let twice = "submitted started requeued | submitted started";
        mesh.wait_story(*job, twice).await;
        cluster.run("alice", &["scancel", &job.to_string()]).await;
        mesh.wait_story(*job, &format!("{twice} cancelled")).await;
        let runs: BTreeSet<String> = mesh
            .of_job(*job)
            .iter()
            .map(|event| event.entity_key().to_owned())
            .collect();
        assert_eq!(runs.len(), 2, "{runs:?}");
    }
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
