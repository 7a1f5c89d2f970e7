//! Faults F0 to F17, under which a comparable publisher of Slurm's job events was tested, each with the test of ingest.
//!
//! | fault | test |
//! | --- | --- |
//! | F0 none | `doorbell::a_doorbell_makes_ingest_look_at_the_job_now`; times: `make bench`, `make demo` |
//! | F1, F2 a hook rings, accounting has no row yet | [`f1_f2_accounting_that_is_behind_delays_nothing`] |
//! | F3 a doorbell names a job that does not exist | `polite::f3_…`, `doorbell::the_end_of_a_job_that_no_record_knows_is_parked` |
//! | F4 the daemon is down | [`f4_doorbells_wait_for_an_ingest_that_is_down`]; the hook's side: `hooks/mesh-hook/tests` |
//! | F5 NATS is down | `outage::nats_unavailable_while_a_job_starts_and_ends_loses_nothing` |
//! | F6 NATS is down, the daemon restarts | [`f6_nats_unavailable_while_ingest_is_killed_loses_nothing`] |
//! | F7 node fails, the job runs again | `transitions`, and `node failed, requeued` of `docs/reference/job-events.md` |
//! | F8 the receiver rejects one of three | `services/webhook-dispatcher/tests/it/retry.rs`: `a_receiver_that_always_fails_ends_in_a_dead_letter_and_others_do_not_notice` |
//! | F9 accounting is late | `forgotten::an_absence_is_pending_until_accounting_answers_across_restarts` |
//! | F10, F11 accounting of one cluster of two fails | [`f10_accounting_of_one_cluster_that_fails_does_not_concern_the_other`]; one whole Slurm hangs, or two have the same job ids: `two` |
//! | F12 sacct hangs | [`f12_hanging_accounting_blocks_nothing_else`] |
//! | F13 killed and restarted | `start::a_crash_amid_many_jobs_loses_and_duplicates_nothing` |
//! | F14 the backend is down at the start | [`f14_ingest_starts_before_nats`] |
//! | F15 other versions of Slurm | `docs/internals/compat.md` |
//! | F16 a hundred hooks at once | `polite::f16_…` |
//! | F17 a short job between two polls | `lifecycle`, and `lived between two polls` of `docs/reference/job-events.md` |
//!
//! Known problems of other tools. "Table" is the table of `docs/reference/job-events.md`, whose rows are tested.
//!
//! | problem | test |
//! | --- | --- |
//! | 4 a squeue that times out or fails is taken for the end | `implausible::nothing_follows_from_answers_that_cannot_be_true` |
//! | 5 a job that moved to another partition is lost | `implausible::a_job_that_moves_to_another_partition_stays_the_same_run` |
//! | 6 accounting's own window begins at midnight | the same test: every request names its window |
//! | 7 a job id that is used again | `forgotten::a_job_id_that_is_used_again_is_another_job` |
//! | 8 requeue and preemption read as failure or as a second job | `transitions`; table |
//! | 9 node failure, suspension, time limit not recognised | `transitions`, `lifecycle::suspensions_stay_in_order_whatever_happens_to_ingest`, `rows`, `doorbell`; table |
//! | 10 out of memory not recognised | `rows`; table: the states of the controller, jobcomp and accounting |
//! | 16 arrays: one message per task, or a wrong summary | `lifecycle::an_array_is_submitted_once_and_each_task_starts_and_ends`, `lifecycle::a_hundred_tasks_make_two_hundred_and_one_events` |
//! | 17 accounting lags, so events are false | `rows`, [`f1_f2_accounting_that_is_behind_delays_nothing`]; table: accounting lags |
//! | 18 scrontab: "did not run" after each success | `scrontab::each_run_of_a_scrontab_job_continues_the_one_before`, where Slurm has it; table: scrontab |
//! | 20 one bad row stops everything; rows are duplicated, or under another job's name | `rows::a_row_that_is_none_late_twice_or_behind_concerns_no_other_job` |
//! | 26 JSON changes with every release | `slurm-client`: `json::tests`, against answers of 22.05, 24.11 and 26.05 |
//! | 27 JSON is slow and huge | `implausible`: no request uses it; `make bench` |

use std::time::{Duration, Instant};

use crate::cluster::{self, NAME};
use crate::doorbell::ring;
use crate::mesh::Mesh;
use crate::stand_in::StandIn;

const FAST: &str = "poll_interval = \"500ms\"";
/// So slow that only doorbells can be the cause.
const SLOW: &str = "poll_interval = \"1h\"";

#[tokio::test(flavor = "multi_thread")]
async fn f1_f2_accounting_that_is_behind_delays_nothing() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    cluster.ctl("pause", "slurmdbd").await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    cluster.wait_state(job, "CANCELLED").await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started cancelled").await;
    cluster.ctl("continue", "slurmdbd").await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f4_doorbells_wait_for_an_ingest_that_is_down() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    ingest.crash().await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    cluster.wait_state(job, "CANCELLED").await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    mesh.wait_history(job, "submitted started cancelled").await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f6_nats_unavailable_while_ingest_is_killed_loses_nothing() {
    let (cluster, _guard) = cluster::shared().await;
    let mut mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let known = cluster.sbatch(&[], "sleep 300").await;
    mesh.wait_history(known, "submitted started").await;
    mesh.nats.kill();
    let unknown = cluster.sbatch(&[], "exit 3").await;
    cluster.wait_state(unknown, "FAILED").await;
    cluster.run("alice", &["scancel", &known.to_string()]).await;
    cluster.wait_state(known, "CANCELLED").await;
    ingest.crash().await;
    mesh.nats.restart().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    mesh.wait_history(unknown, "submitted started failed").await;
    mesh.wait_history(known, "submitted started cancelled")
        .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f10_accounting_of_one_cluster_that_fails_does_not_concern_the_other() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    // The same Slurm under another name: a second cluster on the same NATS.
    let stand_in = StandIn::new(cluster);
    stand_in.override_output(
        "sacct",
        "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1",
    );
    let first = mesh.ingest(cluster, FAST).await.ready().await;
    let other = mesh
        .ingest_as("other", &stand_in, cluster, FAST)
        .await
        .ready()
        .await;
    let known = cluster.sbatch(&[], "sleep 300").await;
    mesh.wait_history(known, "submitted started").await;
    first.stop().await;
    other.stop().await;
    let unseen = cluster.sbatch(&[], "exit 7").await;
    cluster.wait_state(unseen, "FAILED").await;
    let first = mesh.ingest(cluster, FAST).await.ready().await;
    let other = mesh
        .ingest_as("other", &stand_in, cluster, FAST)
        .await
        .ready()
        .await;
    let caught_up = |name: &'static str| {
        move |event: &mesh_events::Event| {
            event.r#type == "capture.caught_up" && event.cluster == name
        }
    };
    mesh.wait_event("the first has caught up", caught_up(NAME))
        .await;
    mesh.wait_event("accounting of the other is down", |event| {
        event.r#type == "capture.source_down" && event.cluster == "other"
    })
    .await;
    let events = mesh.events();
    assert!(!events.iter().any(caught_up("other")), "it owes that still");
    // It has a backlog of its own, which it works off once its accounting answers.
    stand_in.truth("sacct");
    mesh.wait_event("the other has caught up", caught_up("other"))
        .await;
    mesh.wait_history(unseen, "submitted started failed").await;
    cluster.run("alice", &["scancel", &known.to_string()]).await;
    mesh.wait_history(known, "submitted started cancelled")
        .await;
    mesh.assert_no_duplicates();
    first.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f12_hanging_accounting_blocks_nothing_else() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    stand_in.override_output("sacct", "exec sleep 1000");
    let ingest = mesh.ingest_through(&stand_in, cluster, SLOW).await;
    let ingest = ingest.ready().await;
    // Only accounting can know this one, so it is asked repeatedly.
    ring(&mesh, "JobComp", 66_000_010, &crate::doorbell::TIMED_OUT).await;
    stand_in.wait_calls("sacct", 1).await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started cancelled").await;
    mesh.wait_event("slurmdbd is down", |event| {
        event.r#type == "capture.source_down"
    })
    .await;
    assert!(mesh.of_job(66_000_010).is_empty());
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f12_stopping_does_not_wait_for_accounting_that_hangs() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    stand_in.override_output("sacctmgr", "exec sleep 1000");
    let ingest = mesh.ingest_through(&stand_in, cluster, SLOW).await;
    let ingest = ingest.ready().await;
    if stand_in.count("sacctmgr") == 0 {
        stand_in.wait_calls("sacctmgr", 1).await;
    }
    let begun = Instant::now();
    ingest.stop().await;
    // The request itself would time out after a minute.
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(45), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f14_ingest_starts_before_nats() {
    let (cluster, _guard) = cluster::shared().await;
    let mut mesh = Mesh::start().await;
    mesh.nats.kill();
    let ingest = mesh.ingest(cluster, FAST).await;
    assert!(!ingest.context.health.problems().is_empty());
    mesh.nats.restart().await;
    let ingest = ingest.ready().await;
    let job = cluster.sbatch(&[], "true").await;
    mesh.wait_history(job, "submitted started completed").await;
    ingest.stop().await;
}
