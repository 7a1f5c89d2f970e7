//! Changes faster than any poll: attempts that last less than a second.

use std::collections::BTreeSet;

use crate::cluster;
use crate::mesh::Mesh;

/// On a busy machine accounting has an attempt some seconds after its end.
const FAST: &str = "poll_interval = \"500ms\"\nmissing_record_timeout = \"90s\"";

/// Submits jobs and requeues each as soon as Slurm allows it, from one shell.
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
        mesh.wait_history(*job, twice).await;
        cluster.run("alice", &["scancel", &job.to_string()]).await;
        mesh.wait_history(*job, &format!("{twice} cancelled")).await;
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
