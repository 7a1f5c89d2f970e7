//! The same facts from Slurm's commands and from slurmrestd.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::Utc;
use mesh_events::Event;
use mesh_events::proto::mesh::job::v1::Usage;
use mesh_testkit::{script, wait_for};

use crate::cluster::{self, Cluster};
use crate::doorbell::ring;
use crate::gaps::{filled, lose_everything};
use crate::mesh::Mesh;

const FAST: &str =
    "poll_interval = \"500ms\"\nusage_delay = \"1s\"\nmissing_record_timeout = \"30s\"";
const DEADLINE: Duration = Duration::from_secs(180);

/// Waits until both have published this history of a job.
async fn both_publish(commands: &Mesh, rest: &Mesh, job: u32, history: &str) {
    commands.wait_history(job, history).await;
    published_over_rest(rest, job, history).await;
}

/// Waits until this history of a job is published. Over REST, polls are half a minute apart, so hooks ring.
async fn published_over_rest(rest: &Mesh, job: u32, history: &str) {
    let mut rings = Vec::new();
    wait_for(
        &format!("over REST of job {job}: {history}"),
        DEADLINE,
        async || {
            if rest.history(job) == history {
                return Some(());
            }
            // Each doorbell is a new one.
            rings.push(("SLURM_X", ""));
            ring(rest, "EpilogSlurmctld", job, &rings).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            None
        },
    )
    .await;
}

/// Returns the events of a job without `pending`, which depends on the time of the poll.
fn facts(mesh: &Mesh, job: u32) -> BTreeMap<String, Event> {
    let of_job = mesh.of_job(job).into_iter().chain(mesh.updates_of(job));
    of_job
        .filter(|event| event.r#type != "job.pending")
        .map(|event| (event.id.clone(), event))
        .collect()
}

/// Returns the usage of a run once it is complete.
fn used(event: &Event) -> Option<Usage> {
    let usage = event.job()?.usage.clone();
    usage.filter(|usage| !usage.incomplete)
}

fn code_of(event: &Event) -> Option<u32> {
    Some(event.job()?.exit_code?.code)
}

#[tokio::test(flavor = "multi_thread")]
async fn slurmrestd_and_the_commands_give_the_same_facts() {
    let (cluster, _guard) = cluster::shared().await;
    let (commands, rest) = (Mesh::start().await, Mesh::start().await);
    let over_rest = rest.ingest_over_rest(cluster, FAST).await.ready().await;
    let by_commands = commands.ingest(cluster, FAST).await.ready().await;
    let both = async |job: u32, history: &str| both_publish(&commands, &rest, job, history).await;

    let measured = cluster.sbatch(&[], "sleep 3").await;
    let failed = cluster.sbatch(&[], "exit 3").await;
    let waiting = cluster.sbatch(&["--begin=now+1hour"], "true").await;
    let running = cluster.sbatch(&[], "sleep 300").await;
    let array = cluster.sbatch(&["--array=0-2"], "sleep 1").await;
    let requeued = cluster.sbatch(&["--requeue"], "sleep 300").await;
    both(waiting, "submitted").await;
    both(running, "submitted started").await;
    both(requeued, "submitted started").await;
    for job in [waiting, running] {
        cluster.run("alice", &["scancel", &job.to_string()]).await;
    }
    cluster
        .run("root", &["scontrol", "requeue", &requeued.to_string()])
        .await;
    both(measured, "submitted started completed").await;
    both(failed, "submitted started failed").await;
    both(waiting, "submitted cancelled").await;
    both(running, "submitted started cancelled").await;
    let task = "started completed";
    both(array, &format!("submitted | {task} | {task} | {task}")).await;
    let rerun = "submitted started requeued | submitted started";
    both(requeued, rerun).await;
    cluster
        .run("alice", &["scancel", &requeued.to_string()])
        .await;
    both(requeued, &format!("{rerun} cancelled")).await;

    let jobs = [measured, failed, waiting, running, array, requeued];
    // Two runs of the requeued job, three tasks, and one of each other job except the one that never started.
    for (job, runs) in jobs.into_iter().zip([1, 1, 0, 1, 3, 2]) {
        wait_for("what the runs used", DEADLINE, async || {
            let published = [&commands, &rest].map(|mesh| mesh.updates_of(job).len());
            (published == [runs, runs]).then_some(())
        })
        .await;
        let (commands, rest) = (facts(&commands, job), facts(&rest, job));
        let ids = |facts: &BTreeMap<String, Event>| facts.keys().cloned().collect::<Vec<_>>();
        assert_eq!(ids(&commands), ids(&rest), "job {job}");
        for (id, printed) in &commands {
            let published = &rest[id];
            let of = |event: &Event| (event.r#type.clone(), event.occurred_at);
            assert_eq!(of(printed), of(published), "{id}");
            let code = |event: &Event| event.job().unwrap().exit_code;
            // Accounting of 22.05 has no exit codes over REST, and a requeued run is only in accounting. Before the end, a late read may
            // have one.
            let is_over = !["job.submitted", "job.started"].contains(&published.r#type.as_str());
            // The record of a cancelled job has exit code 0 until its script has ended (26.05), so a late read differs.
            let ends_itself = ![running, requeued].contains(&job);
            if code(published).is_some() && is_over && ends_itself {
                assert_eq!(code(printed), code(published), "{id}");
            }
            if let (Some(printed), Some(published)) = (used(printed), used(published)) {
                assert_eq!(printed, published, "{id}");
            }
        }
    }
    let known = |mesh: &Mesh| used(&mesh.updates_of(measured)[0]).is_some_and(|u| u.memory_kib > 0);
    assert!(known(&commands) && known(&rest));
    let end = rest.of_job(failed).pop().unwrap();
    assert_eq!(end.job().unwrap().exit_code.unwrap().code, 3);
    rest.assert_no_duplicates();
    over_rest.stop().await;
    by_commands.stop().await;
}

/// Accounting of 22.05 has no exit codes over REST: that of the end is stored until the usage is published.
#[tokio::test(flavor = "multi_thread")]
async fn usage_has_the_exit_code_after_a_restart() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let slow = FAST.replace("usage_delay = \"1s\"", "usage_delay = \"1h\"");
    let ingest = mesh.ingest_over_rest(cluster, &slow).await.ready().await;
    let job = cluster.sbatch(&[], "exit 3").await;
    published_over_rest(&mesh, job, "submitted started failed").await;
    ingest.stop().await;
    let ingest = mesh.ingest_over_rest(cluster, FAST).await.ready().await;
    wait_for("what it used", DEADLINE, async || {
        (mesh.updates_of(job).len() == 1).then_some(())
    })
    .await;
    let update = mesh.updates_of(job).remove(0);
    assert_eq!(update.job().unwrap().exit_code.unwrap().code, 3);
    ingest.stop().await;
}

/// Accounting has an end while the epilogs run, but over REST of 22.05 without its exit code, and slurmctld of 22.05 hides the end
/// meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_accounting_has_first_waits_for_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let (epilog, go) = (folder.path().join("epilog"), folder.path().join("go"));
    script(
        &epilog,
        &format!("until [ -e {} ]; do sleep 0.1; done", go.display()),
    );
    let conf = folder.path().join("conf");
    std::fs::write(&conf, format!("Epilog={}\n", epilog.display())).unwrap();
    let knobs = [
        ("REST", "1"),
        ("NODES", "1"),
        ("GPU_NODES", "0"),
        ("EXTRA_CONF", conf.to_str().unwrap()),
    ];
    let cluster = Cluster::up(&knobs).await;
    let begin = Utc::now();
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest_over_rest(&cluster, FAST).await.ready().await;
    let fail = |code: u32| format!("{}; exit {code}", cluster.until_let_go());
    let seen = cluster.sbatch(&[], &fail(3)).await;
    published_over_rest(&mesh, seen, "submitted started").await;
    ingest.stop().await;
    let unseen = cluster.sbatch(&[], &fail(4)).await;
    // A node whose epilogs run takes no other job.
    cluster.wait_state(unseen, "RUNNING").await;
    for job in [seen, unseen] {
        cluster.let_go(job);
    }
    cluster.wait_state(seen, "COMPLETING").await;
    cluster.wait_state(unseen, "COMPLETING").await;
    // The catch-up reads accounting at once.
    let ingest = mesh.ingest_over_rest(&cluster, FAST).await.ready().await;
    std::fs::write(&go, "").unwrap();
    for (job, code) in [(seen, 3), (unseen, 4)] {
        published_over_rest(&mesh, job, "submitted started failed").await;
        let end = mesh.last(job, "job.failed");
        assert_eq!(code_of(&end), Some(code));
    }
    mesh.assert_no_duplicates();

    // After a loss, they are republished unchanged.
    lose_everything(&mesh).await;
    let before = mesh.events().len();
    filled(&mesh, 1, begin).await;
    let rerun = mesh.events().split_off(before);
    for (job, code) in [(seen, 3), (unseen, 4)] {
        let is_end = |event: &&Event| {
            event.r#type == "job.failed" && event.job().is_some_and(|of| of.job_id == job)
        };
        let end = rerun.iter().find(is_end).unwrap();
        assert_eq!(code_of(end), Some(code));
    }
    ingest.stop().await;
}
