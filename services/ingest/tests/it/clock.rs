//! The clock of ingest is hours ahead or behind and comes back. Slurm's clock is not changed, as it belongs to another host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::StreamExt as _;
use mesh_events::Event;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::wait_for;

use crate::cluster;
use crate::forgotten::{forgetful, wait_all_purged};
use crate::mesh::{DEADLINE, Mesh};

const HOUR: i64 = 3_600;

/// An ingest process with its own clock (libfaketime), killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn start(config: &PathBuf, clock: &PathBuf) -> Process {
    let library = fs::read_dir("/usr/lib").unwrap().flatten();
    let library = library
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.exists())
        .expect("libfaketime is missing: run `make setup`");
    let child = Command::new(env!("CARGO_BIN_EXE_ingest"))
        .arg("--config")
        .arg(config)
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1")
        .env("NO_FAKE_STAT", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Process(child.unwrap())
}

/// Sets a clock this many seconds ahead.
fn set(clock: &Path, seconds: i64) {
    let new = clock.with_extension("new");
    fs::write(&new, format!("{seconds:+}\n")).unwrap();
    fs::rename(&new, clock).unwrap();
}

/// Returns how far the last poll stored by ingest is ahead of the clock, in seconds.
async fn ahead(mesh: &Mesh) -> Option<i64> {
    Some(mesh.last_poll().await? - chrono::Utc::now().timestamp())
}

async fn wait_ahead(mesh: &Mesh, description: &str, accept: impl Fn(i64) -> bool) {
    wait_for(description, DEADLINE, async || {
        ahead(mesh).await.filter(|seconds| accept(*seconds))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_an_hour_ahead_does_not_keep_it_from_catching_up() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let config = mesh.config_of_process(cluster, "poll_interval = \"500ms\"");
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    let set = |seconds: i64| set(&clock, seconds);
    set(0);
    let ingest = start(&config, &clock);
    mesh.wait_first_poll().await;
    let first = cluster.sbatch(&[], "true").await;
    mesh.wait_passed(first, "submitted started completed").await;

    // The clock is set back while ingest runs.
    set(HOUR);
    wait_ahead(&mesh, "it is an hour ahead", |seconds| seconds > HOUR / 2).await;
    set(0);
    wait_ahead(&mesh, "what is stored came back, too", |seconds| {
        seconds < 60
    })
    .await;

    // The clock is set back while ingest is stopped.
    set(HOUR);
    wait_ahead(&mesh, "it is an hour ahead again", |seconds| {
        seconds > HOUR / 2
    })
    .await;
    drop(ingest);
    set(0);
    let missed = cluster.sbatch(&[], "true").await;
    cluster.wait_state(missed, "COMPLETED").await;
    let before = mesh.events().len();
    let _ingest = start(&config, &clock);
    mesh.wait_history(missed, "submitted started completed")
        .await;
    wait_for("it has caught up", DEADLINE, async || {
        let events = mesh.events();
        let caught_up = events[before..]
            .iter()
            .find(|event| event.r#type == "capture.caught_up")?;
        let Some(Payload::Capture(description)) = &caught_up.payload else {
            panic!("{caught_up:?}");
        };
        let from = description.from.as_ref()?.seconds;
        assert!(from <= chrono::Utc::now().timestamp(), "{caught_up:?}");
        Some(())
    })
    .await;
    // While the clock was ahead, a sacct whose own clock was right refused the range (in another root it has no libfaketime).
    let now = chrono::Utc::now().timestamp();
    let refused = mesh.events();
    let refused = refused.iter().find(|event| {
        // Not an outage of another kind, such as an answer that a busy machine did not give in time.
        let refusal = "requested is after end time";
        matches!(&event.payload, Some(Payload::Capture(description)) if description.source == "slurmdbd" && description.message.contains(refusal))
            && event.r#type == "capture.source_down"
            && event
                .occurred_at
                .as_ref()
                .is_some_and(|at| at.seconds <= now)
    });
    assert_eq!(refused, None, "accounting is not asked about the future");
}

/// Lets JetStream accept a message id again after a moment instead of ten minutes.
async fn forget_message_ids(mesh: &Mesh) {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let stream = jetstream.get_stream(SLURM_EVENTS).await.unwrap();
    let mut config = stream.cached_info().config.clone();
    config.duplicate_window = Duration::from_millis(100);
    jetstream.update_stream(config).await.unwrap();
}

/// Whether ingest's state has a job.
async fn is_stored(mesh: &Mesh, job: u32) -> bool {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let bucket = async_nats::jetstream::new(client);
    let bucket = bucket.get_key_value("mesh_ingest").await.unwrap();
    let shard = bucket.get(format!("ingest.{}", job % 128)).await.unwrap();
    shard.is_some_and(|shard| has_job(&shard, job))
}

fn has_job(shard: &[u8], job: u32) -> bool {
    String::from_utf8_lossy(shard).contains(&format!("job/{job}/"))
}

/// Waits until ingest's state lacks a job. Before, it must say that what ended by then was published: a kill may come between.
async fn wait_removed(mesh: &Mesh, job: u32) {
    let events = mesh.of_job(job);
    let end = events.iter().find(|event| event.r#type == "job.completed");
    let end = end.unwrap().occurred_at.as_ref().unwrap().seconds;
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let bucket = async_nats::jetstream::new(client);
    let bucket = bucket.get_key_value("mesh_ingest").await.unwrap();
    let mut written = bucket.watch_all().await.unwrap();
    let shard = format!("ingest.{}", job % 128);
    let removed_until = |meta: &[u8]| {
        let meta: serde_json::Value = serde_json::from_slice(meta).unwrap();
        meta["removed_until"].as_i64().unwrap_or(0)
    };
    let stored = async || removed_until(&bucket.get("ingest.meta").await.unwrap().unwrap());
    let mut until = stored().await;
    let removed = async {
        loop {
            let entry = written.next().await.unwrap().unwrap();
            if entry.key == "ingest.meta" {
                until = removed_until(&entry.value);
            } else if entry.key == shard && !has_job(&entry.value, job) {
                return;
            }
        }
    };
    if is_stored(mesh, job).await {
        tokio::time::timeout(DEADLINE, removed).await.unwrap();
    } else {
        until = stored().await;
    }
    assert!(
        until >= end,
        "job {job} is removed before its end, {end}, is stored"
    );
}

/// Waits until accounting was read by a process whose clock is right.
async fn wait_caught_up(mesh: &Mesh, before: usize) {
    wait_for("it has caught up", DEADLINE, async || {
        let is_right = |event: &Event| {
            let now = chrono::Utc::now().timestamp();
            let at = event.occurred_at.as_ref().unwrap().seconds;
            event.r#type == "capture.caught_up" && (now - at).abs() < HOUR / 2
        };
        mesh.events()[before..].iter().any(is_right).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_wrong_and_is_put_right_repeats_nothing() {
    let cluster = forgetful().await;
    let cluster = cluster.as_ref().unwrap();
    let mesh = Mesh::start().await;
    let settings = "poll_interval = \"500ms\"\nusage_delay = \"1s\"\ncatch_up_overlap = \"10s\"\nended_run_retention = \"20s\"";
    let config = mesh.config_of_process(cluster, settings);
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    let set = |seconds: i64| set(&clock, seconds);
    let ended = async || {
        let job = cluster.sbatch(&[], "sleep 1").await;
        mesh.wait_passed(job, "submitted started completed").await;
        mesh.wait_event("what it used", |_| mesh.updates_of(job).len() == 1)
            .await;
        wait_all_purged(cluster).await;
        job
    };
    set(0);
    let ingest = start(&config, &clock);
    mesh.wait_first_poll().await;
    let job = ended().await;
    assert!(is_stored(&mesh, job).await);
    wait_removed(&mesh, job).await;
    forget_message_ids(&mesh).await;

    // Behind while ingest runs.
    set(-2 * HOUR);
    wait_ahead(&mesh, "it is behind", |seconds| seconds < -HOUR).await;
    let meanwhile = ended().await;
    let before = mesh.events().len();
    set(0);
    wait_caught_up(&mesh, before).await;
    mesh.assert_no_duplicates();

    // Behind when it starts, as after a boot.
    wait_removed(&mesh, meanwhile).await;
    drop(ingest);
    set(-2 * HOUR);
    let ingest = start(&config, &clock);
    wait_ahead(&mesh, "it is behind again", |seconds| seconds < -HOUR).await;
    forget_message_ids(&mesh).await;
    let before = mesh.events().len();
    set(0);
    wait_caught_up(&mesh, before).await;
    mesh.assert_no_duplicates();

    // Ahead, so that everything is long ago.
    let job = ended().await;
    set(HOUR);
    wait_ahead(&mesh, "it is ahead", |seconds| seconds > HOUR / 2).await;
    wait_removed(&mesh, job).await;
    drop(ingest);
    set(0);
    let before = mesh.events().len();
    let _ingest = start(&config, &clock);
    wait_caught_up(&mesh, before).await;
    mesh.assert_no_duplicates();
    // What is new is published.
    ended().await;
}
