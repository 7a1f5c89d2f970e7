//! Without hooks: the exact events of real jobs, found by polls alone.

use std::time::Duration;

use mesh_events::proto::mesh::event::v1::{ActorKind, Confidence};

use crate::cluster;
use crate::mesh::{Mesh, payload};

const FAST: &str = "poll_interval = \"500ms\"";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_succeeds_is_submitted_started_completed() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let job = cluster.sbatch(&["--comment=hello"], "sleep 2").await;
    mesh.wait_history(job, "submitted started completed").await;
    let end = mesh
        .wait_event("the end", |event| {
            event.r#type == "job.completed" && event.job().unwrap().job_id == job
        })
        .await;
    let snapshot = end.job().unwrap();
    assert_eq!(
        (
            snapshot.state.as_str(),
            snapshot.comment.as_str(),
            snapshot.nodes.is_empty()
        ),
        ("COMPLETED", "hello", false)
    );
    assert_eq!(
        (
            snapshot.exit_code.unwrap().code,
            snapshot.alloc_tres.contains("cpu=1")
        ),
        (0, true)
    );
    assert_eq!(end.confidence(), Confidence::Observed);
    let owner = end.owner.unwrap();
    assert_eq!(
        (owner.user.as_str(), owner.uid, owner.account.is_empty()),
        ("alice", Some(20_001), false)
    );
    assert_eq!(owner.identity.unwrap().subject, "al-1");
    let submitted = mesh
        .of_job(job)
        .into_iter()
        .find(|event| event.r#type == "job.submitted")
        .unwrap();
    assert_eq!(submitted.actor.unwrap().kind(), ActorKind::User);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_code_fails_the_job_and_is_published() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let job = cluster.sbatch(&[], "exit 3").await;
    mesh.wait_history(job, "submitted started failed").await;
    let end = mesh.of_job(job).pop().unwrap();
    assert_eq!(end.job().unwrap().exit_code.unwrap().code, 3);
    assert_eq!(end.job().unwrap().reason, "NonZeroExitCode");
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_while_waiting_never_started() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let waiting = cluster.sbatch(&["--begin=now+1hour"], "true").await;
    let running = cluster.sbatch(&[], "sleep 300").await;
    mesh.wait_history(waiting, "submitted").await;
    mesh.wait_history(running, "submitted started").await;
    cluster
        .run(
            "alice",
            &["scancel", &waiting.to_string(), &running.to_string()],
        )
        .await;
    mesh.wait_history(waiting, "submitted cancelled").await;
    mesh.wait_history(running, "submitted started cancelled")
        .await;
    let end = mesh.last(waiting, "job.cancelled");
    assert_eq!(end.job().unwrap().start_time, None);
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_array_is_submitted_once_and_each_task_starts_and_ends() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let array = cluster.sbatch(&["--array=0-3%2"], "sleep 1").await;
    let history =
        "submitted | started completed | started completed | started completed | started completed";
    mesh.wait_history(array, history).await;
    let cancelled = cluster
        .sbatch(&["--array=0-9", "--begin=now+1hour"], "true")
        .await;
    mesh.wait_history(cancelled, "submitted").await;
    cluster
        .run("alice", &["scancel", &cancelled.to_string()])
        .await;
    mesh.wait_history(cancelled, "submitted cancelled").await;
    let end = mesh.last(cancelled, "job.cancelled");
    assert_eq!(payload(&end).array_tasks, "0-9");
    assert_eq!(end.entity.unwrap().kind, "array");
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn single_cancelled_pending_tasks_are_published_while_the_array_waits() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = format!("{FAST}\nmissing_record_timeout = \"3s\"");
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    let array = cluster.sbatch(&["--array=1-4", "--hold"], "true").await;
    mesh.wait_history(array, "submitted held").await;
    for (task, history) in [
        (3, "submitted held cancelled"),
        (2, "submitted held cancelled cancelled"),
    ] {
        cluster
            .run("alice", &["scancel", &format!("{array}_{task}")])
            .await;
        mesh.wait_history(array, history).await;
        let cancelled = mesh.last(array, "job.cancelled");
        assert_eq!(payload(&cancelled).array_tasks, task.to_string());
        assert_eq!(cancelled.confidence(), Confidence::Inferred);
    }
    cluster.run("alice", &["scancel", &array.to_string()]).await;
    mesh.wait_history(array, "submitted held cancelled cancelled cancelled")
        .await;
    let rest = mesh.last(array, "job.cancelled");
    assert_eq!(payload(&rest).array_tasks, "1,4");
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requeued_job_has_two_runs_and_the_second_names_the_first() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let job = cluster.sbatch(&["--requeue"], "sleep 300").await;
    mesh.wait_history(job, "submitted started").await;
    cluster
        .run("root", &["scontrol", "requeue", &job.to_string()])
        .await;
    mesh.wait_history(job, "submitted started requeued | submitted started")
        .await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    mesh.wait_history(
        job,
        "submitted started requeued | submitted started cancelled",
    )
    .await;
    let events = mesh.of_job(job);
    let first = events
        .iter()
        .find(|event| event.r#type == "job.requeued")
        .unwrap();
    let second = events
        .iter()
        .find(|event| event.r#type == "job.submitted" && event.entity_key() != first.entity_key())
        .unwrap();
    let continues = payload(second).continues.as_ref().unwrap();
    assert_eq!(
        (continues.run.as_str(), continues.cause.as_str()),
        (first.entity_key(), "requeued")
    );
    assert_eq!(first.confidence(), Confidence::Observed);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_and_releases_are_published_once_two_polls_agree() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let job = cluster.sbatch(&["--hold"], "true").await;
    mesh.wait_history(job, "submitted held").await;
    cluster
        .run(
            "alice",
            &[
                "scontrol",
                "update",
                &format!("JobId={job}"),
                "StartTime=now+1hour",
            ],
        )
        .await;
    cluster
        .run("alice", &["scontrol", "release", &job.to_string()])
        .await;
    mesh.wait_history(job, "submitted held released").await;
    let what = "pending for its begin time";
    let pending = mesh
        .wait_event(what, |event| {
            event.r#type == "job.pending" && event.job().unwrap().job_id == job
        })
        .await;
    assert_eq!(pending.job().unwrap().reason_class, "begin_time");
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    mesh.wait_history(job, "submitted held released cancelled")
        .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

/// Slurm keeps only the last suspend or resume, and 22.05 hides how a job ended while its epilogs run.
#[tokio::test(flavor = "multi_thread")]
async fn suspensions_stay_in_order_whatever_happens_to_ingest() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let mut ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    let mut history = "submitted started".to_owned();
    mesh.wait_history(job, &history).await;
    // Slurm counts whole seconds: two suspends within one would count once.
    let scontrol = async |what: &str| {
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let command = ["scontrol", what, &job.to_string()];
        cluster.run("root", &command).await;
    };
    for round in 0..3 {
        for (what, published) in [("suspend", " suspended"), ("resume", " resumed")] {
            // The last suspend is published when ingest stops.
            if (round, what) == (2, "resume") {
                break;
            }
            scontrol(what).await;
            history.push_str(published);
            mesh.wait_history(job, &history).await;
        }
    }
    ingest.crash().await;
    for what in ["resume", "suspend", "resume"] {
        scontrol(what).await;
    }
    ingest = mesh.ingest(cluster, FAST).await.ready().await;
    // Of the changes meanwhile, Slurm has only the last resume.
    history.push_str(" resumed");
    mesh.wait_history(job, &history).await;
    scontrol("suspend").await;
    history.push_str(" suspended");
    mesh.wait_history(job, &history).await;
    ingest.stop().await;
    for what in ["resume", "suspend"] {
        scontrol(what).await;
    }
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    history.push_str(" suspended");
    mesh.wait_history(job, &history).await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    history.push_str(" cancelled");
    mesh.wait_history(job, &history).await;
    let mut counts: Vec<u64> = mesh.of_job(job).iter().map(|event| event.run_seq).collect();
    counts.sort_unstable();
    counts.dedup();
    assert_eq!(counts.len(), mesh.of_job(job).len());
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_tasks_make_two_hundred_and_one_events() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let array = cluster.sbatch(&["--array=0-99"], "true").await;
    let lifecycle = || {
        mesh.of_job(array)
            .into_iter()
            .filter(|event| event.r#type != "job.pending")
            .count()
    };
    mesh.wait_event("the last end", |_| lifecycle() >= 201)
        .await;
    assert_eq!(lifecycle(), 201);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
