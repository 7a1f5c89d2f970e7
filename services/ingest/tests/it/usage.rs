//! Usage of ended runs: published once per started run, when accounting has it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mesh_events::Event;
use mesh_events::proto::mesh::event::v1::{Confidence, Source};
use mesh_events::proto::mesh::job::v1::Usage;

use crate::cluster;
use crate::mesh::Mesh;
use crate::stand_in::StandIn;

const FAST: &str =
    "poll_interval = \"500ms\"\nusage_delay = \"1s\"\nmissing_record_timeout = \"60s\"";
/// Two tasks that hold 40 MB and use a second of CPU each, however long that takes. Then they stay until Slurm has sampled them, which it
/// does once a second.
const BURN: &str = "srun -n2 python3 -c 'import time; held = bytearray(40 << 20)\nwhile time.process_time() < 1: pass\ntime.sleep(2)'";

fn used(event: &Event) -> Usage {
    event.job().unwrap().usage.clone().unwrap()
}

/// Waits until this number of runs of a job have published their usage.
async fn wait_updates(mesh: &Mesh, job: u32, runs: usize) -> Vec<Event> {
    mesh.wait_event("what the runs used", |_| mesh.updates_of(job).len() >= runs)
        .await;
    mesh.updates_of(job)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_run_reports_its_usage_once() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let arguments = ["-n2", "--mem=400", "--comment=hello", "-Jburns"];
    let burning = cluster.sbatch(&arguments, BURN).await;
    let waiting = cluster.sbatch(&["--begin=now+1hour"], "true").await;
    let failed = cluster.sbatch(&[], "exit 200").await;
    mesh.wait_history(waiting, "submitted").await;
    cluster
        .run("alice", &["scancel", &waiting.to_string()])
        .await;
    mesh.wait_history(waiting, "submitted cancelled").await;
    mesh.wait_history(burning, "submitted started completed")
        .await;
    let update = wait_updates(&mesh, burning, 1).await.remove(0);
    let end = mesh.of_job(burning).pop().unwrap();
    assert_eq!(
        (update.source(), update.confidence(), update.late),
        (Source::Accounting, Confidence::Observed, false)
    );
    assert_eq!(
        (update.run_seq, update.occurred_at),
        (end.run_seq + 1, end.occurred_at)
    );
    // Everything in the end event, and the usage.
    let (published, ended) = (update.job().unwrap(), end.job().unwrap());
    assert_eq!(
        (
            &published.name,
            &published.comment,
            &published.std_out,
            &published.allocations
        ),
        (
            &ended.name,
            &ended.comment,
            &ended.std_out,
            &ended.allocations
        )
    );
    assert_eq!(
        (published.exit_code, &update.owner),
        (ended.exit_code, &end.owner)
    );
    let usage = used(&update);
    assert!(!usage.incomplete, "{usage:?}");
    assert!((2..=8).contains(&usage.cpu_seconds), "{usage:?}");
    // Each task holds 40 MiB of 400.
    assert!(
        (40 << 10..120 << 10).contains(&usage.max_rss_kib) && usage.memory_kib >= 80 << 10,
        "{usage:?}"
    );
    assert_eq!(usage.max_rss_step, "0");
    assert!(
        usage
            .cpu_efficiency_permille
            .is_some_and(|permille| permille > 0)
    );
    assert!(
        usage
            .memory_efficiency_permille
            .is_some_and(|permille| (200..900).contains(&permille)),
        "{usage:?}"
    );
    assert!(
        usage.tres.iter().any(|tres| tres.name == "mem"),
        "{usage:?}"
    );
    // Accounting of 22.05 reports 72: it subtracts 128 from exit codes above 127.
    let update = wait_updates(&mesh, failed, 1).await.remove(0);
    assert_eq!(update.job().unwrap().exit_code.unwrap().code, 200);
    assert_eq!(mesh.updates_of(waiting), []);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_run_and_every_task_reports_its_usage() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let array = cluster.sbatch(&["--array=0-2"], "sleep 1").await;
    let requeued = cluster.sbatch(&["--requeue"], "sleep 300").await;
    mesh.wait_history(requeued, "submitted started").await;
    cluster
        .run("root", &["scontrol", "requeue", &requeued.to_string()])
        .await;
    mesh.wait_history(requeued, "submitted started requeued | submitted started")
        .await;
    cluster
        .run("alice", &["scancel", &requeued.to_string()])
        .await;
    let runs = |events: &[Event]| -> BTreeSet<String> {
        let keys = events.iter().map(|event| event.entity_key().to_owned());
        keys.collect()
    };
    let updates = wait_updates(&mesh, requeued, 2).await;
    assert_eq!(runs(&updates), runs(&mesh.of_job(requeued)));
    let updates = wait_updates(&mesh, array, 3).await;
    // The array itself never ran.
    assert_eq!((updates.len(), runs(&updates).len()), (3, 3));
    assert!(updates.iter().all(|event| used(event).steps == 1));
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_survives_a_crash_and_unavailable_accounting() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let published = cluster.sbatch(&[], "true").await;
    wait_updates(&mesh, published, 1).await;
    cluster.ctl("kill", "slurmdbd").await;
    let job = cluster.sbatch(&[], "sleep 1").await;
    mesh.wait_history(job, "submitted started completed").await;
    mesh.wait_event("slurmdbd is down", |event| {
        event.r#type == "capture.source_down"
    })
    .await;
    ingest.crash().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    cluster.ctl("start", "slurmdbd").await;
    let update = wait_updates(&mesh, job, 1).await.remove(0);
    assert_eq!(update.run_seq, mesh.last(job, "job.completed").run_seq + 1);
    ingest.stop().await;
    // After another restart, the backlog is empty.
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let last = cluster.sbatch(&[], "true").await;
    wait_updates(&mesh, last, 1).await;
    assert_eq!(mesh.updates_of(published).len(), 1);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_does_not_reset_the_wait_for_usage() {
    // The gap names a few runs, so no other test may have ended ones.
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = "poll_interval = \"500ms\"\nusage_delay = \"1s\"\nmissing_record_timeout = \"1s\"\nresolution_timeout = \"60s\"";
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    // Accounting answers, and has no such run.
    stand_in.override_output("sacct", "exit 0");
    let job = cluster.sbatch(&[], "true").await;
    mesh.wait_history(job, "submitted started completed").await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    ingest.stop().await;
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let restarted = Instant::now();
    mesh.wait_event("the gap", |event| {
        let text = format!("{:?}", event.payload);
        event.r#type == "capture.gap_closed"
            && text.contains(&format!("resource usage of job/{job}/"))
    })
    .await;
    // Five sixths of the time had passed.
    let waited = restarted.elapsed();
    assert!(waited < Duration::from_secs(55), "{waited:?}");
    ingest.stop().await;
}
