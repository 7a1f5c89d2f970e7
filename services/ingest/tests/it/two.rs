//! Two Slurm clusters on one NATS, each with its own ingest, whose jobs have the same ids.

use crate::cluster::Cluster;
use crate::mesh::Mesh;

const SETTINGS: &str = "poll_interval = \"500ms\"\naccounting = false";

async fn small(name: &str, conf: &str) -> Cluster {
    let knobs = [
        ("CLUSTER", name),
        ("NODES", "1"),
        ("GPU_NODES", "0"),
        ("NODB", "1"),
        ("EXTRA_CONF", conf),
    ];
    Cluster::up(&knobs).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_with_the_same_job_ids_have_nothing_to_do_with_each_other() {
    let conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(conf.path(), "FirstJobId=7000001\n").unwrap();
    let conf = conf.path().to_str().unwrap();
    let (east, west) = tokio::join!(small("east", conf), small("west", conf));
    let mesh = Mesh::start().await;
    let published_east = mesh.ingest_named("east", &east, SETTINGS).await;
    let published_west = mesh.ingest_named("west", &west, SETTINGS).await;
    let (published_east, published_west) =
        tokio::join!(published_east.ready(), published_west.ready());

    let job = east.sbatch(&[], "exit 3").await;
    assert_eq!(west.sbatch(&[], "sleep 300").await, job, "equal ids");
    mesh.wait_history_in("east", job, "submitted started failed")
        .await;
    mesh.wait_history_in("west", job, "submitted started").await;

    // Slurm of one cluster hangs; the other is not affected.
    west.ctl("pause", "slurmctld").await;
    mesh.wait_event("slurmctld of west is away", |event| {
        event.r#type == "capture.source_down" && event.cluster == "west"
    })
    .await;
    let next = east.sbatch(&[], "true").await;
    mesh.wait_history_in("east", next, "submitted started completed")
        .await;
    assert_eq!(mesh.history_in("west", next), "");
    west.ctl("continue", "slurmctld").await;

    assert_eq!(west.sbatch(&["--hold"], "true").await, next, "equal ids");
    mesh.wait_history_in("west", next, "submitted held").await;
    west.run("alice", &["scancel", &job.to_string()]).await;
    mesh.wait_history_in("west", job, "submitted started cancelled")
        .await;
    mesh.wait_event("slurmctld of west is back", |event| {
        event.r#type == "capture.source_up" && event.cluster == "west"
    })
    .await;
    assert_eq!(
        mesh.history_in("east", job),
        "submitted started failed",
        "what happened in west is of west"
    );
    mesh.assert_no_duplicates();
    published_east.stop().await;
    published_west.stop().await;
}
