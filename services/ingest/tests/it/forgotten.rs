//! Jobs that slurmctld has forgotten: accounting is all there is.

use std::time::Duration;

use mesh_events::proto::mesh::event::v1::{Confidence, Source};
use mesh_testkit::wait_for;

use crate::cluster::Cluster;
use crate::mesh::Mesh;

#[tokio::test(flavor = "multi_thread")]
async fn what_slurmctld_has_forgotten_is_told_from_accounting() {
    // Ended jobs leave slurmctld's memory after seconds here, not after five minutes.
    let cluster = Cluster::up(23_900, &[("MINJOBAGE", "2")]).await;
    let mesh = Mesh::start().await;
    let ingest = mesh
        .ingest(&cluster, "sweep_interval = \"500ms\"")
        .await
        .ready()
        .await;
    let running = cluster.sbatch(&[], "sleep 300").await;
    let requeued = cluster.sbatch(&["--requeue"], "sleep 300").await;
    mesh.wait_story(running, "submitted started").await;
    mesh.wait_story(requeued, "submitted started").await;
    ingest.stop().await;
    let unseen = cluster.sbatch(&[], "exit 7").await;
    cluster.wait_state(unseen, "FAILED").await;
    cluster
        .run("root", &["scontrol", "requeue", &requeued.to_string()])
        .await;
    cluster.wait_state(requeued, "PENDING").await;
    cluster
        .run(
            "alice",
            &["scancel", &running.to_string(), &requeued.to_string()],
        )
        .await;
    wait_for(
        "slurmctld has forgotten the jobs",
        Duration::from_secs(90),
        async || {
            cluster
                .run("root", &["squeue", "-h", "-t", "all"])
                .await
                .is_empty()
                .then_some(())
        },
    )
    .await;
    let ingest = mesh
        .ingest(&cluster, "sweep_interval = \"500ms\"")
        .await
        .ready()
        .await;
    mesh.wait_story(unseen, "submitted started failed").await;
    mesh.wait_story(running, "submitted started cancelled")
        .await;
    mesh.wait_story(requeued, "submitted started requeued | submitted cancelled")
        .await;
    let end = mesh.of_job(unseen).pop().unwrap();
    assert_eq!(
        (end.source(), end.confidence()),
        (Source::Accounting, Confidence::Observed)
    );
    assert_eq!(end.job().unwrap().exit_code.unwrap().code, 7);
    let cancelled = mesh.of_job(running).pop().unwrap();
    assert_eq!(cancelled.actor.unwrap().user, "alice");
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
