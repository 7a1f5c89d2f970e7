//! Array tasks that slurmctld has purged, or whose array it has: accounting is the only source.

use crate::cluster::Cluster;
use crate::forgotten::{FAST, forgetful, wait_all_purged};
use crate::mesh::{DEADLINE, Mesh, Running, payload};
use crate::stand_in::{POLL, StandIn};
use mesh_events::Event;
use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::wait_for;
use std::time::Duration;

const PATIENT: &str = "poll_interval = \"500ms\"\nmissing_record_timeout = \"15s\"";

/// Submits a waiting array of which one task is cancelled alone. Accounting answers often enough to prove an absence, but has the array as
/// alive.
async fn one_task_cancelled(cluster: &Cluster) -> (Mesh, StandIn, Running, u32) {
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let ingest = mesh.ingest_through(&stand_in, cluster, PATIENT).await;
    let ingest = ingest.ready().await;
    let options = ["--array=0-3", "--begin=now+1hour"];
    let array = cluster.sbatch(&options, "true").await;
    mesh.wait_history(array, "submitted").await;
    cluster
        .run("alice", &["scancel", &format!("{array}_2")])
        .await;
    stand_in.wait_calls("sacct", 3).await;
    (mesh, stand_in, ingest, array)
}

async fn published_with_owner(mesh: &Mesh, array: u32) {
    let tasks_of = |event: &Event| payload(event).array_tasks.clone();
    let published = mesh
        .wait_event("the task's cancel", |event| {
            event.r#type == "job.cancelled"
                && event.job().is_some_and(|_| tasks_of(event) == "2")
                && mesh.of_job(array).contains(event)
        })
        .await;
    assert_eq!(published.owner.as_ref().unwrap().user, "alice");
    assert_eq!(published.confidence(), Confidence::Inferred);
    // No record of Slurm names the canceller of a single waiting task.
    assert_eq!(published.actor, None);
    let rest = mesh.of_job(array);
    let mut rest = rest
        .iter()
        .filter(|event| event.r#type == "job.cancelled" && tasks_of(event) != "2");
    assert_eq!(rest.next().map(tasks_of), Some("0-1,3".to_owned()));
    assert_eq!(rest.next(), None);
    mesh.assert_no_duplicates();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_is_published_although_its_array_was_purged_first() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let (mesh, _stand_in, ingest, array) = one_task_cancelled(cluster).await;
    cluster.run("alice", &["scancel", &array.to_string()]).await;
    published_with_owner(&mesh, array).await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_is_published_with_its_owner_by_the_next_ingest() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let (mesh, _stand_in, ingest, array) = one_task_cancelled(cluster).await;
    cluster.run("alice", &["scancel", &array.to_string()]).await;
    mesh.wait_history(array, "submitted cancelled").await;
    ingest.crash().await;
    wait_all_purged(cluster).await;
    let ingest = mesh.ingest(cluster, PATIENT).await.ready().await;
    published_with_owner(&mesh, array).await;
    ingest.stop().await;
}

/// Accounting is away. The wait for the second task does not begin when that for the first one has ended.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_are_cancelled_one_after_the_other_are_waited_for_at_the_same_time() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings =
        "poll_interval = \"500ms\"\nmissing_record_timeout = \"3s\"\nresolution_timeout = \"30s\"";
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let options = ["--array=0-5", "--begin=now+1hour"];
    let array = cluster.sbatch(&options, "true").await;
    mesh.wait_history(array, "submitted").await;
    stand_in.override_output("sacct", "exit 1");
    let mut cancelled = Vec::new();
    for task in [3, 5] {
        let id = format!("{array}_{task}");
        cluster.run("alice", &["scancel", &id]).await;
        cancelled.push(chrono::Utc::now().timestamp());
        // At least twelve seconds, as each poll calls it up to twice: longer than tasks join the wait of others.
        stand_in.wait_calls(POLL, 48).await;
    }
    let mut published = Vec::new();
    for task in [3, 5] {
        let tasks = format!("tasks {task} of job/{array}/");
        let gap = mesh.wait_event("the gap", |event| match &event.payload {
            Some(Payload::Capture(gap)) => gap.not_recoverable.contains(&tasks),
            _ => false,
        });
        published.push(gap.await.observed_at.unwrap().seconds);
    }
    let (began, ended) = (cancelled[1] - cancelled[0], published[1] - published[0]);
    assert!((ended - began).abs() < 15, "{began} s, {ended} s");
    stand_in.truth("sacct");
    cluster.run("alice", &["scancel", &array.to_string()]).await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

/// A slurmctld that starts again has the array without the task, as if it had never had it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_is_published_although_slurmctld_is_restarted() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let (mesh, _stand_in, ingest, array) = one_task_cancelled(cluster).await;
    cluster.ctl("stop", "slurmctld").await;
    cluster.ctl("start", "slurmctld").await;
    tasks_are_cancelled(&mesh, array, "2").await;
    cluster.run("alice", &["scancel", &array.to_string()]).await;
    tasks_are_cancelled(&mesh, array, "0-1,3").await;
    published_with_owner(&mesh, array).await;
    ingest.stop().await;
}

/// The history of days is read hour by hour, while accounting is slow.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_catch_up_does_not_keep_arrays_and_unseen_ids_waiting() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    stand_in.override_output("sacct", "case \"$*\" in *\" -S \"*) sleep 1 ;; esac");
    let since = chrono::Utc::now() - chrono::Duration::days(9);
    let settings = format!(
        "{FAST}\nmissing_record_timeout = \"3s\"\nresolution_timeout = \"15s\"\nhistory_since = \"{}\"",
        since.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
    );
    let ingest = mesh.ingest_through(&stand_in, cluster, &settings).await;
    let ingest = ingest.ready().await;
    let before = cluster.sbatch(&["--begin=now+1hour"], "true").await;
    mesh.wait_history(before, "submitted").await;
    // No poll shows the job that never became eligible, nor the array with its task.
    stand_in.override_output("squeue", "exit 1");
    let held = cluster.sbatch(&["--hold"], "true").await;
    let options = ["--array=0-3", "--begin=now+1hour"];
    let array = cluster.sbatch(&options, "true").await;
    let (id, task) = (held.to_string(), format!("{array}_2"));
    cluster.run("alice", &["scancel", &id, &task]).await;
    wait_for("slurmctld has forgotten it", DEADLINE, async || {
        let ask = ["squeue", "-h", "-t", "all", "-o", "%A"];
        let output = cluster.run("root", &ask).await;
        (!output.lines().any(|line| line == id)).then_some(())
    })
    .await;
    stand_in.truth("squeue");
    tasks_are_cancelled(&mesh, array, "2").await;
    mesh.wait_history(held, "submitted cancelled").await;
    let mut events = mesh.events().into_iter();
    let caught_up = events.find(|event| event.r#type == "capture.caught_up");
    assert_eq!(caught_up, None, "the catch-up goes on");
    let jobs = [array.to_string(), before.to_string()];
    cluster.run("alice", &["scancel", &jobs[0], &jobs[1]]).await;
    ingest.stop().await;
}

/// A task of an array is cancelled alone before any ingest has seen the array, and no hook rings.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_cancelled_before_its_array_was_seen_is_published() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let settings = format!("{FAST}\nmissing_record_timeout = \"3s\"");
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    let before = cluster.sbatch(&[], "true").await;
    mesh.wait_history(before, "submitted started completed")
        .await;
    ingest.stop().await;
    let options = ["--array=0-3", "--begin=now+1hour"];
    // The older one is found by its id, which no poll has shown.
    let (purged, waits) = (
        cluster.sbatch(&options, "true").await,
        cluster.sbatch(&options, "true").await,
    );
    for array in [waits, purged] {
        let task = format!("{array}_2");
        cluster.run("alice", &["scancel", &task]).await;
    }
    // The controller shows the rest of one array, and nothing of the other.
    cluster
        .run("alice", &["scancel", &purged.to_string()])
        .await;
    wait_for(
        "slurmctld has forgotten it",
        Duration::from_secs(180),
        async || {
            let ask = ["squeue", "-h", "-t", "all", "-o", "%F"];
            let output = cluster.run("root", &ask).await;
            let id = purged.to_string();
            (!output.lines().any(|line| line == id)).then_some(())
        },
    )
    .await;
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    tasks_are_cancelled(&mesh, waits, "2").await;
    tasks_are_cancelled(&mesh, purged, "2").await;
    cluster.run("alice", &["scancel", &waits.to_string()]).await;
    for array in [waits, purged] {
        tasks_are_cancelled(&mesh, array, "0-1,3").await;
        published_with_owner(&mesh, array).await;
    }
    ingest.stop().await;
}

async fn tasks_are_cancelled(mesh: &Mesh, array: u32, tasks: &str) {
    let capture_event = format!("tasks {tasks} of {array} are cancelled");
    mesh.wait_event(&capture_event, |event| {
        event.r#type == "job.cancelled"
            && event.job().is_some()
            && payload(event).array_tasks == tasks
            && mesh.of_job(array).contains(event)
    })
    .await;
}
