//! Finished jobs that are requeued while ingest is stopped, and of which no doorbell reports the end: what the steps show.

use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_testkit::wait_for;

use crate::cluster;
use crate::doorbell::ring;
use crate::finished::{
    FIRST_RUN, ended_unseen, is_overwritten, requeue, requeued_unseen, ring_end,
    states_in_accounting,
};
use crate::mesh::{DEADLINE, Mesh, payload};
use crate::stand_in::StandIn;

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
    // Its program ends by itself when it is terminated. One that is terminated before it can say so may be recorded as completed, in the second
    // of the requeue (seen on 22.05, on a busy node).
    let is_ready = cluster.new_marker();
    let ready = is_ready.display();
    let script = format!("trap 'exit 3' TERM; touch {ready}; sleep 300 & wait");
    let job = cluster.sbatch(&["--requeue"], &script).await;
    mesh.wait_history(job, "submitted started").await;
    ingest.stop().await;
    wait_for("its program is ready", DEADLINE, async || {
        is_ready.exists().then_some(())
    })
    .await;
    // Accounting loses the start of a run that is requeued at once (22.05).
    wait_for("accounting has its start", DEADLINE, async || {
        let states = states_in_accounting(cluster, job).await;
        (states == ["RUNNING"]).then_some(())
    })
    .await;
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
