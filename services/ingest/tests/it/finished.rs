//! Finished jobs that are requeued while ingest is stopped: accounting of 22.05 and 24.11 overwrites the row of the run that had ended.

use std::time::Duration;

use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::wait_for;

use crate::cluster::{self, Cluster};
use crate::doorbell::ring;
use crate::forged::{field, wait_restarts};
use crate::forgotten::{forgetful, wait_all_purged};
use crate::mesh::{DEADLINE, Mesh, payload};
use crate::stand_in::{POLL, StandIn};

/// A job whose first run was seen to start, and slurmctld's data of its end before it was requeued. Ingest is stopped from its start on.
struct Requeued {
    job: u32,
    submit: String,
    start: String,
    end: i64,
}

/// A job whose first run was seen to start, and ends with this exit code once ingest is stopped. A requeued one continues.
async fn ended_unseen(mesh: &Mesh, cluster: &Cluster, settings: &str, exit_code: u8) -> u32 {
    let job = started(mesh, cluster, settings, exit_code).await;
    cluster.let_go(job);
    let state = match exit_code {
        0 => "COMPLETED",
        _ => "FAILED",
    };
    cluster.wait_state(job, state).await;
    job
}

async fn started(mesh: &Mesh, cluster: &Cluster, settings: &str, exit_code: u8) -> u32 {
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

async fn requeued_unseen(mesh: &Mesh, cluster: &Cluster, settings: &str) -> Requeued {
    let job = ended_unseen(mesh, cluster, settings, 3).await;
    requeue(cluster, job).await
}

/// Requeues a job that has ended.
async fn requeue(cluster: &Cluster, job: u32) -> Requeued {
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

/// Whether accounting has lost the end, and has only the requeue.
async fn is_overwritten(cluster: &Cluster, job: u32) -> bool {
    let id = job.to_string();
    let ask = ["sacct", "-D", "-X", "-n", "-P", "-o", "State", "-j", &id];
    let states = cluster.run("root", &ask).await;
    states.lines().any(|state| state == "REQUEUED")
}

async fn ring_end(mesh: &Mesh, published: &Requeued, state: &str, code: &str) {
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

const FIRST_RUN: &str = "submitted started failed | submitted";

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
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    // Longer than ingest waits for it.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let is_overwritten = is_overwritten(cluster, job).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn without_a_true_doorbell_its_steps_show_the_end_and_it_is_inferred() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"\nmissing_record_timeout = \"3s\"";
    let requeued = requeued_unseen(&mesh, cluster, settings).await;
    // The row still has the exit code.
    ring_end(&mesh, &requeued, "COMPLETED", "0:0").await;
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    mesh.wait_passed(requeued.job, FIRST_RUN).await;
    let failed = mesh.last(requeued.job, "job.failed");
    let expected = match is_overwritten(cluster, requeued.job).await {
        true => Confidence::Inferred,
        false => Confidence::Observed,
    };
    assert_eq!(failed.confidence(), expected);
    let after = failed.occurred_at.as_ref().unwrap().seconds - requeued.end;
    assert!((-1..=0).contains(&after), "{after} s after its end");
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

/// Accounting has the row of the requeue, and does not answer about steps until the doorbell comes.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_of_which_the_steps_cannot_be_read_is_inferred_and_its_doorbell_corrects_it() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"\nmissing_record_timeout = \"3s\"";
    let requeued = requeued_unseen(&mesh, cluster, settings).await;
    let job = requeued.job;
    let is_overwritten = is_overwritten(cluster, job).await;
    let stand_in = StandIn::new(cluster);
    // Only requests without `-X` have steps.
    let without_steps = "case \" $* \" in *\" -X \"*) ;; *) exit 1 ;; esac";
    stand_in.override_output("sacct", without_steps);
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let end = match is_overwritten {
        true => "requeued",
        false => "failed",
    };
    mesh.wait_passed(job, &format!("submitted started {end} | submitted"))
        .await;
    let published = mesh.last(job, &format!("job.{end}"));
    if is_overwritten {
        assert_eq!(published.confidence(), Confidence::Inferred);
        stand_in.truth("sacct");
        ring_end(&mesh, &requeued, "FAILED", "3:0").await;
        mesh.wait_passed(job, "submitted started requeued corrected | submitted")
            .await;
        let corrected = mesh.last(job, "job.corrected");
        assert_eq!(corrected.confidence(), Confidence::Observed);
        assert_eq!(payload(&corrected).corrects, published.id);
        assert_eq!(corrected.job().unwrap().state, "FAILED");
        let occurred_at = corrected.occurred_at.as_ref().unwrap();
        assert_eq!(occurred_at.seconds, requeued.end);
    } else {
        assert_eq!(published.confidence(), Confidence::Observed);
    }
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

/// Nothing rings but `job_submit.lua`, once, for another job.
#[tokio::test(flavor = "multi_thread")]
async fn with_hooks_off_a_run_between_two_polls_ends_as_its_steps_show() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"1h\"\nmissing_record_timeout = \"3s\"";
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let script = format!(
        "[ \"${{SLURM_RESTART_COUNT:-0}}\" -gt 0 ] && sleep 300; {}; exit 3",
        cluster.until_let_go()
    );
    let job = cluster.sbatch(&["--requeue"], &script).await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "JobSubmit", 0, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    cluster.let_go(job);
    cluster.wait_state(job, "FAILED").await;
    let requeued = requeue(cluster, job).await;
    assert_eq!(mesh.history(job), "submitted started");
    ring(&mesh, "JobSubmit", 0, &[]).await;
    mesh.wait_history(job, "submitted started failed | submitted started")
        .await;
    let failed = mesh.last(job, "job.failed");
    let expected = match is_overwritten(cluster, job).await {
        true => Confidence::Inferred,
        false => Confidence::Observed,
    };
    assert_eq!(failed.confidence(), expected);
    let after = failed.occurred_at.as_ref().unwrap().seconds - requeued.end;
    assert!((-1..=0).contains(&after), "{after} s after its end");
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requeue_in_the_second_of_the_end_is_not_observed() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"\nmissing_record_timeout = \"3s\"";
    let job = ended_unseen(&mesh, cluster, settings, 0).await;
    let id = job.to_string();
    cluster.run("root", &["scontrol", "requeue", &id]).await;
    cluster.wait_state(job, "RUNNING").await;
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let is_second_run = |event: &&mesh_events::Event| event.r#type == "job.submitted";
    mesh.wait_event("the second run", |_| {
        mesh.of_job(job).iter().filter(is_second_run).count() == 2
    })
    .await;
    let ends = ["job.requeued", "job.completed"];
    let ends = mesh
        .of_job(job)
        .into_iter()
        .filter(|event| ends.contains(&event.r#type.as_str()));
    let ends: Vec<_> = ends.map(|event| event.confidence()).collect();
    let expected = match is_overwritten(cluster, job).await {
        true => Confidence::Inferred,
        false => Confidence::Observed,
    };
    assert_eq!(ends, [expected]);
    cluster.run("alice", &["scancel", &id]).await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_requeued_while_running_is_published_as_requeued() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"";
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    // Its program ends by itself when it is terminated.
    let script = "trap \"exit 3\" TERM; sleep 300 & wait";
    let job = cluster.sbatch(&["--requeue"], script).await;
    mesh.wait_history(job, "submitted started").await;
    ingest.stop().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let id = job.to_string();
    cluster.run("root", &["scontrol", "requeue", &id]).await;
    cluster.wait_state(job, "RUNNING").await;
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    mesh.wait_passed(job, "submitted started requeued | submitted")
        .await;
    let requeued = mesh.last(job, "job.requeued");
    let steps = ["sacct", "-DPj", &id, "-o", "jobid,state,exitcode,start,end"];
    assert_eq!(
        requeued.confidence(),
        Confidence::Observed,
        "{requeued:?}\n{}",
        cluster.run("root", &steps).await
    );
    cluster.run("alice", &["scancel", &id]).await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_over_before_accounting_has_the_run_before_is_published() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"";
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let script = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] || sleep 300; sleep 1";
    let job = cluster.sbatch(&["--requeue"], script).await;
    mesh.wait_history(job, "submitted started").await;
    ingest.stop().await;
    let id = job.to_string();
    cluster.run("root", &["scontrol", "requeuehold", &id]).await;
    cluster.wait_state(job, "PENDING").await;
    let stand_in = StandIn::new(cluster);
    stand_in.override_output("sacct", "exit 1");
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    // The second of two polls that began since then finds what the first one has read.
    stand_in.wait_calls(POLL, 3).await;
    cluster.run("root", &["scontrol", "release", &id]).await;
    cluster.wait_state(job, "COMPLETED").await;
    assert_eq!(mesh.history(job), "submitted started");
    stand_in.truth("sacct");
    mesh.wait_passed(
        job,
        "submitted started requeued | submitted held released started completed",
    )
    .await;
    let held = mesh.last(job, "job.held");
    let released = mesh.last(job, "job.released");
    assert!(held.observed_at.unwrap().seconds <= released.observed_at.unwrap().seconds);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_over_before_a_crashed_ingest_starts_again_is_published() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"";
    let stand_in = StandIn::new(cluster);
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let script = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] || sleep 300; sleep 1";
    let job = cluster.sbatch(&["--requeue"], script).await;
    mesh.wait_history(job, "submitted started").await;
    stand_in.override_output("sacct", "exit 1");
    let id = job.to_string();
    cluster.run("root", &["scontrol", "requeuehold", &id]).await;
    cluster.wait_state(job, "PENDING").await;
    stand_in.wait_calls(POLL, 4).await;
    ingest.crash().await;
    assert_eq!(mesh.history(job), "submitted started");
    cluster.run("root", &["scontrol", "release", &id]).await;
    cluster.wait_state(job, "COMPLETED").await;
    stand_in.truth("sacct");
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    mesh.wait_passed(
        job,
        "submitted started requeued | submitted held released started completed",
    )
    .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waited_only_while_the_one_before_was_looked_up_is_continued_by_the_next() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = "poll_interval = \"500ms\"\nmissing_record_timeout = \"90s\"";
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let script = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 1 ] || sleep 300";
    let job = cluster.sbatch(&["--requeue"], script).await;
    mesh.wait_history(job, "submitted started").await;
    let id = job.to_string();
    let first = field(cluster, job, "SubmitTime").await;
    // Accounting answers without rows while the second run waits and ends.
    stand_in.override_output("sacct", "exit 0");
    cluster.run("root", &["scontrol", "requeue", &id]).await;
    wait_restarts(cluster, job, 1).await;
    stand_in.wait_calls(POLL, 3).await;
    cluster.wait_state(job, "RUNNING").await;
    cluster.run("root", &["scontrol", "requeue", &id]).await;
    wait_restarts(cluster, job, 2).await;
    stand_in.wait_calls(POLL, 3).await;
    // It has the first run before it has the second.
    let only_first = format!("\"$real\" \"$@\" | grep {first}; exit 0");
    stand_in.override_output("sacct", &only_first);
    mesh.wait_event("the first run's end", |event| {
        event.r#type == "job.requeued" && mesh.of_job(job).contains(event)
    })
    .await;
    stand_in.wait_calls(POLL, 3).await;
    stand_in.truth("sacct");
    mesh.wait_passed(
        job,
        "submitted started requeued | submitted started requeued | submitted started completed",
    )
    .await;
    let third = mesh.last(job, "job.submitted");
    let second = mesh.of_job(job).into_iter().filter(|event| {
        event.r#type == "job.requeued" && event.entity_key() != format!("job/{id}/{first}")
    });
    let continues = payload(&third).continues.clone().unwrap();
    let second = second.map(|event| event.entity_key().to_owned());
    assert_eq!(second.collect::<Vec<_>>(), [continues.run]);
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
