//! A backup has entries, but not the checkpoint of them: it was signed and published after the copy.

use ledger::domain::checkpoint::Checkpoint;
use ledger::{TrustAnchors, verify_everything};
use mesh_testkit::NatsServer;
use serde_json::json;

use super::{FAST, ids, problem, publish, published, signed, until_ready};
use crate::support::{Database, Process, bus, on_both};

on_both!(
    its_checkpoints_are_stored_by_a_resume,
    its_checkpoints_are_stored_at_a_start,
);

/// A ledger restored from a copy that has 40 entries but no checkpoint, and the checkpoint of 40
/// entries that was signed and published after the copy.
async fn copied_before_signature(
    nats: &NatsServer,
    database: &Database,
) -> (Process, Database, String) {
    let mut process = Process::spawn(nats, &database.url, FAST);
    until_ready(&process).await;
    let key = process.data_dir().join("ledger-checkpoint.key");
    let hidden = key.with_extension("hidden");
    process
        .until("the key is registered", async |process| {
            let keys = process.json("/v1/ledger/keys").await;
            keys.is_some_and(|keys| keys["keys"][0].is_object())
        })
        .await;
    process.stop().await;
    // Without its key the ledger appends entries and signs none.
    std::fs::rename(&key, &hidden).unwrap();
    process.restart();
    publish(&bus(nats, "admin").await, 1..=20).await;
    process
        .until("all entries are stored", async |process| {
            process.head().await >= Some(40)
        })
        .await;
    process.stop().await;
    let backup = database.backup().await;
    assert_eq!(ids(&backup).await.len(), 40);
    std::fs::rename(&hidden, &key).unwrap();
    process.restart();
    let note = signed(&process, 40).await;
    assert_eq!(Checkpoint::unverified(&note).unwrap().size, 40);
    published(nats, &note).await;
    (process, backup, note)
}

/// Checks that a ledger contains the checkpoint of 40 entries, and all of its own.
async fn is_complete(process: &mut Process, database: &Database, note: &str) {
    let keys = process.json("/v1/ledger/keys").await.unwrap();
    let keys = keys["keys"].as_array().unwrap().iter();
    let keys = keys.map(|key| key["vkey"].as_str().unwrap().parse().unwrap());
    let trust = TrustAnchors {
        checkpoints: vec![Checkpoint::unverified(note).unwrap()],
        keys: keys.collect(),
        ..TrustAnchors::default()
    };
    process.kill();
    let verified = verify_everything(&database.location(), &trust, |_| ()).await;
    assert!(verified.unwrap().verified.signed >= 80);
    let mut outsider = database.outsider().await;
    let notes = outsider
        .texts("SELECT note FROM checkpoints ORDER BY number")
        .await;
    assert_eq!(notes.first().map(String::as_str), Some(note));
}

async fn its_checkpoints_are_stored_by_a_resume(database: Database) {
    let nats = NatsServer::start().await;
    let (mut process, backup, note) = copied_before_signature(&nats, &database).await;
    publish(&bus(&nats, "admin").await, 21..=40).await;
    let newest = signed(&process, 80).await;
    published(&nats, &newest).await;
    process.kill();
    process.restore_backup(&database, &backup);
    process.restart();
    process
        .until("it says that it was set back", async |process| {
            problem(process).await.contains("smesh ledger resume")
        })
        .await;
    let resumed = process.post("/v1/ledger/resume", &json!({})).await.unwrap();
    assert_eq!(resumed["from"], 40, "{resumed}\n{}", process.log());
    until_ready(&process).await;
    is_complete(&mut process, &backup, &note).await;
}

async fn its_checkpoints_are_stored_at_a_start(database: Database) {
    let nats = NatsServer::start().await;
    let (mut process, backup, note) = copied_before_signature(&nats, &database).await;
    process.kill();
    process.restore_backup(&database, &backup);
    // The next signature is of more entries: until then the key is missing.
    let key = process.data_dir().join("ledger-checkpoint.key");
    let hidden = key.with_extension("hidden");
    std::fs::rename(&key, &hidden).unwrap();
    process.restart();
    publish(&bus(&nats, "admin").await, 21..=40).await;
    process
        .until("all entries are stored", async |process| {
            process.head().await >= Some(80)
        })
        .await;
    process.stop().await;
    std::fs::rename(&hidden, &key).unwrap();
    process.restart();
    signed(&process, 80).await;
    is_complete(&mut process, &backup, &note).await;
}
