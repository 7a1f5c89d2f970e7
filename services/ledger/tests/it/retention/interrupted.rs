//! A run that is killed at any point, or fails on a full disk, continues, loses nothing, and does
//! nothing twice.

use std::path::{Path, PathBuf};
use std::process::Command;

use ledger::domain::archive::file_name;
use mesh_events::EventType;
use mesh_testkit::{NatsServer, fixtures};

use super::Ledger;
use crate::support::{Database, Process, of_user, on_both, record};

on_both!(
    interrupted_anywhere_it_resumes,
    killed_again_and_again_it_loses_nothing_and_does_nothing_twice,
);

/// The states after a kill between two steps.
async fn interrupted_anywhere_it_resumes(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 300).await;
    let partial = ledger.archives().join("next.partial");
    std::fs::create_dir(ledger.archives()).unwrap();
    // Killed while writing the file.
    std::fs::write(&partial, b"half a file").unwrap();
    // Killed while deleting payloads: the next run deletes the rest of the recorded range.
    let mut outsider = ledger.database.outsider().await;
    outsider
        .execute("CREATE TEMP TABLE kept_payloads AS SELECT * FROM payloads")
        .await;
    outsider
        .execute("CREATE TEMP TABLE kept_index AS SELECT * FROM event_index")
        .await;
    outsider
        .execute("CREATE TEMP TABLE kept_nodes AS SELECT * FROM event_nodes")
        .await;
    assert_eq!(ledger.archive_all().await.unwrap().dropped, 300);
    let archive = ledger.is_whole().await.remove(0);
    let file = ledger
        .archives()
        .join(file_name(&archive.file.as_ref().unwrap().path));
    let guards = outsider.guards().await;
    for half in ["seq > 150", "seq > 0"] {
        outsider.drop_guards().await;
        for table in ["payloads", "index", "nodes"] {
            let into = table
                .replace("index", "event_index")
                .replace("nodes", "event_nodes");
            outsider.execute(&format!("DELETE FROM {into}")).await;
        }
        for table in ["payloads", "index", "nodes"] {
            let into = table
                .replace("index", "event_index")
                .replace("nodes", "event_nodes");
            outsider
                .execute(&format!(
                    "INSERT INTO {into} SELECT * FROM kept_{table} WHERE {half}"
                ))
                .await;
        }
        outsider.put_guards(&guards).await;
        // The current state verifies.
        assert_eq!(ledger.verify(false).await.unwrap().count, 300);
        if half == "seq > 0" {
            // The range is recorded, but the file not renamed yet.
            std::fs::rename(&file, &partial).unwrap();
        }
        let done = ledger.archive_all().await.unwrap();
        assert!(done.archives.is_empty() && done.dropped > 0, "{done:?}");
        assert_eq!(
            ledger.is_whole().await.as_slice(),
            std::slice::from_ref(&archive)
        );
        assert!(!partial.exists());
    }

    // A recorded file is missing: the content that it should have is not deleted.
    outsider
        .execute("INSERT INTO payloads SELECT * FROM kept_payloads")
        .await;
    let moved = ledger.folder.path().join("moved");
    std::fs::rename(&file, &moved).unwrap();
    let error = ledger.archive_all().await.unwrap_err();
    assert!(
        mesh_runtime::error_chain(&error).contains("missing or changed"),
        "{error}"
    );
    assert_eq!(ledger.count("payloads").await, 300);
    std::fs::rename(&moved, &file).unwrap();
    assert_eq!(ledger.archive_all().await.unwrap().dropped, 300);
}

async fn killed_again_and_again_it_loses_nothing_and_does_nothing_twice(database: Database) {
    let mut ledger = Ledger::new(database).await;
    for part in 0..8 {
        ledger.append(&format!("user{part}"), 500).await;
    }
    of_long_ago(&ledger.database).await;
    let nats = NatsServer::start().await;
    let policy = ledger.policy();
    let mut process = Process::spawn(&nats, &ledger.database.url, &policy);
    let mut kills = 0;
    while ledger.count("payloads WHERE seq <= 4000").await > 0 {
        // At a random time within some hundred milliseconds of work.
        let after = std::time::Duration::from_millis(rand::random_range(50..600));
        if kills < 12 {
            tokio::time::sleep(after).await;
            process.restart();
            kills += 1;
        }
        // The audit entries come in addition.
        assert!(ledger.verify(false).await.unwrap().count >= 4000);
    }
    process.restart();
    process
        .until("the audit knows it", async |_| {
            ledger.verify(false).await.is_ok_and(|v| v.unaudited == 0)
        })
        .await;
    drop(process);
    ledger.store.close().await;
    ledger.store = ledger.database.store().await;
    let audited = ledger.store.head().await.unwrap().seq - 4000;
    let archives = ledger.store.archives(0).await.unwrap();
    assert_eq!(audited, archives.len() as u64, "each is told once");
    ledger.jobs += audited as u32;
    assert_eq!(ledger.is_whole().await, archives);
}

/// Changes the times as if everything had been recorded so long ago that retention is due.
pub async fn of_long_ago(database: &Database) {
    recorded_at(database, "1763760000000000 + seq", "TRUE").await;
}

/// Changes the times of recording of some entries.
pub async fn recorded_at(database: &Database, time: &str, entries: &str) {
    let mut outsider = database.outsider().await;
    let guards = outsider.guards().await;
    let triggers = match database.is_sqlite() {
        true => [
            "DROP TRIGGER payloads_no_update",
            "DROP TRIGGER event_index_no_update",
        ],
        false => [
            "ALTER TABLE payloads DISABLE TRIGGER USER",
            "ALTER TABLE event_index DISABLE TRIGGER USER",
        ],
    };
    for trigger in triggers {
        outsider.execute(trigger).await;
    }
    for table in ["payloads", "event_index"] {
        let old = format!("UPDATE {table} SET recorded_at = {time} WHERE {entries}");
        outsider.execute(&old).await;
    }
    outsider.put_guards(&guards).await;
    if !database.is_sqlite() {
        for table in ["payloads", "event_index"] {
            let back = format!("ALTER TABLE {table} ENABLE TRIGGER USER");
            outsider.execute(&back).await;
        }
    }
}

/// A separate file system, too small for an archive.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_while_an_archive_is_written_loses_nothing() {
    let mut ledger = Ledger::new(Database::sqlite()).await;
    // Incompressible, so that it exceeds the free space.
    ledger.append("alice", 1).await;
    let mut records = Vec::new();
    for id in 2..200 {
        let mut job = fixtures::job(id);
        job.comment = (0..2000)
            .map(|_| char::from(rand::random_range(b'a'..=b'z')))
            .collect();
        records.push(record(&of_user("alice", EventType::JobSubmitted, job)));
    }
    ledger.store.append("S", 200, records).await.unwrap();
    ledger.checkpointer.sign_if_new().await.unwrap();
    ledger.jobs = 199;
    std::fs::create_dir(ledger.archives()).unwrap();
    let disk = Disk::mount(&ledger.archives());
    let error = ledger.archive_all().await.unwrap_err();
    assert!(
        mesh_runtime::error_chain(&error).contains("No space left"),
        "{error:?}"
    );
    assert_eq!(ledger.count("payloads").await, 199);
    assert_eq!(ledger.store.archived_to().await.unwrap(), 0);
    let left: Vec<_> = std::fs::read_dir(ledger.archives()).unwrap().collect();
    assert!(left.is_empty(), "nothing is left there: {left:?}");
    drop(disk);
    assert_eq!(ledger.archive_all().await.unwrap().dropped, 199);
    ledger.is_whole().await;
}

struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path) -> Self {
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(at)
            .status()
            .expect("mount, of the package of that name");
        assert!(status.success(), "mounting needs root");
        Self(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}
