//! The demo on an existing Slurm. Its configuration is not changed: no hooks, no drains. It submits three ordinary jobs or, with
//! `DEMO_WATCH=1`, none.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use integration::scenario::{Day, Expected};
use integration::{Attached, Error, Mesh, MeshOptions, Receiver, Slurm};

use crate::PIPELINE;
use crate::end::End;
use crate::feed::Feed;
use crate::watch::Watch;

/// How long jobs may be pending on a busy cluster.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn run() -> Result<ExitCode, Error> {
    let started = Instant::now();
    let feed = Feed::new(started);
    let slurm = Attached::find().await?;
    feed.heading(&format!("the Slurm that is here: cluster {}", slurm.name()));
    feed.note(
        "its configuration is not changed: without hooks all events are published, but later",
    );
    let folder = tempfile::Builder::new()
        .prefix("mesh-demo-")
        .tempdir()
        .map_err(|error| Error::Machine(format!("make a temporary folder: {error}")))?;
    let receiver = Receiver::start().await?;
    let options = MeshOptions {
        overlay: format!(
            "[ingest]\npoll_interval = \"2s\"\n{}",
            receiver.endpoint(PIPELINE, "types = [\"*\"]")
        ),
        ..MeshOptions::default()
    };
    let mut mesh = Mesh::set_up_in(folder.path().join("mesh"), None, &options).await?;
    feed.heading("smesh up");
    mesh.start().await?;
    let watch = Watch::start(&mesh, &receiver, feed).await?;
    if crate::is_set("DEMO_WATCH") {
        feed.note("watching until Ctrl-C");
        std::future::pending::<()>().await;
    }
    let day = play(&slurm).await?;
    let end = End {
        mesh: &mesh,
        watch: &watch,
        day: &day,
        examples: &[],
        cluster: None,
    };
    let code = end.conclude(started).await?;
    if crate::is_set("DEMO_STAY") {
        feed.note("everything stays up until Ctrl-C");
        std::future::pending::<()>().await;
    }
    drop(watch);
    mesh.stop().await?;
    Ok(code)
}

/// Three jobs that any user may submit anywhere. Those that do not start in time are cancelled.
async fn play(slurm: &Attached) -> Result<Day, Error> {
    let user = std::env::var("USER").unwrap_or_default();
    let submit = async |name: &str, script: &str| {
        let options = ["-n1", "-t5", "-J", name];
        slurm.submit(&user, &options, script).await
    };
    let success = submit("mesh-demo", "sleep 2").await?;
    let failure = submit("mesh-demo-fails", "exit 3").await?;
    let cancelled = submit("mesh-demo-cancelled", "sleep 600").await?;
    let mut expected = vec![
        Expected::new(
            "success",
            &user,
            success,
            &["submitted", "started", "completed"],
        ),
        Expected::new(
            "exit status 3",
            &user,
            failure,
            &["submitted", "started", "failed"],
        ),
    ];
    let running = slurm
        .wait_state(&cancelled.to_string(), &["RUNNING"], PATIENCE)
        .await;
    let event_names: &[&'static str] = match running {
        Ok(()) => &["submitted", "started", "cancelled"],
        Err(_) => &["submitted", "cancelled"],
    };
    expected.push(Expected::new("cancelled", &user, cancelled, event_names));
    let ids = [success, failure, cancelled].map(|job| job.to_string());
    let waits = slurm
        .wait_state(&ids[0], &["COMPLETED"], PATIENCE)
        .await
        .is_err();
    let cancel = if waits { &ids[..] } else { &ids[2..] };
    for id in cancel {
        slurm.ask(&user, &["scancel", id]).await?;
    }
    if waits {
        return Err(Error::Machine(
            "this Slurm is too busy: the demo's job got no place within two minutes and was cancelled; DEMO_WATCH=1 only watches".into(),
        ));
    }
    Ok(Day {
        expected,
        impossible: Vec::new(),
    })
}
