//! The bucket of ingest's state is full: facts that must be stored before publication wait, everything else continues.

use async_nats::jetstream;
use mesh_events::Event;
use mesh_events::catalogue::{MESH_HOOKS, durable};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::wait_for;

use crate::cluster::{self, Cluster, NAME};
use crate::doorbell::ring;
use crate::forged::field;
use crate::forgotten::{wait_all_in_accounting, wait_all_purged};
use crate::mesh::{DEADLINE, Mesh};
use crate::resized::{next_second, resize};
use crate::stand_in::{POLL, StandIn};
use crate::users::{FAST, baseline};

const STATE: &str = "ingest.state";

/// Limits the size of the bucket; no limit if `None`.
async fn limit(mesh: &Mesh, bytes: Option<i64>) {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let jetstream = jetstream::new(client);
    let stream = jetstream.get_stream("KV_mesh_ingest").await.unwrap();
    let mut config = stream.cached_info().config.clone();
    config.max_bytes = bytes.unwrap_or(-1);
    jetstream.update_stream(config).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_bucket_prevents_no_start_and_no_end() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = format!("poll_interval = \"500ms\"\n{FAST}");
    let ingest = mesh.ingest_through(&stand_in, cluster, &settings).await;
    let ingest = ingest.ready().await;
    baseline(&mesh).await;
    let before = cluster.sbatch(&["--hold"], "true").await;
    mesh.wait_history(before, "submitted held").await;

    limit(&mesh, Some(1)).await;
    let before_limit = mesh.events().len();
    // A hold must be stored first, and so must what a poll shows.
    let held = cluster.sbatch(&["--hold"], "true").await;
    wait_for("readiness says it", DEADLINE, async || {
        let problems = ingest.context.health.problems();
        problems.contains_key(STATE).then_some(())
    })
    .await;
    ring(&mesh, "JobSubmit", held, &[]).await;
    // So must the outage of slurmdbd.
    let no_database =
        "echo 'sacctmgr: error: Problem talking to the database: Connection refused' >&2; exit 1";
    stand_in.override_output("sacctmgr", no_database);
    stand_in.wait_calls("sacctmgr", 1).await;
    // A start and an end reported by hooks need not be: Slurm's records have them.
    let runs = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(runs, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", runs, &[]).await;
    mesh.wait_history(runs, "submitted started").await;
    cluster.run("alice", &["scancel", &runs.to_string()]).await;
    cluster.wait_state(runs, "CANCELLED").await;
    ring(&mesh, "EpilogSlurmctld", runs, &[]).await;
    mesh.wait_history(runs, "submitted started cancelled").await;
    assert_eq!(mesh.history(held), "");
    // A busy machine may have had other outages, before.
    let is_of_slurmdbd = |event: &Event| matches!(&event.payload, Some(Payload::Capture(outage)) if outage.source == "slurmdbd");
    let is_down = || {
        let events = mesh.events();
        let mut events = events.iter().skip(before_limit);
        events.any(|event| event.r#type == "capture.source_down" && is_of_slurmdbd(event))
    };
    assert!(!is_down());
    assert!(ingest.context.health.problems().contains_key(STATE));

    limit(&mesh, None).await;
    mesh.wait_history(held, "submitted held").await;
    wait_for("slurmdbd is away", DEADLINE, async || {
        is_down().then_some(())
    })
    .await;
    stand_in.truth("sacctmgr");
    let ingest = ingest.ready().await;
    mesh.assert_no_duplicates();
    for job in [before, held] {
        cluster.run("alice", &["scancel", &job.to_string()]).await;
        mesh.wait_history(job, "submitted held cancelled").await;
    }
    // What was published meanwhile is stored.
    ingest.stop().await;
    let ingest = mesh.ingest(cluster, "").await.ready().await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

/// Changes the time of the last stored poll, as if the host's clock had been an hour ahead of that of NATS.
async fn poll_an_hour_ahead(mesh: &Mesh) {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let bucket = jetstream::new(client).get_key_value("mesh_ingest").await;
    let bucket = bucket.unwrap();
    let meta = bucket.get("ingest.meta").await.unwrap().unwrap();
    let mut meta: serde_json::Value = serde_json::from_slice(&meta).unwrap();
    meta["watermark"] = (meta["watermark"].as_i64().unwrap() + 3_600).into();
    bucket
        .put("ingest.meta", meta.to_string().into())
        .await
        .unwrap();
}

/// Slurm 22.05 starts a run again under its submit time if its node is set down in the second of its submission.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_was_published_and_not_stored_is_not_taken_for_the_next_one() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = "poll_interval = \"500ms\"";
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let before = cluster.sbatch(&[], "true").await;
    mesh.wait_history(before, "submitted started completed")
        .await;
    stand_in.wait_calls(POLL, 4).await;
    limit(&mesh, Some(1)).await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    ingest.crash().await;
    limit(&mesh, None).await;
    poll_an_hour_ahead(&mesh).await;

    // From now on the record is that of a run that began later.
    let start: i64 = field(cluster, job, "StartTime").await.parse().unwrap();
    let later = format!(
        "\"$real\" \"$@\" | sed '/JobId={job} /{{s/StartTime={start}/StartTime={}/;s/Restarts=0/Restarts=1/}}'; exit",
        start + 1
    );
    stand_in.override_output("scontrol", &later);
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let twice = "submitted started requeued | submitted started";
    mesh.wait_history(job, twice).await;
    mesh.assert_no_duplicates();
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    mesh.wait_history(job, &format!("{twice} cancelled")).await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resized_run_that_only_accounting_has_waits_for_the_bucket() {
    let cluster = Cluster::up(&[("MINJOBAGE", "2")]).await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(&cluster);
    let settings = "poll_interval = \"500ms\"\ncatch_up_threshold = \"1s\"";
    let ingest = mesh.ingest_through(&stand_in, &cluster, settings).await;
    let ingest = ingest.ready().await;
    let before = cluster.sbatch(&[], "true").await;
    mesh.wait_history(before, "submitted started completed")
        .await;
    // No poll succeeds while it runs.
    stand_in.override_output("squeue", "exit 1");
    let job = cluster.sbatch(&["--nodes=2"], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    next_second().await;
    resize(&cluster, job, 1).await;
    next_second().await;
    cluster.run("alice", &["scancel", &job.to_string()]).await;
    wait_all_purged(&cluster).await;
    wait_all_in_accounting(&cluster, &[job]).await;
    limit(&mesh, Some(1)).await;
    let before = stand_in.count("sacct");
    stand_in.truth("squeue");
    // Accounting is asked for the time without polls, and its answer cannot be stored.
    wait_for("accounting is asked", DEADLINE, async || {
        (stand_in.count("sacct") > before).then_some(())
    })
    .await;
    wait_for("readiness says it", DEADLINE, async || {
        let problems = ingest.context.health.problems();
        problems.contains_key(STATE).then_some(())
    })
    .await;
    assert_eq!(mesh.history(job), "");
    limit(&mesh, None).await;
    mesh.wait_history(job, "submitted started resized cancelled")
        .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

/// Number of doorbells that are not acknowledged.
async fn unacknowledged(mesh: &Mesh) -> usize {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let stream = jetstream::new(client).get_stream(MESH_HOOKS).await.unwrap();
    let durable = durable(MESH_HOOKS, "ingest", NAME);
    let consumer = stream.consumer_info(durable).await.unwrap();
    consumer.num_ack_pending + usize::try_from(consumer.num_pending).unwrap()
}

/// While accounting is away, a hold after a requeue waits for the end of the first run. It must be stored before its doorbell is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_doorbell_is_redelivered_until_what_it_has_shown_is_stored() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let stand_in = StandIn::new(cluster);
    let settings = "poll_interval = \"500ms\"";
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    let script = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] || sleep 300; sleep 1";
    let job = cluster.sbatch(&["--requeue"], script).await;
    mesh.wait_history(job, "submitted started").await;
    assert_eq!(unacknowledged(&mesh).await, 0);
    stand_in.override_output("sacct", "exit 1");
    // Only doorbells read jobs.
    stand_in.override_output("squeue", "case \"$*\" in *%i*) exit 1 ;; esac");
    limit(&mesh, Some(1)).await;
    let id = job.to_string();
    cluster.run("root", &["scontrol", "requeuehold", &id]).await;
    cluster.wait_state(job, "PENDING").await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    wait_for("readiness says it", DEADLINE, async || {
        let problems = ingest.context.health.problems();
        problems.contains_key(STATE).then_some(())
    })
    .await;
    // It is delivered a second time after five seconds.
    let asked = |calls: &[String]| {
        calls
            .iter()
            .filter(|call| call.contains(&format!("show job {id}")))
            .count()
    };
    let before = asked(&stand_in.calls());
    wait_for("the job is read again", DEADLINE, async || {
        (asked(&stand_in.calls()) > before).then_some(())
    })
    .await;
    assert_eq!(unacknowledged(&mesh).await, 1);
    limit(&mesh, None).await;
    wait_for("it is acknowledged", DEADLINE, async || {
        (unacknowledged(&mesh).await == 0).then_some(())
    })
    .await;
    ingest.crash().await;
    cluster.run("root", &["scontrol", "release", &id]).await;
    cluster.wait_state(job, "COMPLETED").await;
    stand_in.truth("sacct");
    stand_in.truth("squeue");
    let ingest = mesh.ingest_through(&stand_in, cluster, settings).await;
    let ingest = ingest.ready().await;
    mesh.wait_event("the hold", |event| {
        event.r#type == "job.held" && mesh.of_job(job).contains(event)
    })
    .await;
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
