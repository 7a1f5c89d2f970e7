//! Cancellers: published with the end if accounting has it in time, else with a correction; from a real slurmdbd.

use mesh_events::proto::mesh::event::v1::ActorKind;

use crate::cluster;
use crate::mesh::Mesh;
use crate::users::{DEADLINE, baseline, sacctmgr};
use mesh_testkit::wait_for;

const FAST: &str = "poll_interval = \"500ms\"\nidentity_reload_interval = \"200ms\"\nusage_delay = \"1s\"\nmissing_record_timeout = \"5s\"\n[ingest.users]\ninterval = \"1s\"";

/// Waits until the canceller of a job is published.
async fn canceller(mesh: &Mesh, job: u32) -> (ActorKind, String) {
    let event = wait_for("who cancelled is told", DEADLINE, async || {
        mesh.canceller_of(job)
    })
    .await;
    let actor = event.actor.clone().unwrap();
    let ended = mesh.last(job, "job.cancelled");
    if event.r#type == "job.corrected" {
        assert_eq!(event.correlation.unwrap().event_ids, [ended.id]);
    }
    (actor.kind(), actor.user)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_canceller_is_published_for_every_kind() {
    // Coordinators and administrators belong to the whole cluster.
    let (cluster, _guard) = cluster::exclusive().await;
    // Bob only coordinates alice's account; carol coordinates it and is an operator.
    for command in [
        "add coordinator account=physics names=bob,carol",
        "modify user carol set adminlevel=Operator",
    ] {
        sacctmgr(cluster, "root", command).await;
    }
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    baseline(&mesh).await;
    let expected = [
        ("alice", ActorKind::User),
        ("root", ActorKind::Admin),
        ("slurm", ActorKind::Admin),
        ("carol", ActorKind::Admin),
        ("bob", ActorKind::Coordinator),
    ];
    let mut jobs = Vec::new();
    for (user, kind) in expected {
        // One that runs, and one that never starts.
        let running = cluster.sbatch(&["-Aphysics"], "sleep 1000").await;
        let waiting = cluster
            .sbatch(&["-Aphysics", "--begin=now+1hour"], "true")
            .await;
        jobs.push((user, kind, running, "submitted started cancelled"));
        jobs.push((user, kind, waiting, "submitted cancelled"));
    }
    for (user, _, job, history) in &jobs {
        mesh.wait_history(*job, history.trim_end_matches(" cancelled"))
            .await;
        cluster.run(user, &["scancel", &job.to_string()]).await;
    }
    for (user, kind, job, history) in jobs {
        mesh.wait_history(job, history).await;
        assert_eq!(
            canceller(&mesh, job).await,
            (kind, user.to_owned()),
            "job {job}: {history}"
        );
    }
    mesh.assert_no_duplicates();
    ingest.stop().await;
    for command in [
        "modify user carol set adminlevel=None",
        "delete coordinator account=physics names=bob,carol",
    ] {
        sacctmgr(cluster, "root", command).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_accounting_no_actor_is_published() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "accounting = false\npoll_interval = \"500ms\"";
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let job = cluster.sbatch(&["--begin=now+1hour"], "true").await;
    mesh.wait_history(job, "submitted").await;
    cluster.run("root", &["scancel", &job.to_string()]).await;
    mesh.wait_history(job, "submitted cancelled").await;
    assert_eq!(mesh.last(job, "job.cancelled").actor, None);
    ingest.stop().await;
}
