//! Starts: the first one, one after downtime, one after a crash, a second ingest beside the first.

use std::collections::BTreeSet;

use crate::cluster;
use crate::mesh::{Mesh, Running};

const FAST: &str = "poll_interval = \"500ms\"";

#[tokio::test(flavor = "multi_thread")]
async fn existing_jobs_at_the_first_start_are_baseline_only() {
    let (cluster, _guard) = cluster::shared().await;
    let running = cluster.sbatch(&[], "sleep 300").await;
    let waiting = cluster.sbatch(&["--begin=now+1hour"], "true").await;
    let over = cluster.sbatch(&[], "true").await;
    cluster.wait_state(running, "RUNNING").await;
    cluster.wait_state(over, "COMPLETED").await;
    // Slurm's times are whole seconds: jobs submitted in the second in which capture begins are published in full.
    let submitted = chrono::Utc::now().timestamp();
    while chrono::Utc::now().timestamp() == submitted {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    mesh.wait_history(running, "baseline").await;
    mesh.wait_history(waiting, "baseline").await;
    assert_eq!(mesh.history(over), "");
    cluster
        .run(
            "alice",
            &["scancel", &running.to_string(), &waiting.to_string()],
        )
        .await;
    mesh.wait_history(running, "baseline cancelled").await;
    mesh.wait_history(waiting, "baseline cancelled").await;
    assert_eq!(mesh.history(over), "");
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_of_an_absence_are_published_afterwards_and_not_twice() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let long = cluster.sbatch(&[], "sleep 300").await;
    let held = cluster.sbatch(&["--hold"], "true").await;
    mesh.wait_history(long, "submitted started").await;
    mesh.wait_history(held, "submitted held").await;
    ingest.stop().await;
    let short = cluster.sbatch(&[], "exit 7").await;
    cluster.wait_state(short, "FAILED").await;
    cluster.run("alice", &["scancel", &long.to_string()]).await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    mesh.wait_history(short, "submitted started failed").await;
    mesh.wait_history(long, "submitted started cancelled").await;
    mesh.wait_event("caught up", |event| event.r#type == "capture.caught_up")
        .await;
    cluster.run("alice", &["scancel", &held.to_string()]).await;
    mesh.wait_history(held, "submitted held cancelled").await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_amid_many_jobs_loses_and_duplicates_nothing() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let mut ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let mut jobs = BTreeSet::new();
    for round in 0..4 {
        for _ in 0..3 {
            jobs.insert(cluster.sbatch(&[], "sleep 1").await);
        }
        let newest = *jobs.iter().next_back().unwrap();
        if round % 2 == 0 {
            mesh.wait_event("something of the newest job", |event| {
                event.job().is_some_and(|job| job.job_id == newest)
            })
            .await;
        }
        ingest.crash().await;
        ingest = mesh.ingest(cluster, FAST).await.ready().await;
    }
    for job in &jobs {
        mesh.wait_history(*job, "submitted started completed").await;
    }
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_ingest_is_on_standby_until_the_first_stops() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let first = mesh.ingest(cluster, FAST).await.ready().await;
    let second = mesh.ingest(cluster, FAST).await.ready().await;
    let role = |ingest: &Running| ingest.context.health.leadership()["ingest"];
    assert_eq!((role(&first), role(&second)), ("leader", "standby"));
    let job = cluster.sbatch(&["--hold"], "true").await;
    mesh.wait_history(job, "submitted held").await;
    first.stop().await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    mesh.wait_history(job, "submitted held cancelled").await;
    assert_eq!(role(&second), "leader");
    mesh.assert_no_duplicates();
    second.stop().await;
}
