//! Archived and erased content leaves the database; what remains is provable.

use std::path::PathBuf;

use chrono::Utc;
use ledger::retention::{RetentionPlan, RetentionResult};
use mesh_events::EventType;
use mesh_testkit::fixtures;

use super::Ledger;
use crate::support::{Database, admin, of_user, on_both, record, serve};

on_both!(
    archived_content_leaves_the_database_and_remains_provable,
    erased_content_is_removed_and_the_chain_is_intact,
);

impl Ledger {
    /// Returns the files of the database that contain a text. On PostgreSQL after rewriting the
    /// tables, as README.md requires.
    async fn files_with(&self, text: &str) -> Vec<String> {
        if self.database.is_sqlite() {
            let entries = std::fs::read_dir(self.database.folder.path()).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            let has = |path: &PathBuf| {
                let bytes = std::fs::read(path).unwrap();
                bytes
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
            };
            return paths
                .filter(has)
                .map(|path| path.display().to_string())
                .collect();
        }
        let mut outsider = self.database.outsider().await;
        // Not of the tables that all databases of the server share: other tests would wait.
        let own =
            "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND NOT relisshared";
        for table in outsider.texts(own).await {
            outsider.execute(&format!("VACUUM FULL {table}")).await;
        }
        outsider.execute("CHECKPOINT").await;
        let sql = format!(
            "SELECT relname::text FROM pg_class WHERE pg_relation_filepath(oid) IS NOT NULL
             AND position('{text}'::bytea IN pg_read_binary_file(pg_relation_filepath(oid))) > 0"
        );
        outsider.texts(&sql).await
    }
}

async fn archived_content_leaves_the_database_and_remains_provable(database: Database) {
    mesh_runtime::install_crypto_provider();
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 700).await;
    let before = Utc::now();
    // Recorded later, so it stays.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    ledger.append("bob", 50).await;
    let plan = ledger.retention().plan(before).await.unwrap();
    assert_eq!(
        plan,
        RetentionPlan {
            archived_to: 0,
            to: 700
        }
    );
    let done = ledger
        .retain(Some(ledger.archives()), before)
        .await
        .unwrap();
    assert_eq!((done.archives.len(), done.dropped), (1, 700));
    let archive = &ledger.is_whole().await[0];
    assert_eq!((archive.first_seq, archive.last_seq), (1, 700));
    assert_eq!(archive.made_by, "root");
    let keys = ledger.keys().await;
    assert_eq!(archive.signed_by, keys[0].to_string());

    // The database alone has only their hashes, and reports that.
    let verified = ledger.verify(false).await.unwrap();
    assert_eq!((verified.count, verified.archived), (750, 700));
    assert_eq!((verified.signed, verified.unaudited), (750, 1));
    assert_eq!(ledger.count("payloads").await, 50);
    assert_eq!(ledger.count("event_index").await, 50);
    assert_eq!(ledger.count("event_nodes").await, 50);
    assert_eq!(ledger.count("entries").await, 750);
    let url = serve(&ledger.store, admin(), 1000, 1000).await;
    let page = reqwest::get(format!("{url}/v1/events?limit=1000")).await;
    let page: serde_json::Value = page.unwrap().json().await.unwrap();
    assert_eq!(page["entries"][0]["seq"], 701);

    // After reopening, nothing is backfilled, duplicates are still detected, and nothing more is
    // due.
    ledger.store.close().await;
    ledger.store = ledger.database.store().await;
    assert_eq!(ledger.count("event_index").await, 50);
    assert_eq!(ledger.count("event_nodes").await, 50);
    let repeated = record(&of_user("alice", EventType::JobSubmitted, fixtures::job(1)));
    let repeated = ledger.store.append("S", 750, vec![repeated]).await.unwrap();
    assert_eq!(repeated.entries.len(), 0);
    let done = ledger
        .retain(Some(ledger.archives()), before)
        .await
        .unwrap();
    assert_eq!(done, RetentionResult::default());
    assert_eq!(ledger.archive_all().await.unwrap().archives.len(), 1);
    assert_eq!(ledger.is_whole().await.len(), 2);
    assert_eq!(ledger.count("payloads").await, 0);
    let left: Vec<_> = std::fs::read_dir(ledger.archives()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

async fn erased_content_is_removed_and_the_chain_is_intact(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("forget-this-person", 600).await;
    let middle = Utc::now();
    ledger.append("alice", 10).await;
    if !ledger.database.is_sqlite() {
        // As autovacuum does some time after the entries were written.
        ledger.database.outsider().await.execute("ANALYZE").await;
    }
    let written = ledger.files_with("forget-this-person").await;
    assert!(!written.is_empty(), "the files are looked through");
    // Without an archive.
    let done = ledger.retain(None, middle).await.unwrap();
    assert_eq!((done.archives[0].file.is_none(), done.dropped), (true, 600));
    let verified = ledger.verify(false).await.unwrap();
    assert_eq!((verified.count, verified.archived), (610, 600));
    // An archive folder does not bring anything back.
    assert_eq!(ledger.verify(true).await.unwrap().archived, 600);
    let left = ledger.files_with("forget-this-person").await;
    assert!(left.is_empty(), "still have the name: {left:?}");
    ledger.append("bob", 5).await;
    assert_eq!(ledger.verify(false).await.unwrap().archived, 600);
}
