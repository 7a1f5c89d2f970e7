//! Large numbers: a thousand jobs and an array of twenty thousand tasks, cancelled with two commands.

use std::collections::HashMap;
use std::time::Duration;

use mesh_testkit::wait_for;

use crate::cluster::Cluster;
use crate::mesh::{Mesh, payload};

const JOBS: usize = 1_000;
const LAST_TASK: u32 = 19_999;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_jobs_and_a_large_array_cancelled_at_once_are_published_once_each() {
    let conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(conf.path(), "MaxArraySize=20001\nMaxJobCount=50000\n").unwrap();
    let knobs = [
        ("NODES", "1"),
        ("GPU_NODES", "0"),
        ("EXTRA_CONF", conf.path().to_str().unwrap()),
    ];
    let cluster = Cluster::up(&knobs).await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(&cluster, "poll_interval = \"1s\"").await;
    let ingest = ingest.ready().await;

    // One task runs, the rest never become jobs of their own.
    let tasks = format!("--array=0-{LAST_TASK}%1");
    let array = cluster.sbatch(&[&tasks, "--time=1-0"], "sleep 80000").await;
    mesh.wait_history(array, "submitted | started").await;
    let submit = format!(
        "for n in {{1..{JOBS}}}; do sbatch --parsable --hold --mem=10 --output=/dev/null --wrap=true; done"
    );
    let printed = cluster.run("alice", &["bash", "-c", &submit]).await;
    let jobs: Vec<u32> = printed.lines().map(|id| id.parse().unwrap()).collect();
    assert_eq!(jobs.len(), JOBS);
    published(&mesh, &jobs, "job.held").await;

    cluster.run("alice", &["scancel", "--user=alice"]).await;
    published(&mesh, &jobs, "job.cancelled").await;
    mesh.wait_history(array, "submitted cancelled | started cancelled")
        .await;
    let rest = mesh.of_job(array);
    let rest = rest
        .iter()
        .find(|event| !payload(event).array_tasks.is_empty());
    assert_eq!(payload(rest.unwrap()).array_tasks, format!("1-{LAST_TASK}"));
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

/// Waits until each of these jobs has exactly one event of the type.
async fn published(mesh: &Mesh, jobs: &[u32], kind: &str) {
    let description = format!("{kind} of each job");
    wait_for(&description, Duration::from_secs(300), async || {
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for event in mesh.events() {
            if event.r#type == kind {
                *counts.entry(event.job().unwrap().job_id).or_default() += 1;
            }
        }
        let each_once = jobs.iter().all(|job| counts.get(job) == Some(&1));
        each_once.then_some(())
    })
    .await;
}
