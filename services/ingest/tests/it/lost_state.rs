//! A slurmctld that is started with an older state runs ended jobs again.

use std::path::Path;
use std::process::Command;

use mesh_events::Event;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;

use crate::cluster::Cluster;
use crate::mesh::{Mesh, payload};

fn run(program: &str, arguments: &[&Path]) {
    let status = Command::new(program).arg("-a").args(arguments).status();
    assert!(status.unwrap().success(), "{program} {arguments:?}");
}

fn gap<'a>(event: &'a Event, kind: &str) -> Option<&'a CaptureEvent> {
    match &event.payload {
        Some(Payload::Capture(capture_event))
            if event.r#type == kind && capture_event.source == "slurmctld" =>
        {
            Some(capture_event)
        }
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_repeated_by_a_slurmctld_with_old_state_are_published_between_gap_events() {
    let knobs = [("NODES", "1"), ("GPU_NODES", "0")];
    let cluster = Cluster::up(&knobs).await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"\nusage_delay = \"1s\"";
    let ingest = mesh.ingest(&cluster, settings).await.ready().await;
    let job = cluster.sbatch(&["--begin=now+1hour"], "exit 4").await;
    let lost = cluster.sbatch(&["--begin=now+1hour"], "exit 4").await;
    for job in [job, lost] {
        mesh.wait_history(job, "submitted").await;
    }
    let (state, old) = (cluster.folder.join("state"), cluster.folder.join("old"));
    cluster.ctl("stop", "slurmctld").await;
    run("cp", &[&state, &old]);
    cluster.ctl("start", "slurmctld").await;
    let start_now = async |job: u32| {
        let id = format!("JobId={job}");
        let update = ["scontrol", "update", &id, "StartTime=now"];
        cluster.run("root", &update).await;
    };
    start_now(job).await;
    mesh.wait_history(job, "submitted started failed").await;
    cluster.run("alice", &["scancel", &lost.to_string()]).await;
    mesh.wait_history(lost, "submitted cancelled").await;
    let reused_id = cluster.sbatch(&[], "exit 5").await;
    mesh.wait_history(reused_id, "submitted started failed")
        .await;
    mesh.wait_event("what the first run used", |_| {
        mesh.updates_of(job).len() == 1
    })
    .await;
    cluster.ctl("stop", "slurmctld").await;
    std::fs::remove_dir_all(&state).unwrap();
    run("cp", &[&old, &state]);
    cluster.ctl("start", "slurmctld").await;
    start_now(job).await;
    let twice = "submitted started failed | submitted started failed";
    mesh.wait_history(job, twice).await;
    let second = mesh.last(job, "job.submitted");
    let continues = payload(&second).continues.clone().unwrap();
    assert_eq!(continues.cause, "failed");
    // The id of a job that slurmctld has lost now belongs to another job.
    assert_eq!(cluster.sbatch(&[], "exit 5").await, reused_id);
    mesh.wait_history(reused_id, twice).await;
    let closed = mesh
        .wait_event("the gap is closed", |event| {
            gap(event, "capture.gap_closed").is_some()
        })
        .await;
    let closed = gap(&closed, "capture.gap_closed").unwrap();
    assert_eq!(closed.recovered, 1, "{closed:?}");
    assert!(!closed.not_recoverable.is_empty());
    // The gap opens before the repeated runs are published, and closes afterwards.
    let events = mesh.events();
    let position = |is: &dyn Fn(&Event) -> bool| events.iter().position(is).unwrap();
    let opened = position(&|event| gap(event, "capture.gap_opened").is_some());
    let second_at = position(&|event| event.id == second.id);
    let ended = position(&|event| gap(event, "capture.gap_closed").is_some());
    assert!(
        opened < second_at && second_at < ended,
        "{opened} {second_at} {ended}"
    );
    // Cancelled for the second time before it could start.
    cluster.run("alice", &["scancel", &lost.to_string()]).await;
    mesh.wait_history(lost, "submitted cancelled | submitted cancelled")
        .await;
    mesh.wait_event("what the second run used", |_| {
        mesh.updates_of(job).len() == 2
    })
    .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
