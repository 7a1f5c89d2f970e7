//! Finished jobs that are requeued while ingest is stopped: accounting of 22.05 and 24.11 overwrites the row of the run that had ended. Here a
//! doorbell reports the end.

use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::wait_for;

use crate::cluster::{self, Cluster};
use crate::doorbell::ring;
use crate::forged::field;
use crate::forgotten::{forgetful, wait_all_purged};
use crate::mesh::{DEADLINE, Mesh, payload};
use crate::stand_in::StandIn;

/// A job whose first run was seen to start, and slurmctld's data of its end before it was requeued. Ingest is stopped from its start on.
pub struct Requeued {
    pub job: u32,
    pub submit: String,
    pub start: String,
    pub end: i64,
}

/// A job whose first run was seen to start, and ends with this exit code once ingest is stopped. A requeued one continues.
pub async fn ended_unseen(mesh: &Mesh, cluster: &Cluster, settings: &str, exit_code: u8) -> u32 {
    let job = started(mesh, cluster, settings, exit_code).await;
    cluster.let_go(job);
    let state = match exit_code {
        0 => "COMPLETED",
        _ => "FAILED",
    };
    cluster.wait_state(job, state).await;
    job
}

pub async fn started(mesh: &Mesh, cluster: &Cluster, settings: &str, exit_code: u8) -> u32 {
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let script = format!(
        "[ \"${{SLURM_RESTART_COUNT:-0}}\" -gt 0 ] && sleep 300; {}; exit {exit_code}",
        cluster.until_let_go()
    );
    let job = cluster.sbatch(&["--requeue"], &script).await;
    mesh.wait_history(job, "submitted started").await;
    ingest.stop().await;
    job
}

pub async fn requeued_unseen(mesh: &Mesh, cluster: &Cluster, settings: &str) -> Requeued {
    let job = ended_unseen(mesh, cluster, settings, 3).await;
    requeue(cluster, job).await
}

/// Requeues a job that has ended.
pub async fn requeue(cluster: &Cluster, job: u32) -> Requeued {
    let [submit, start, end] = [
        field(cluster, job, "SubmitTime").await,
        field(cluster, job, "StartTime").await,
        field(cluster, job, "EndTime").await,
    ];
    let end: i64 = end.parse().unwrap();
    wait_for("time has passed since its end", DEADLINE, async || {
        (chrono::Utc::now().timestamp() > end + 3).then_some(())
    })
    .await;
    cluster
        .run("root", &["scontrol", "requeue", &job.to_string()])
        .await;
    cluster.wait_state(job, "RUNNING").await;
    Requeued {
        job,
        submit,
        start,
        end,
    }
}

/// Whether accounting has lost the end, and has only the requeue. It has the row of the next run only after that.
pub async fn is_overwritten(cluster: &Cluster, job: u32) -> bool {
    let rows = wait_for("accounting has the next run", DEADLINE, async || {
        let rows = states_in_accounting(cluster, job).await;
        (rows.len() > 1).then_some(rows)
    });
    rows.await.iter().any(|state| state == "REQUEUED")
}

/// The states of a job's runs in accounting.
pub async fn states_in_accounting(cluster: &Cluster, job: u32) -> Vec<String> {
    let id = job.to_string();
    let ask = ["sacct", "-D", "-X", "-n", "-P", "-o", "State", "-j", &id];
    let states = cluster.run("root", &ask).await;
    states.lines().map(str::to_owned).collect()
}

pub async fn ring_end(mesh: &Mesh, published: &Requeued, state: &str, code: &str) {
    let (id, end) = (published.job.to_string(), published.end.to_string());
    let environment = [
        ("JOBID", id.as_str()),
        ("JOBSTATE", state),
        ("SUBMIT", published.submit.as_str()),
        ("START", published.start.as_str()),
        ("END", end.as_str()),
        ("EXITCODE", code),
        ("NODES", "n1"),
        ("UID", "20001"),
        ("USERNAME", "alice"),
    ];
    ring(mesh, "JobComp", published.job, &environment).await;
}

pub const FIRST_RUN: &str = "submitted started failed | submitted";

#[tokio::test(flavor = "multi_thread")]
async fn an_end_reported_by_a_doorbell_is_published_although_accounting_lost_it() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"\nusage_delay = \"1s\"";
    let requeued = requeued_unseen(&mesh, cluster, settings).await;
    ring_end(&mesh, &requeued, "FAILED", "3:0").await;
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    mesh.wait_passed(requeued.job, FIRST_RUN).await;
    let failed = mesh.last(requeued.job, "job.failed");
    assert_eq!(failed.confidence(), Confidence::Observed);
    assert_eq!(failed.occurred_at.as_ref().unwrap().seconds, requeued.end);
    assert_eq!(failed.job().unwrap().exit_code.unwrap().code, 3);
    assert_eq!(failed.owner.as_ref().unwrap().user, "alice");
    // Later rows of accounting do not retract it.
    mesh.wait_event("what the first run used", |_| {
        mesh.updates_of(requeued.job).len() == 1
    })
    .await;
    let id = requeued.job.to_string();
    cluster.run("alice", &["scancel", &id]).await;
    mesh.wait_history(
        requeued.job,
        "submitted started failed | submitted started cancelled",
    )
    .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_run_after_an_unseen_requeue_names_the_run_it_continues_though_it_has_ended_too() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"";
    let requeued = requeued_unseen(&mesh, cluster, settings).await;
    ring_end(&mesh, &requeued, "FAILED", "3:0").await;
    let id = requeued.job.to_string();
    cluster.run("alice", &["scancel", &id]).await;
    cluster.wait_state(requeued.job, "CANCELLED").await;
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    mesh.wait_history(
        requeued.job,
        "submitted started failed | submitted started cancelled",
    )
    .await;
    let submitted = mesh.last(requeued.job, "job.submitted");
    let Some(Payload::Job(job)) = &submitted.payload else {
        panic!("{submitted:?}");
    };
    let continues = job.continues.as_ref().expect("the run it continues");
    let failed = mesh.last(requeued.job, "job.failed");
    assert_eq!(continues.run, failed.entity_key());
    assert_eq!(continues.cause, "failed");
    ingest.stop().await;
}

/// The batch step does not show who stopped it. The doorbell comes after ingest has published what the step shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_doorbell_that_comes_late_corrects_what_the_steps_showed() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"\nusage_delay = \"1s\"";
    let job = started(&mesh, cluster, settings, 0).await;
    let id = job.to_string();
    cluster.run("alice", &["scancel", &id]).await;
    cluster.wait_state(job, "CANCELLED").await;
    let code = field(cluster, job, "ExitCode").await;
    let requeued = requeue(cluster, job).await;
    let is_overwritten = is_overwritten(cluster, job).await;
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let (end, after) = match is_overwritten {
        true => ("requeued", "requeued corrected"),
        false => ("cancelled", "cancelled"),
    };
    mesh.wait_passed(job, &format!("submitted started {end} | submitted"))
        .await;
    ring_end(&mesh, &requeued, "CANCELLED", &code).await;
    mesh.wait_passed(job, &format!("submitted started {after} | submitted"))
        .await;
    if is_overwritten {
        let inferred = mesh.last(job, "job.requeued");
        assert_eq!(inferred.confidence(), Confidence::Inferred);
        let corrected = mesh.last(job, "job.corrected");
        assert_eq!(corrected.confidence(), Confidence::Observed);
        assert_eq!(payload(&corrected).corrects, inferred.id);
        assert_eq!(corrected.job().unwrap().state, "CANCELLED");
        assert_eq!(corrected.entity_key(), inferred.entity_key());
        let occurred_at = corrected.occurred_at.as_ref().unwrap();
        assert_eq!(occurred_at.seconds, requeued.end);
    }
    // Neither what accounting has of its use nor a second ring changes it.
    mesh.wait_event("what the first run used", |_| {
        mesh.updates_of(job).len() == 1
    })
    .await;
    ring_end(&mesh, &requeued, "CANCELLED", &code).await;
    cluster.run("alice", &["scancel", &id]).await;
    mesh.wait_history(
        job,
        &format!("submitted started {after} | submitted started cancelled"),
    )
    .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

/// The end of one job comes to accounting late, that of the other never.
#[tokio::test(flavor = "multi_thread")]
async fn a_doorbell_that_comes_after_a_gap_is_published() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings =
        "poll_interval = \"500ms\"\nmissing_record_timeout = \"1s\"\nresolution_timeout = \"1s\"";
    let jobs = [
        started(&mesh, cluster, settings, 3).await,
        started(&mesh, cluster, settings, 3).await,
    ];
    for job in jobs {
        cluster.let_go(job);
    }
    wait_all_purged(cluster).await;
    stand_in.override_output("sacct", "exit 0");
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let is_gap_of = |event: &mesh_events::Event, job: u32| match &event.payload {
        Some(Payload::Capture(gap)) if event.r#type == "capture.gap_closed" => {
            gap.not_recoverable.contains(&format!("job/{job}/"))
        }
        _ => false,
    };
    for job in jobs {
        mesh.wait_event("the gap", |event| is_gap_of(event, job))
            .await;
        assert_eq!(mesh.history(job), "submitted started");
    }
    for (job, confidence) in [
        (jobs[0], Confidence::Inferred),
        (jobs[1], Confidence::Observed),
    ] {
        if confidence == Confidence::Observed {
            stand_in.truth("sacct");
        }
        let id = job.to_string();
        let times = "export SLURM_TIME_FORMAT=%s; sacct -X -n -P -o Submit,Start,End -j";
        let times = cluster
            .run("root", &["sh", "-c", &format!("{times} {id}")])
            .await;
        let times: Vec<&str> = times.split('|').collect();
        let ended = Requeued {
            job,
            submit: times[0].to_owned(),
            start: times[1].to_owned(),
            end: times[2].parse().unwrap(),
        };
        ring_end(&mesh, &ended, "FAILED", "3:0").await;
        mesh.wait_history(job, "submitted started failed").await;
        let failed = mesh.last(job, "job.failed");
        assert_eq!(failed.confidence(), confidence);
        assert_eq!(failed.occurred_at.as_ref().unwrap().seconds, ended.end);
        assert_eq!(failed.job().unwrap().exit_code.unwrap().code, 3);
    }
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
