//! An attacker with full access restores an old ledger and continues from there, with the signing key. Stored checkpoints prove it,
//! and the doctor reports what is missing from the streams.

use std::path::{Path, PathBuf};

use mesh_events::catalogue::MESH_CHECKPOINTS;
use mesh_events::{EventType, subject};
use mesh_testkit::{fixtures, wait_until};
use serde_json::Value;

use crate::mesh::{Mesh, TIMEOUT, stderr, stdout};
use crate::others::{bus, publish, with_an_event_of_alice};

/// Files of a ledger on SQLite.
pub const DATABASE: [&str; 3] = ["ledger.db", "ledger.db-wal", "ledger.db-shm"];
/// The signing key and the last note it signed.
pub const KEY: [&str; 2] = ["ledger-checkpoint.key", "ledger-checkpoint.key.last"];

/// Checkpoints of ledgers that `smesh` has seen.
const KNOWN: &str = "known_ledgers.json";

pub fn copy(from: &Path, to: &Path, files: &[&str]) {
    for file in files {
        let (from, to) = (from.join(file), to.join(file));
        match from.exists() {
            true => drop(std::fs::copy(from, to).unwrap()),
            false if to.exists() => std::fs::remove_file(to).unwrap(),
            false => {}
        }
    }
}

/// Publishes a job, waits until a published checkpoint covers its event, and returns the ledger's newest one.
pub async fn signed(mesh: &Mesh, job: u32) -> String {
    let event = fixtures::job_event(EventType::JobStarted, fixtures::job(job));
    publish(mesh, &event).await;
    let entry = || {
        let found = mesh.get(&format!("/v1/events?job={job}&type=job.started"));
        found["entries"][0]["seq"].as_u64()
    };
    mesh.wait_until("the job is in the ledger", || entry().is_some());
    let newest = || stdout(&mesh.run(&["ledger", "checkpoint"]));
    mesh.wait_until("it is signed", || Some(size_of(&newest())) >= entry());
    let subject = subject::checkpoint(newest().lines().next().unwrap());
    let bus = bus(mesh, "ledger").await;
    wait_until("it is published", TIMEOUT, async || {
        let last = bus.last_stored(MESH_CHECKPOINTS, &subject).await;
        let note = last
            .ok()
            .flatten()
            .map(|last| String::from_utf8(last.body.to_vec()).unwrap());
        note.is_some_and(|note| Some(size_of(&note)) >= entry())
    })
    .await;
    newest()
}

/// Copies the ledger to the folder `backup`, lets it go on to a checkpoint of job 9, which is in `kept.note`, and stops it. Its keys are in
/// `keys`. Returns the folder and the checkpoint.
pub async fn back_up_and_continue(mesh: &mut Mesh) -> (PathBuf, String) {
    mesh.end("-TERM");
    let backup = mesh.path("backup");
    std::fs::create_dir(&backup).unwrap();
    let all = [DATABASE.as_slice(), &KEY].concat();
    copy(&mesh.path("data"), &backup, &all);
    mesh.start();
    let note = signed(mesh, 9).await;
    std::fs::write(mesh.path("kept.note"), &note).unwrap();
    let keys = stdout(&mesh.run(&["ledger", "key", "show"]));
    std::fs::write(mesh.path("keys"), &keys).unwrap();
    mesh.end("-TERM");
    (backup, note)
}

/// Tree size, from the second line of a checkpoint.
pub fn size_of(note: &str) -> u64 {
    let size = note.lines().nth(1);
    size.and_then(|size| size.parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_history_with_the_same_key_is_found_by_a_stored_checkpoint() {
    let mut mesh = with_an_event_of_alice(|_| {}).await;
    let before = size_of(&signed(&mesh, 8).await);
    let (backup, checkpoint_note) = back_up_and_continue(&mut mesh).await;
    let all = [DATABASE.as_slice(), &KEY].concat();

    // An attacker without the key cannot replace the last signed note. That note alone proves the change.
    copy(&backup, &mesh.path("data"), &DATABASE);
    let found: Value = serde_json::from_str(&stdout(&mesh.run(&["verify", "--json"]))).unwrap();
    assert_eq!(found["verified"], false, "{found}");
    let reason = found["reason"].as_str().unwrap();
    assert!(reason.contains("cut off"), "{found}");

    // Restores the former state and continues differently. Job 9 is gone from both the ledger and the bus.
    copy(&backup, &mesh.path("data"), &all);
    std::fs::remove_dir_all(mesh.path("data/private/jetstream")).unwrap();
    // A client without earlier checkpoints notices nothing.
    std::fs::rename(mesh.path(KNOWN), mesh.path("known.before")).unwrap();
    mesh.start();
    let mut newest = signed(&mesh, 10).await;
    for job in 11.. {
        if size_of(&newest) >= size_of(&checkpoint_note) {
            break;
        }
        newest = signed(&mesh, job).await;
    }
    std::fs::write(mesh.path("export"), mesh.run(&["ledger", "export"]).stdout).unwrap();

    let verify = |args: &[&str]| -> Value {
        let output = mesh.run(&[&["verify", "--json", "--key", "keys"], args].concat());
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)))
    };
    for way in [&[][..], &["--remote"], &["--export", "export"]] {
        assert_eq!(verify(way)["verified"], true, "signed as it should be");
        let found = verify(&[way, &["--checkpoint", "kept.note"]].concat());
        let reason = found["reason"].as_str().unwrap_or_default();
        let expected = format!(
            "the saved checkpoint of {} entries has another root",
            size_of(&checkpoint_note)
        );
        assert!(
            found["verified"] == false && reason.contains(&expected),
            "{way:?}: {found}"
        );
        let bad = found["first_bad_sequence"].as_u64().unwrap();
        // The database also holds earlier checkpoints, which still match. An export holds only its own.
        let good = if way.is_empty() { before } else { 0 };
        assert!(
            good < bad && bad <= size_of(&checkpoint_note),
            "{way:?}: {found}"
        );
    }

    // A client with the earlier checkpoint gets an error, and reads the ledger only on request.
    std::fs::rename(mesh.path("known.before"), mesh.path(KNOWN)).unwrap();
    for refused in [
        &["events"][..],
        &["export"],
        &["stats"],
        &["job", "8"],
        &["node", "n1"],
        &["replay", "start"],
        &["replay", "list"],
        &["replay", "show", "1"],
        &["verify", "--remote", "--key", "keys"],
        &["ledger", "archives"],
        &["ledger", "checkpoint"],
        &["ledger", "export"],
        &["ledger", "key", "show"],
        &["ledger", "monitor", "--once"],
    ] {
        let output = mesh.run(refused);
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{refused:?}: {printed}");
        assert!(
            printed.contains("contradicts an earlier checkpoint"),
            "{printed}"
        );
    }
    let (origin, _) = checkpoint_note.split_once('\n').unwrap();
    assert!(!mesh.run(&["ledger", "accept", "another"]).status.success());
    let accepted = mesh.run(&["ledger", "accept", origin]);
    assert!(accepted.status.success(), "{}", stderr(&accepted));
    assert!(mesh.run(&["events"]).status.success());

    // The streams start empty, and ingest cannot fill the gap without Slurm.
    mesh.wait_until("the doctor says what is missing", || {
        let doctor = stdout(&mesh.run(&["doctor"]));
        doctor.lines().any(|line| {
            line.starts_with("look")
                && line.contains("ledger.gaps: ")
                && line.contains("SLURM_EVENTS")
        })
    });
}
