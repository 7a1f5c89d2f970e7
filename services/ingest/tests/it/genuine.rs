//! Genuine hooks: ingest accepts everything that `jobcomp/script` of a real slurmctld reports.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_testkit::{script, wait_for};

use crate::cluster::Cluster;
use crate::doorbell::ring;
use crate::mesh::{DEADLINE, Mesh};

/// Reads the environment of a call of the hook.
fn environment(file: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(file).unwrap();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Rings for every call of the hook as soon as it is made, in the order of the calls.
async fn ring_on(mesh: &Mesh, folder: &Path) {
    let mut delivered = std::collections::BTreeSet::new();
    loop {
        let files = std::fs::read_dir(folder).unwrap();
        let mut files: Vec<PathBuf> = files
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "call"))
            .filter(|path| !delivered.contains(path))
            .collect();
        files.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
        for path in files {
            let published = environment(&path);
            let job = published["JOBID"].parse().unwrap();
            let pairs: Vec<(&str, &str)> = published
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            ring(mesh, "JobComp", job, &pairs).await;
            delivered.insert(path);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn genuine_jobcomp_doorbells_are_never_refused() {
    let calls = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(calls.path(), Permissions::from_mode(0o777)).unwrap();
    let hook = calls.path().join("hook");
    let folder = calls.path().display();
    script(
        &hook,
        &format!(
            "exec >\"{folder}/$$.new\"; /usr/bin/env -0; mv \"{folder}/$$.new\" \"{folder}/$$.$JOBID.call\""
        ),
    );
    let conf = calls.path().join("conf");
    let jobcomp = format!(
        "JobCompType=jobcomp/script\nJobCompLoc={}\n",
        hook.display()
    );
    std::fs::write(&conf, jobcomp).unwrap();
    let knobs = [
        ("NODES", "2"),
        ("GPU_NODES", "0"),
        ("EXTRA_CONF", conf.to_str().unwrap()),
    ];
    let cluster = Cluster::up(&knobs).await;
    let mesh = Mesh::start().await;
    let ingests = mesh.replicas(&cluster, "poll_interval = \"1s\"\nusage_delay = \"1s\"");
    ingests.settled().await;
    let played = play(&mesh, &cluster);
    tokio::select! {
        () = ring_on(&mesh, calls.path()) => {}
        () = played => {}
    }
    let published = ingests.logs();
    assert!(published.contains("state loaded"), "{published}");
    for line in published.lines() {
        assert!(!line.contains("reported by hook"), "{line}");
    }
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let mut dead = async_nats::jetstream::new(client)
        .get_stream("MESH_DEAD")
        .await
        .unwrap();
    assert_eq!(dead.info().await.unwrap().state.messages, 0, "dead letters");
    mesh.assert_no_duplicates();
}

/// Brings about every kind of end that a test can.
async fn play(mesh: &Mesh, cluster: &Cluster) {
    let submit = async |options: &[&str], script: &str| cluster.sbatch(options, script).await;
    let failed = submit(&[], "exit 3").await;
    let high = submit(&[], "exit 200").await;
    let completed = submit(&[], "true").await;
    let killed = submit(&[], "kill -9 $$").await;
    let array = submit(&["--array=0-3%2"], "exit $((SLURM_ARRAY_TASK_ID == 3))").await;
    let waiting = submit(&["--begin=now+1hour"], "true").await;
    let running = submit(&[], "sleep 300").await;
    let requeued = submit(
        &["--requeue"],
        "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] || sleep 300",
    )
    .await;
    let suspended = submit(&[], "sleep 300").await;
    for job in [running, requeued, suspended] {
        mesh.wait_history(job, "submitted started").await;
    }
    mesh.wait_history(waiting, "submitted").await;
    let run_as = async |user: &str, command: &[&str], job: u32| {
        let id = job.to_string();
        cluster.run(user, &[command, &[&id]].concat()).await
    };
    run_as("alice", &["scancel"], waiting).await;
    run_as("alice", &["scancel"], running).await;
    run_as("root", &["scontrol", "requeue"], requeued).await;
    run_as("root", &["scontrol", "suspend"], suspended).await;
    run_as("alice", &["scancel"], suspended).await;
    for (job, history) in [
        (failed, "submitted started failed"),
        (high, "submitted started failed"),
        (completed, "submitted started completed"),
        (killed, "submitted started failed"),
        (waiting, "submitted cancelled"),
        (running, "submitted started cancelled"),
        (
            requeued,
            "submitted started requeued | submitted started completed",
        ),
    ] {
        mesh.wait_history(job, history).await;
    }
    wait_for("the array is over", DEADLINE, async || {
        let ends = mesh.of_job(array);
        let ends = ends
            .iter()
            .filter(|event| ["job.completed", "job.failed"].contains(&event.r#type.as_str()));
        (ends.count() == 4).then_some(())
    })
    .await;
    mesh.wait_event("the suspended one is cancelled", |_| {
        mesh.history(suspended).ends_with("cancelled")
    })
    .await;
    // Finished, then requeued: its doorbell is about a run that ended long ago.
    tokio::time::sleep(Duration::from_secs(3)).await;
    run_as("root", &["scontrol", "requeue"], failed).await;
    mesh.wait_history(
        failed,
        "submitted started failed | submitted started failed",
    )
    .await;
}
