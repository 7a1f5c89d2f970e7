//! The clock of ingest runs an hour ahead and comes back. Slurm's clock is not changed, as it belongs to another host.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::wait_for;

use crate::cluster;
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
    let set = |seconds: i64| {
        let new = folder.path().join("new");
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(&new, &clock).unwrap();
    };
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
