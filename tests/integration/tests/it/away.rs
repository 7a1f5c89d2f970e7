//! NATS is unavailable while a job starts and ends.

use std::time::{Duration, Instant};

use integration::{Cluster, Mesh, Slurm as _};
use rustix::process::Signal;

use crate::support::{PATIENCE, agrees, small};

/// Time limit of a hook (`hooks/README.md`).
const DEADLINE: Duration = Duration::from_millis(250);
/// Time for everything else between the hook and the script's first line, on a busy machine with two cores. A hook that waited for
/// NATS would never return.
const SLACK: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_neither_delayed_nor_missed_while_nats_is_unavailable() {
    let (cluster, mut mesh) = small("away", "").await;
    let mut jobs = vec![run(&cluster, "sleep 1").await];

    // NATS hangs: it accepts connections but does not answer.
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

    // NATS and the whole mesh are stopped: connections are refused.
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

    // The next doorbell also delivers the backlog.
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

/// Time from the call of PrologSlurmctld to the script's first line.
async fn until_script(cluster: &Cluster, job: u32) -> Duration {
    let job = job.to_string();
    let when = async |description: &str| -> Instant {
        let mark = integration::wait_for(description, PATIENCE, async || {
            Ok(cluster.clock().when(description, &job, 0))
        });
        mark.await.unwrap()
    };
    let hook = when("PrologSlurmctld").await;
    when("begin").await.saturating_duration_since(hook)
}

/// Number of spooled doorbells.
fn spooled(mesh: &Mesh) -> usize {
    let spool = mesh.data_dir().join("hook-spool");
    let files = std::fs::read_dir(spool).unwrap().flatten();
    files
        .filter(|file| !file.file_name().to_string_lossy().starts_with('.'))
        .count()
}
