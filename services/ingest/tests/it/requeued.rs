//! Requeued jobs of which accounting has the run before late: what happens to the next run meanwhile is published all the same.

use crate::cluster;
use crate::forged::{field, wait_restarts};
use crate::mesh::{Mesh, payload};
use crate::stand_in::{POLL, StandIn};

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_over_before_accounting_has_the_run_before_is_published() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"";
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let script = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] || sleep 300; sleep 1";
    let job = cluster.sbatch(&["--requeue"], script).await;
    mesh.wait_history(job, "submitted started").await;
    ingest.stop().await;
    let id = job.to_string();
    cluster.run("root", &["scontrol", "requeuehold", &id]).await;
    cluster.wait_state(job, "PENDING").await;
    let stand_in = StandIn::new(cluster);
    stand_in.override_output("sacct", "exit 1");
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    // The second of two polls that began since then finds what the first one has read.
    stand_in.wait_calls(POLL, 3).await;
    cluster.run("root", &["scontrol", "release", &id]).await;
    cluster.wait_state(job, "COMPLETED").await;
    assert_eq!(mesh.history(job), "submitted started");
    stand_in.truth("sacct");
    mesh.wait_passed(
        job,
        "submitted started requeued | submitted held released started completed",
    )
    .await;
    let held = mesh.last(job, "job.held");
    let released = mesh.last(job, "job.released");
    assert!(held.observed_at.unwrap().seconds <= released.observed_at.unwrap().seconds);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_over_before_a_crashed_ingest_starts_again_is_published() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"";
    let stand_in = StandIn::new(cluster);
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let script = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] || sleep 300; sleep 1";
    let job = cluster.sbatch(&["--requeue"], script).await;
    mesh.wait_history(job, "submitted started").await;
    stand_in.override_output("sacct", "exit 1");
    let id = job.to_string();
    cluster.run("root", &["scontrol", "requeuehold", &id]).await;
    cluster.wait_state(job, "PENDING").await;
    stand_in.wait_calls(POLL, 4).await;
    ingest.crash().await;
    assert_eq!(mesh.history(job), "submitted started");
    cluster.run("root", &["scontrol", "release", &id]).await;
    cluster.wait_state(job, "COMPLETED").await;
    stand_in.truth("sacct");
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    mesh.wait_passed(
        job,
        "submitted started requeued | submitted held released started completed",
    )
    .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waited_only_while_the_one_before_was_looked_up_is_continued_by_the_next() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = "poll_interval = \"500ms\"\nmissing_record_timeout = \"90s\"";
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let script = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 1 ] || sleep 300";
    let job = cluster.sbatch(&["--requeue"], script).await;
    mesh.wait_history(job, "submitted started").await;
    let id = job.to_string();
    let first = field(cluster, job, "SubmitTime").await;
    // Accounting answers without rows while the second run waits and ends.
    stand_in.override_output("sacct", "exit 0");
    cluster.run("root", &["scontrol", "requeue", &id]).await;
    wait_restarts(cluster, job, 1).await;
    stand_in.wait_calls(POLL, 3).await;
    cluster.wait_state(job, "RUNNING").await;
    cluster.run("root", &["scontrol", "requeue", &id]).await;
    wait_restarts(cluster, job, 2).await;
    stand_in.wait_calls(POLL, 3).await;
    // It has the first run before it has the second.
    let only_first = format!("\"$real\" \"$@\" | grep {first}; exit 0");
    stand_in.override_output("sacct", &only_first);
    mesh.wait_event("the first run's end", |event| {
        event.r#type == "job.requeued" && mesh.of_job(job).contains(event)
    })
    .await;
    stand_in.wait_calls(POLL, 3).await;
    stand_in.truth("sacct");
    mesh.wait_passed(
        job,
        "submitted started requeued | submitted started requeued | submitted started completed",
    )
    .await;
    let third = mesh.last(job, "job.submitted");
    let second = mesh.of_job(job).into_iter().filter(|event| {
        event.r#type == "job.requeued" && event.entity_key() != format!("job/{id}/{first}")
    });
    let continues = payload(&third).continues.clone().unwrap();
    let second = second.map(|event| event.entity_key().to_owned());
    assert_eq!(second.collect::<Vec<_>>(), [continues.run]);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
