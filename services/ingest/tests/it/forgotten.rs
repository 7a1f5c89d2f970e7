//! Jobs that slurmctld has purged: accounting is the only source.

use crate::cluster::Cluster;
use crate::mesh::{DEADLINE, Mesh, payload};
use crate::stand_in::StandIn;
use mesh_events::Event;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Source};
use mesh_testkit::wait_for;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

pub const FAST: &str = "poll_interval = \"500ms\"";

static CLUSTER: Mutex<Option<Cluster>> = Mutex::const_new(None);

/// A cluster whose slurmctld purges ended jobs after seconds instead of five minutes, for one test at a time.
pub async fn forgetful() -> MutexGuard<'static, Option<Cluster>> {
    let mut cluster = CLUSTER.lock().await;
    match cluster.as_ref() {
        // A test that failed leaves jobs.
        Some(used) => {
            used.run("root", &["scancel", "--user=alice"]).await;
            wait_all_purged(used).await;
        }
        None => *cluster = Some(Cluster::up(&[("MINJOBAGE", "2")]).await),
    }
    cluster
}

/// Waits until slurmctld has purged all jobs.
pub async fn wait_all_purged(cluster: &Cluster) {
    wait_for(
        "slurmctld has forgotten the jobs",
        Duration::from_secs(180),
        async || {
            cluster
                .run("root", &["squeue", "-h", "-t", "all"])
                .await
                .is_empty()
                .then_some(())
        },
    )
    .await;
}

/// slurmctld sends what ended to slurmdbd when it can.
pub async fn wait_all_in_accounting(cluster: &Cluster, jobs: &[u32]) {
    let ids = jobs
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let question = ["sacct", "-nXP", "-o", "state", "-j", &ids];
    wait_for(
        "accounting has the ends",
        Duration::from_secs(180),
        async || {
            let states = cluster.run("root", &question).await;
            let ended = states
                .lines()
                .filter(|state| state.starts_with("CANCELLED"));
            (ended.count() == jobs.len()).then_some(())
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_purged_by_slurmctld_are_published_from_accounting() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let running = cluster.sbatch(&[], "sleep 300").await;
    let requeued = cluster.sbatch(&["--requeue"], "sleep 300").await;
    mesh.wait_history(running, "submitted started").await;
    mesh.wait_history(requeued, "submitted started").await;
    ingest.stop().await;
    let unseen = cluster.sbatch(&[], "exit 7").await;
    cluster.wait_state(unseen, "FAILED").await;
    cluster
        .run("root", &["scontrol", "requeue", &requeued.to_string()])
        .await;
    // Or it would run again some seconds later.
    let id = format!("JobId={requeued}");
    wait_for("its next run waits", DEADLINE, async || {
        let later = ["scontrol", "update", &id, "StartTime=now+1hour"];
        cluster.attempt("root", &later).await.ok()
    })
    .await;
    cluster.wait_state(requeued, "PENDING").await;
    cluster
        .run(
            "alice",
            &["scancel", &running.to_string(), &requeued.to_string()],
        )
        .await;
    wait_all_purged(cluster).await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    mesh.wait_history(unseen, "submitted started failed").await;
    mesh.wait_history(running, "submitted started cancelled")
        .await;
    mesh.wait_history(requeued, "submitted started requeued | submitted cancelled")
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

#[tokio::test(flavor = "multi_thread")]
async fn an_absence_is_pending_until_accounting_answers_across_restarts() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    // Without an overlap, only the backlog covers the downtime. A restarted slurmdbd answers at once, but slurmctld sends its queued
    // records seconds later (seen on 24.11.5), and slow machines take their time: `resolution_timeout` allows for that.
    let settings = format!(
        "{FAST}\ncatch_up_overlap = \"0s\"\nmissing_record_timeout = \"1s\"\nresolution_timeout = \"5m\""
    );
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    let known = cluster.sbatch(&[], "sleep 300").await;
    mesh.wait_history(known, "submitted started").await;
    ingest.stop().await;
    // The records that slurmctld queues for slurmdbd must be waited for, too.
    cluster.ctl("kill", "slurmdbd").await;
    let unseen = cluster.sbatch(&[], "exit 7").await;
    cluster.wait_state(unseen, "FAILED").await;
    cluster.run("alice", &["scancel", &known.to_string()]).await;
    wait_all_purged(cluster).await;
    let mut seen = Vec::new();
    for restart in 0..2 {
        let ingest = mesh.ingest(cluster, &settings).await.ready().await;
        mesh.wait_event("slurmdbd is down", |event| {
            event.r#type == "capture.source_down"
        })
        .await;
        // Polls continue and move the watermark. The end of a job that slurmctld purges so soon might not be seen.
        let next = cluster.sbatch(&[], "sleep 300").await;
        mesh.wait_history(next, "submitted started").await;
        seen.push(next.to_string());
        if restart == 0 {
            ingest.crash().await;
            continue;
        }
        assert_eq!(mesh.history(unseen), "");
        cluster.ctl("start", "slurmdbd").await;
        mesh.wait_event("caught up", |event| event.r#type == "capture.caught_up")
            .await;
        mesh.wait_history(unseen, "submitted started failed").await;
        mesh.wait_history(known, "submitted started cancelled")
            .await;
        // The previous process has published the outage.
        let from = |event: &Event| match &event.payload {
            Some(Payload::Capture(capture_event)) => capture_event.from.map(|from| from.seconds),
            _ => None,
        };
        let down = mesh.events();
        let mut down = down
            .iter()
            .filter(|event| event.r#type == "capture.source_down");
        let down = down.next().and_then(from);
        mesh.wait_event("slurmdbd is back", |event| {
            event.r#type == "capture.source_up" && from(event) == down
        })
        .await;
        ingest.stop().await;
    }
    for job in &seen {
        cluster.run("alice", &["scancel", job]).await;
    }
    mesh.assert_no_duplicates();
    // Accounting had not answered, so nothing could be reported as missing from it.
    let gaps = mesh.events();
    let mut gaps = gaps
        .iter()
        .filter(|event| event.r#type == "capture.gap_closed");
    assert_eq!(gaps.next(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_without_record_is_published_as_a_gap_once() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let settings = format!(
        "{FAST}\naccounting = false\nmissing_record_timeout = \"1s\"\nresolution_timeout = \"1s\""
    );
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    mesh.wait_history(job, "submitted started").await;
    ingest.stop().await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    wait_all_purged(cluster).await;
    let run = mesh.of_job(job)[0].entity_key().to_owned();
    let gaps = || {
        let events = mesh.events();
        let gaps = events.into_iter().filter_map(|event| match event.payload {
            Some(Payload::Capture(capture_event)) if event.r#type == "capture.gap_closed" => {
                Some(capture_event)
            }
            _ => None,
        });
        gaps.collect::<Vec<_>>()
    };
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    mesh.wait_event("the gap", |_| !gaps().is_empty()).await;
    ingest.crash().await;
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    // It polls again. A slow poll might miss the end of a job that slurmctld purges so soon.
    let next = cluster.sbatch(&[], "sleep 300").await;
    mesh.wait_history(next, "submitted started").await;
    ingest.stop().await;
    cluster.run("alice", &["scancel", &next.to_string()]).await;
    let gaps = gaps();
    assert_eq!(gaps.len(), 1);
    assert_eq!(gaps[0].not_recoverable, format!("how and when {run} ended"));
    assert!(
        gaps[0].message.contains("accounting is disabled"),
        "{}",
        gaps[0].message
    );
    assert_eq!(mesh.history(job), "submitted started");
    mesh.assert_no_duplicates();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_nats_outage_are_published_although_slurmctld_purged_them() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mut mesh = Mesh::start().await;
    let settings = format!("{FAST}\ncatch_up_threshold = \"3s\"");
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    let before = cluster.sbatch(&[], "true").await;
    mesh.wait_history(before, "submitted started completed")
        .await;
    mesh.nats.kill();
    // The poll that shows this job waits for NATS, so no poll shows the next one.
    let blocking = cluster.sbatch(&[], "sleep 2").await;
    cluster.wait_state(blocking, "COMPLETED").await;
    let unseen = cluster.sbatch(&[], "exit 3").await;
    cluster.wait_state(unseen, "FAILED").await;
    wait_all_purged(cluster).await;
    mesh.nats.restart().await;
    mesh.wait_history(unseen, "submitted started failed").await;
    mesh.wait_history(blocking, "submitted started completed")
        .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_never_became_eligible_are_looked_up_by_missing_ids() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let settings = format!("{FAST}\nusage_delay = \"1s\"");
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    let before = cluster.sbatch(&[], "true").await;
    mesh.wait_history(before, "submitted started completed")
        .await;
    ingest.stop().await;
    // Accounting does not list these two by time.
    let held = cluster.sbatch(&["--hold"], "true").await;
    let dependent = cluster
        .sbatch(&[&format!("--dependency=afterok:{held}")], "true")
        .await;
    cluster
        .run(
            "alice",
            &["scancel", &dependent.to_string(), &held.to_string()],
        )
        .await;
    // An id without a job.
    let tested = ["sbatch", "--test-only", "--mem=10", "--wrap=true"];
    cluster.run("alice", &tested).await;
    wait_all_purged(cluster).await;
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    let after = cluster.sbatch(&[], "sleep 1").await;
    mesh.wait_history(after, "submitted started completed")
        .await;
    for job in [held, dependent] {
        mesh.wait_history(job, "submitted cancelled").await;
        assert_eq!(mesh.of_job(job)[1].actor.clone().unwrap().user, "alice");
    }
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

/// Polls show the jobs before and after it, or accounting alone shows the one before.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_id_after_a_job_that_no_poll_has_shown_is_looked_up() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = format!("{FAST}\ncatch_up_threshold = \"3s\"");
    let ingest = mesh.ingest_through(&stand_in, cluster, &settings).await;
    let ingest = ingest.ready().await;
    stand_in.override_output("squeue", "exit 1");
    let before = cluster.sbatch(&[], "true").await;
    wait_all_purged(cluster).await;
    stand_in.truth("squeue");
    mesh.wait_history(before, "submitted started completed")
        .await;
    ingest.stop().await;
    // Accounting does not list it by time.
    let held = cluster.sbatch(&["--hold"], "true").await;
    cluster.run("alice", &["scancel", &held.to_string()]).await;
    wait_all_purged(cluster).await;
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    let after = cluster.sbatch(&[], "sleep 1").await;
    mesh.wait_history(after, "submitted started completed")
        .await;
    mesh.wait_history(held, "submitted cancelled").await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_id_that_is_used_again_is_another_job() {
    let conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(conf.path(), "FirstJobId=380001\nMaxJobId=380004\n").unwrap();
    let knobs = [
        ("MINJOBAGE", "2"),
        ("NODES", "1"),
        ("GPU_NODES", "0"),
        ("EXTRA_CONF", conf.path().to_str().unwrap()),
    ];
    let cluster = Cluster::up(&knobs).await;
    let mesh = Mesh::start().await;
    let settings = format!("{FAST}\nusage_delay = \"1s\"");
    let ingest = mesh.ingest(&cluster, &settings).await.ready().await;
    let mut jobs = Vec::new();
    let mut last = "";
    while last.is_empty() {
        let job = cluster.sbatch(&[], "sleep 1").await;
        if jobs.contains(&job) {
            last = "submitted started completed | submitted started completed";
            mesh.wait_history(job, last).await;
        } else {
            mesh.wait_history(job, "submitted started completed").await;
            // Slurm does not reuse the id of a job before purging it.
            wait_all_purged(&cluster).await;
        }
        jobs.push(job);
    }
    let newest = *jobs.last().unwrap();
    // Slurm counts up to MaxJobId and restarts at FirstJobId.
    let (_, counted) = jobs.split_last().unwrap();
    assert!(counted.len() > 1 && counted.is_sorted(), "{jobs:?}");
    assert_eq!(newest, counted[0], "{jobs:?}");
    let second = mesh
        .of_job(newest)
        .into_iter()
        .rfind(|event| event.r#type == "job.submitted");
    // It continues no earlier run.
    assert_eq!(payload(&second.unwrap()).continues, None);
    mesh.wait_event("what both used", |_| mesh.updates_of(newest).len() == 2)
        .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_jobs_cancelled_and_purged_between_two_polls_are_published() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = "poll_interval = \"8s\"";
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let submit = "for n in {1..200}; do sbatch --parsable --hold --mem=10 --output=/dev/null --wrap=true; done";
    let printed = cluster.run("alice", &["bash", "-c", submit]).await;
    let jobs: Vec<u32> = printed.lines().map(|id| id.parse().unwrap()).collect();
    for job in &jobs {
        mesh.wait_history(*job, "submitted held").await;
    }
    // No poll succeeds meanwhile.
    stand_in.override_output("squeue", "exit 1");
    cluster.run("alice", &["scancel", "--user=alice"]).await;
    wait_all_purged(cluster).await;
    wait_all_in_accounting(cluster, &jobs).await;
    stand_in.truth("squeue");
    let before = stand_in.calls().len();
    for job in &jobs {
        mesh.wait_history(*job, "submitted held cancelled").await;
    }
    // A poll reads sixteen of them by id. Accounting is asked for all of them together, in one lookup or in the two around its rate limit.
    let lookups = &stand_in.calls()[before..];
    let ids = |call: &String| {
        let (_, ids) = call.strip_prefix("sacct ")?.split_once(" -j ")?;
        Some(ids.split(',').count())
    };
    let most = lookups.iter().filter_map(ids).max();
    assert!(
        most.is_some_and(|most| most >= jobs.len() / 4),
        "{lookups:#?}"
    );
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
