//! An independent program, written only from docs/reference/events.md, computes every id, leaf and chain value of a real ledger.

use std::path::Path;
use std::process::Command;

use integration::{Cluster, Mesh, Receiver, Slurm as _, wait_for};

use crate::support::{PATIENCE, small};

/// Runs that program on all signed entries of the ledger. Returns its output.
pub async fn are_reproducible(mesh: &Mesh, folder: &Path) -> String {
    let (export, keys) = (folder.join("ledger.ndjson"), folder.join("ledger.keys"));
    if export.exists() {
        std::fs::remove_file(&export).unwrap();
    }
    smesh(mesh, &["ledger", "export", "-o", export.to_str().unwrap()]).await;
    std::fs::write(&keys, smesh(mesh, &["ledger", "key", "show"]).await).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/ledger.py");
    let output = Command::new("python3")
        .arg(script)
        .args([&export, &keys])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    printed
}

async fn smesh(mesh: &Mesh, arguments: &[&str]) -> String {
    let output = mesh.smesh(arguments).await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "smesh {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Jobs with every kind of id: with times in their slots, sampled, derived, and tasks that end without a record.
async fn play(cluster: &Cluster, mesh: &Mesh) {
    let ask = async |command: &[&str]| cluster.ask("root", command).await.unwrap();
    cluster.submit("alice", &[], "true").await.unwrap();
    let held = cluster.submit("alice", &["--hold"], "true").await.unwrap();
    let long = cluster.submit("bob", &[], "sleep 600").await.unwrap();
    let array = ["--array=0-3", "--begin=now+1hour"];
    let array = cluster.submit("bob", &array, "true").await.unwrap();
    let published = async |types: &str, job: u32| {
        let is_published = |facts: &[integration::Fact]| {
            let of_job = |fact: &integration::Fact| fact.run().is_some_and(|run| run.0 == job);
            facts.iter().any(of_job).then_some(())
        };
        mesh.wait_facts(types, PATIENCE, types, is_published)
            .await
            .unwrap();
    };
    published("job.held", held).await;
    ask(&["scontrol", "release", &held.to_string()]).await;
    published("job.released", held).await;
    published("job.started", long).await;
    ask(&["scontrol", "suspend", &long.to_string()]).await;
    published("job.suspended", long).await;
    ask(&["scontrol", "resume", &long.to_string()]).await;
    published("job.resumed", long).await;
    ask(&["scancel", &long.to_string()]).await;
    published("job.submitted", array).await;
    ask(&["scancel", &format!("{array}_2")]).await;
    published("job.cancelled", array).await;
    published("cost.finalized", long).await;
    published("queue.explained", array).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_id_of_a_real_ledger_is_computed_from_the_page() {
    let receiver = Receiver::start().await.unwrap();
    let endpoint = receiver.endpoint("good", "types = [\"job.*\"]");
    let (cluster, mesh) = small("ids", &endpoint).await;
    let folder = tempfile::tempdir().unwrap();
    play(&cluster, &mesh).await;
    smesh(&mesh, &["ledger", "key", "rotate"]).await;
    smesh(&mesh, &["replay", "start", "--type", "job.*", "--wait"]).await;
    let to_endpoint = [
        "replay",
        "start",
        "--type",
        "job.started",
        "--to-endpoint",
        "good",
        "--wait",
    ];
    smesh(&mesh, &to_endpoint).await;
    smesh(&mesh, &["webhooks", "test", "good"]).await;
    smesh(&mesh, &["events", "--user", "alice"]).await;

    let computed = async |kinds: &[&str]| {
        let mut printed = String::new();
        let all = wait_for("everything is signed", PATIENCE, async || {
            printed = are_reproducible(&mesh, folder.path()).await;
            let lacks = |kind: &&&str| {
                !printed.lines().any(|line| {
                    line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit())
                        .trim()
                        == **kind
                })
            };
            Ok(kinds.iter().find(lacks).is_none().then_some(()))
        });
        let all = all.await;
        assert!(all.is_ok(), "{printed}");
    };
    computed(&[
        "recorded",
        "sampled",
        "derived",
        "audit: delivery",
        "audit: key",
        "audit: read of a replay",
        "audit: read, random",
        "audit: replay of a replay",
        "audit: webhook, random",
    ])
    .await;
    let archive = folder.path().join("archive");
    let retain = [
        "ledger",
        "retain",
        "--before",
        "1s",
        "--archive-dir",
        archive.to_str().unwrap(),
    ];
    smesh(&mesh, &retain).await;
    computed(&["audit: retention", "without content"]).await;
}
