//! NATS is away while a job starts and ends.

use std::time::{Duration, Instant};

use integration::{Cluster, Mesh, Slurm as _};
use rustix::process::Signal;

use crate::support::{PATIENCE, agrees, small};

/// What a hook may take at most (`hooks/README.md`).
const DEADLINE: Duration = Duration::from_millis(250);
/// What the way from the hook to the script's first line may take otherwise, on a busy machine with two cores. Who waited for NATS would
/// wait for ever.
const SLACK: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_not_delayed_and_nothing_is_missing_when_nats_is_away() {
    let (cluster, mut mesh) = small("away", 27_100, "").await;
    let mut jobs = vec![run(&cluster, "sleep 1").await];

    // It hangs: connections are made, nothing answers.
    mesh.signal_nats(Signal::STOP).unwrap();
    let hanging = run(&cluster, "sleep 1").await;
    let delay = until_script(&cluster, hanging).await;
    assert!(
        delay < DEADLINE + SLACK,
        "{delay:?} from the hook to the script"
    );
    assert!(spooled(&mesh) > 0, "the hooks spool while NATS hangs");
    mesh.signal_nats(Signal::CONT).unwrap();
    jobs.push(hanging);
    agrees(&cluster, &mesh, &jobs).await;

    // It is gone, and all of the mesh with it: connections are refused.
    assert!(mesh.stop().await.unwrap().success());
    let refused = run(&cluster, "exit 3").await;
    let delay = until_script(&cluster, refused).await;
    assert!(
        delay < DEADLINE + SLACK,
        "{delay:?} from the hook to the script"
    );
    assert!(spooled(&mesh) > 0, "the hooks spool while NATS is gone");
    jobs.push(refused);
    mesh.start().await.unwrap();
    agrees(&cluster, &mesh, &jobs).await;

    // The next ring brings along what waits.
    jobs.push(run(&cluster, "true").await);
    agrees(&cluster, &mesh, &jobs).await;
    integration::wait_for("the spool is empty", PATIENCE, async || {
        Ok((spooled(&mesh) == 0).then_some(()))
    })
    .await
    .unwrap();
}

/// Runs a job to its end.
async fn run(cluster: &Cluster, script: &str) -> u32 {
    let job = cluster.submit("alice", &[], script).await.unwrap();
    cluster
        .wait_state(&job.to_string(), &["COMPLETED", "FAILED"], PATIENCE)
        .await
        .unwrap();
    job
}

/// From the call of PrologSlurmctld to the script's first line.
async fn until_script(cluster: &Cluster, job: u32) -> Duration {
    let job = job.to_string();
    let when = async |what: &str| -> Instant {
        let mark = integration::wait_for(what, PATIENCE, async || {
            Ok(cluster.clock().when(what, &job, 0))
        });
        mark.await.unwrap()
    };
    let hook = when("PrologSlurmctld").await;
    when("begin").await.saturating_duration_since(hook)
}

/// Doorbells that wait on disk.
fn spooled(mesh: &Mesh) -> usize {
    let spool = mesh.data_dir().join("hook-spool");
    let files = std::fs::read_dir(spool).unwrap().flatten();
    files
        .filter(|file| !file.file_name().to_string_lossy().starts_with('.'))
        .count()
}
