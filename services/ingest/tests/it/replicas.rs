//! Two ingest processes for one cluster while jobs run: whatever happens to the leader, everything is published once.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_testkit::wait_for;
use tokio_util::sync::CancellationToken;

use crate::cluster::{self, Cluster};
use crate::mesh::Mesh;

/// Submits short jobs until `stop` is cancelled.
async fn submit(cluster: &'static Cluster, stop: CancellationToken) -> BTreeSet<u32> {
    let mut jobs = BTreeSet::new();
    while !stop.is_cancelled() {
        jobs.insert(cluster.sbatch(&[], "sleep 1").await);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    jobs
}

/// A job that is held and released. Slurm does not time these facts, so only the state shows whether they were published.
struct Held(u32);

impl Held {
    async fn submit(cluster: &Cluster, mesh: &Mesh) -> Self {
        let job = cluster.sbatch(&["--hold"], "true").await;
        mesh.wait_history(job, "submitted held").await;
        Self(job)
    }

    async fn release(self, cluster: &Cluster, mesh: &Mesh) {
        let id = self.0.to_string();
        cluster.run("alice", &["scontrol", "release", &id]).await;
        mesh.wait_history(self.0, "submitted held released started completed")
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_to_the_leader_each_event_is_published_once() {
    let (cluster, _guard) = cluster::shared().await;
    let mut mesh = Mesh::start().await;
    let mut replicas = mesh.replicas(cluster, "poll_interval = \"500ms\"");
    replicas.settled().await;
    let stop = CancellationToken::new();
    let jobs = tokio::spawn(submit(cluster, stop.clone()));

    let held = Held::submit(cluster, &mesh).await;
    replicas.kill_leader().await;
    held.release(cluster, &mesh).await;

    let held = Held::submit(cluster, &mesh).await;
    let paused = Duration::from_secs(15);
    replicas
        .pause_leader(paused, async || held.release(cluster, &mesh).await)
        .await;

    let held = Held::submit(cluster, &mesh).await;
    replicas.stop_leader().await;
    held.release(cluster, &mesh).await;

    let held = Held::submit(cluster, &mesh).await;
    mesh.nats.kill();
    mesh.nats.restart().await;
    held.release(cluster, &mesh).await;
    replicas.settled().await;

    stop.cancel();
    let jobs = jobs.await.unwrap();
    for job in &jobs {
        mesh.wait_history(*job, "submitted started completed").await;
    }
    // Accounting has each of them once, too.
    let ids = jobs
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let rows = [
        "sacct", "-D", "-X", "-n", "-P", "-o", "JobIDRaw", "-j", &ids,
    ];
    wait_for(
        "accounting has every job",
        Duration::from_secs(180),
        async || {
            let rows = cluster.run("root", &rows).await;
            let rows = rows.lines().count();
            assert!(rows <= jobs.len(), "{rows} rows of {} jobs", jobs.len());
            (rows == jobs.len()).then_some(())
        },
    )
    .await;
    println!("{} jobs were told once each", jobs.len());
    mesh.assert_no_duplicates();
    replicas.stop().await;
}
