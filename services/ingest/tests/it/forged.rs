//! Forged doorbells: a holder of the credential reports ends of jobs like jobcomp, without any record in Slurm.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use mesh_events::Event;
use mesh_events::proto::mesh::audit::v1::DeadLetter;
use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_testkit::{script, wait_for};
use prost::Message as _;

use crate::cluster::{self, Cluster};
use crate::doorbell::ring;
use crate::mesh::{DEADLINE, Mesh, payload};
use crate::stand_in::StandIn;

const SLOW: &str = "poll_interval = \"1h\"";

/// Returns a field of `scontrol show job`; times in Unix seconds.
pub async fn field(cluster: &Cluster, job: u32, name: &str) -> String {
    let id = job.to_string();
    let ask = [
        "env",
        "SLURM_TIME_FORMAT=%s",
        "scontrol",
        "-o",
        "show",
        "job",
        &id,
    ];
    let printed = cluster.run("root", &ask).await;
    let prefix = format!("{name}=");
    let mut printed_fields = printed.split_ascii_whitespace();
    let found = printed_fields.find_map(|field_text| field_text.strip_prefix(&prefix));
    found
        .unwrap_or_else(|| panic!("{name} in {printed}"))
        .to_owned()
}

/// Waits until a job was requeued this many times. Unlike its state, which is PENDING for a few seconds only, that remains so.
pub async fn wait_restarts(cluster: &Cluster, job: u32, restarts: u32) {
    let restarts = restarts.to_string();
    wait_for("it is in its next run", DEADLINE, async || {
        (field(cluster, job, "Restarts").await == restarts).then_some(())
    })
    .await;
}

/// Rings like jobcomp for a run; `fields` override the defaults.
async fn ring_end(mesh: &Mesh, job: u32, submit: i64, fields: &[(&str, &str)]) {
    let (id, submit) = (job.to_string(), submit.to_string());
    let mut environment = vec![
        ("JOBID", id.as_str()),
        ("JOBSTATE", "FAILED"),
        ("SUBMIT", submit.as_str()),
        ("START", submit.as_str()),
        ("END", submit.as_str()),
        ("EXITCODE", "1:0"),
        ("NODES", "n1"),
        ("USERNAME", "bob"),
        ("ACCOUNT", "ml"),
        ("PARTITION", "cpu"),
    ];
    for (name, value) in fields {
        environment.retain(|(known, _)| known != name);
        environment.push((name, value));
    }
    ring(mesh, "JobComp", job, &environment).await;
}

fn names_bob(event: &Event) -> bool {
    let owner = event.owner.as_ref();
    owner.is_some_and(|owner| owner.user == "bob" || owner.account == "ml")
}

/// Returns every run with an event.
fn runs(mesh: &Mesh, job: u32) -> BTreeSet<String> {
    let events = mesh.of_job(job).into_iter();
    events.map(|event| event.entity_key().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_earlier_run_that_no_record_knows_is_no_event() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let mut letters = client.subscribe("mesh.dead.ingest").await.unwrap();
    client.flush().await.unwrap();
    let job = cluster.sbatch(&[], "sleep 300").await;
    let waiting = cluster.sbatch(&["--begin=now+1hour"], "true").await;
    cluster.wait_state(job, "RUNNING").await;
    for (job, hook) in [(job, "PrologSlurmctld"), (waiting, "JobSubmit")] {
        ring(&mesh, hook, job, &[]).await;
    }
    mesh.wait_history(job, "submitted started").await;
    mesh.wait_history(waiting, "submitted").await;
    for job in [job, waiting] {
        let submit: i64 = field(cluster, job, "SubmitTime").await.parse().unwrap();
        ring_end(&mesh, job, submit - 100, &[]).await;
        let letter = tokio::time::timeout(DEADLINE, letters.next()).await;
        let letter = DeadLetter::decode(letter.expect("a dead letter").unwrap().payload).unwrap();
        assert!(
            letter.reason.contains("neither slurmctld nor accounting"),
            "{}",
            letter.reason
        );
        assert_eq!(runs(&mesh, job).len(), 1, "{:?}", mesh.of_job(job));
    }
    assert!(!mesh.events().iter().any(names_bob));
    let ids = [job.to_string(), waiting.to_string()];
    cluster.run("alice", &["scancel", &ids[0], &ids[1]]).await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_accounting_an_unknown_earlier_run_is_inferred_without_user_and_limited() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = format!("{SLOW}\naccounting = false\nunknown_jobs_per_minute = 3");
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    let submit: i64 = field(cluster, job, "SubmitTime").await.parse().unwrap();
    let genuine = mesh.of_job(job)[0].entity_key().to_owned();
    for n in 1..=40 {
        ring_end(&mesh, job, submit - 10 * n, &[]).await;
    }
    let forged = || {
        let events = mesh.of_job(job).into_iter();
        events
            .filter(|event| event.entity_key() != genuine)
            .collect::<Vec<_>>()
    };
    mesh.wait_event("an inferred end", |event| {
        event.r#type == "job.failed" && event.entity_key() != genuine
    })
    .await;
    // Later doorbells are handled, because the others were postponed.
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    cluster.wait_state(job, "CANCELLED").await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_event("the end", |event| event.r#type == "job.cancelled")
        .await;
    for event in forged() {
        assert_eq!(event.confidence(), Confidence::Inferred, "{}", event.r#type);
        assert!(!names_bob(&event), "{event:?}");
    }
    // Three at once, and three per minute.
    assert!(
        runs(&mesh, job).len() <= 1 + 3 + 3,
        "{:?}",
        runs(&mesh, job)
    );
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requeued_run_without_accounting_ends_inferred_as_jobcomp_reports_with_its_owner() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let ingest = mesh
        .ingest_through(&stand_in, cluster, SLOW)
        .await
        .ready()
        .await;
    let job = cluster.sbatch(&["--requeue"], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    let submit: i64 = field(cluster, job, "SubmitTime").await.parse().unwrap();
    let start = field(cluster, job, "StartTime").await;
    // Accounting fails: only the observed run and the next one are known.
    stand_in.override_output("sacct", "exit 1");
    cluster
        .run("root", &["scontrol", "requeue", &job.to_string()])
        .await;
    wait_for("it is in its next run", DEADLINE, async || {
        let new_submit: i64 = field(cluster, job, "SubmitTime").await.parse().unwrap();
        (new_submit > submit).then_some(())
    })
    .await;
    let next: i64 = field(cluster, job, "SubmitTime").await.parse().unwrap();
    // It may have been requeued in the second of its start.
    let end = start.parse::<i64>().unwrap().max(next - 1).to_string();
    let fields = [
        ("JOBSTATE", "PENDING"),
        ("START", start.as_str()),
        ("END", end.as_str()),
    ];
    ring_end(&mesh, job, submit, &fields).await;
    mesh.wait_event("the end of its first run", |event| {
        event.r#type == "job.requeued"
    })
    .await;
    let published = mesh.last(job, "job.requeued");
    // The controller shows the next run, which proves that this one is over, but not how.
    assert_eq!(published.confidence(), Confidence::Inferred);
    let owner = published.owner.unwrap();
    assert_eq!(
        (owner.user.as_str(), owner.account.as_str()),
        ("alice", "physics")
    );
    assert!(!mesh.events().iter().any(names_bob));
    stand_in.truth("sacct");
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_run_known_only_to_accounting_is_published_as_recorded_there() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let job = cluster.sbatch(&["--requeue"], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    let submit: i64 = field(cluster, job, "SubmitTime").await.parse().unwrap();
    cluster
        .run("root", &["scontrol", "requeue", &job.to_string()])
        .await;
    wait_restarts(cluster, job, 1).await;
    ring_end(&mesh, job, submit, &[("JOBSTATE", "TIMEOUT")]).await;
    mesh.wait_event("the end of its first run", |event| {
        event.r#type == "job.requeued" && event.job().unwrap().job_id == job
    })
    .await;
    for event in mesh.of_job(job) {
        assert_eq!(event.confidence(), Confidence::Observed, "{}", event.r#type);
        assert!(
            event.r#type != "job.timeout" && !names_bob(&event),
            "{event:?}"
        );
    }
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    ingest.stop().await;
}

/// Rings like jobcomp with the times of the controller's record.
async fn ring_end_of(mesh: &Mesh, cluster: &Cluster, job: u32, state: &str, code: &str) {
    let submit = field(cluster, job, "SubmitTime").await.parse().unwrap();
    let start = field(cluster, job, "StartTime").await;
    let end = field(cluster, job, "EndTime").await;
    let fields = [
        ("JOBSTATE", state),
        ("EXITCODE", code),
        ("START", start.as_str()),
        ("END", end.as_str()),
        ("NODES", "n[1-2]"),
    ];
    ring_end(mesh, job, submit, &fields).await;
}

/// slurmctld of 22.05 hides how a run ended while its epilogs run, but not the time, the exit code or the reason of a failure.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_hidden_by_the_record_is_observed_only_if_a_record_shows_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let (epilog, go) = (folder.path().join("epilog"), folder.path().join("go"));
    script(
        &epilog,
        &format!("until [ -e {} ]; do sleep 0.2; done", go.display()),
    );
    let conf = folder.path().join("conf");
    std::fs::write(&conf, format!("Epilog={}\n", epilog.display())).unwrap();
    // A node whose epilogs run takes no other job.
    let knobs = [
        ("NODES", "8"),
        ("GPU_NODES", "0"),
        ("EXTRA_CONF", conf.to_str().unwrap()),
    ];
    let cluster = Cluster::up(&knobs).await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(&cluster);
    let settings = format!("{SLOW}\nusage_delay = \"1s\"\nmissing_record_timeout = \"90s\"");
    let ingest = mesh
        .ingest_through(&stand_in, &cluster, &settings)
        .await
        .ready()
        .await;
    let run = async |exit: u32| {
        let script = format!("{}; exit {exit}", cluster.until_let_go());
        let job = cluster.sbatch(&[], &script).await;
        cluster.wait_state(job, "RUNNING").await;
        ring(&mesh, "PrologSlurmctld", job, &[]).await;
        mesh.wait_history(job, "submitted started").await;
        cluster.let_go(job);
        cluster.wait_state(job, "COMPLETING").await;
        job
    };
    // Accounting, which has an end while the epilogs run, fails at first.
    stand_in.override_output("sacct", "exit 1");
    let failed = run(3).await;
    ring_end_of(&mesh, &cluster, failed, "FAILED", "3:0").await;
    mesh.wait_history(failed, "submitted started failed").await;
    assert_eq!(
        mesh.last(failed, "job.failed").confidence(),
        Confidence::Observed
    );
    // The exit code exposes one lie, and the reason the other. The third is of a run that has ended, and whose record does not say how.
    let (code, reason, lied) = (run(4).await, run(5).await, run(0).await);
    ring_end_of(&mesh, &cluster, code, "COMPLETED", "0:0").await;
    ring_end_of(&mesh, &cluster, reason, "CANCELLED", "5:0").await;
    ring_end_of(&mesh, &cluster, lied, "CANCELLED", "0:0").await;
    mesh.wait_history(lied, "submitted started cancelled").await;
    let published = mesh.last(lied, "job.cancelled");
    assert_eq!(published.confidence(), Confidence::Inferred);
    assert_ne!(published.job().unwrap().nodes, "n[1-2]");
    // Accounting shows what the record hides, long before the epilogs have run.
    stand_in.truth("sacct");
    let corrected = mesh
        .wait_event("the correction", |event| event.r#type == "job.corrected")
        .await;
    assert_eq!(payload(&corrected).corrects, published.id);
    assert_eq!(corrected.job().unwrap().state, "COMPLETED");
    // Accounting that answers late is asked before the end is inferred.
    let honest = run(0).await;
    let answers = chrono::Utc::now().timestamp() + 13;
    stand_in.override_output("sacct", &format!("[ $(date +%s) -ge {answers} ] || exit 1"));
    ring_end_of(&mesh, &cluster, honest, "COMPLETED", "0:0").await;
    mesh.wait_history(honest, "submitted started completed")
        .await;
    cluster.wait_state(honest, "COMPLETING").await;
    let completed = mesh.last(honest, "job.completed");
    assert_eq!(completed.confidence(), Confidence::Observed);
    std::fs::write(&go, "").unwrap();
    for (job, exit) in [(code, 4), (reason, 5)] {
        cluster.wait_state(job, "FAILED").await;
        ring(&mesh, "EpilogSlurmctld", job, &[]).await;
        mesh.wait_history(job, "submitted started failed").await;
        let failed = mesh.last(job, "job.failed");
        assert_eq!(failed.confidence(), Confidence::Observed);
        assert_eq!(failed.job().unwrap().exit_code.unwrap().code, exit);
    }
    assert!(!mesh.events().iter().any(names_bob));
    mesh.wait_event("what it used", |event| {
        event.r#type == "job.updated" && event.job().unwrap().job_id == lied
    })
    .await;
    let corrections = mesh.events();
    let corrections = corrections
        .iter()
        .filter(|event| event.r#type == "job.corrected");
    assert_eq!(corrections.count(), 1);
    ingest.stop().await;
}
