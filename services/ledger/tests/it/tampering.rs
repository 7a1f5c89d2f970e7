//! Somebody with every right on the file changes it behind the ledger's back: verification names the first bad sequence.

use std::path::{Path, PathBuf};

use ledger::domain::verify::{Fault, FirstBad};
use ledger::{VerifyError, verify_database};
use mesh_events::EventType;
use mesh_testkit::build;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use tempfile::TempDir;

use crate::support::{fact, store};

const COUNT: i64 = 60;

/// A ledger of 60 entries, closed.
async fn template() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path()).await;
    let facts = (1..=COUNT).map(|id| {
        let job = build::job(id.try_into().unwrap());
        fact(&build::job_event(EventType::JobSubmitted, job))
    });
    store.append("S", 60, facts.collect()).await.unwrap();
    store.close().await;
    let path = folder.path().join("ledger.db");
    (folder, path)
}

/// Opens a copy with every trigger dropped and foreign keys off.
async fn copy(template: &Path, folder: &Path) -> (PathBuf, SqliteConnection) {
    let path = folder.join("copy.db");
    for side_file in ["copy.db-wal", "copy.db-shm"] {
        drop(std::fs::remove_file(folder.join(side_file)));
    }
    std::fs::copy(template, &path).unwrap();
    let mut connection = SqliteConnectOptions::new()
        .filename(&path)
        .foreign_keys(false)
        .connect()
        .await
        .unwrap();
    let triggers: Vec<String> =
        sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert!(!triggers.is_empty());
    for trigger in triggers {
        execute(&mut connection, &format!("DROP TRIGGER {trigger}")).await;
    }
    (path, connection)
}

async fn execute(connection: &mut SqliteConnection, sql: &str) {
    sqlx::query(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .unwrap();
}

async fn first_bad(path: &Path) -> FirstBad {
    match verify_database(path, |_| ()).await {
        Err(VerifyError::Bad(bad)) => bad,
        other => panic!("expected a fault, got {other:?}"),
    }
}

async fn check(statements: &[&str], seq: i64, what: Fault) {
    let (folder, template) = template().await;
    let (path, mut connection) = copy(&template, folder.path()).await;
    for sql in statements {
        execute(&mut connection, sql).await;
    }
    connection.close().await.unwrap();
    assert_eq!(
        first_bad(&path).await,
        FirstBad { seq, what },
        "{statements:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untouched_copy_is_verified() {
    let (folder, template) = template().await;
    let (path, connection) = copy(&template, folder.path()).await;
    connection.close().await.unwrap();
    let mut last = None;
    let verified = verify_database(&path, |progress| last = Some(progress))
        .await
        .unwrap();
    assert_eq!(verified.count, COUNT.unsigned_abs());
    assert_eq!(last.unwrap().verified, last.unwrap().of);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_changed_by_hand_is_named() {
    check(
        &["UPDATE payloads SET subject = subject || 'x' WHERE seq = 17"],
        17,
        Fault::ContentChanged,
    )
    .await;
    check(
        &["UPDATE entries SET leaf = zeroblob(32) WHERE seq = 17"],
        17,
        Fault::LeafChanged,
    )
    .await;
    check(
        &["UPDATE entries SET chain = zeroblob(32) WHERE seq = 17"],
        17,
        Fault::ChainBroken,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_body_is_named() {
    check(
        &["UPDATE payloads SET body = (SELECT body FROM payloads WHERE seq = 3) WHERE seq = 17"],
        17,
        Fault::ContentChanged,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_row_is_named() {
    check(
        &[
            "DELETE FROM entries WHERE seq = 17",
            "DELETE FROM payloads WHERE seq = 17",
        ],
        17,
        Fault::Missing,
    )
    .await;
    check(
        &["DELETE FROM payloads WHERE seq = 17"],
        17,
        Fault::PayloadMissing,
    )
    .await;
    check(&["DELETE FROM entries"], 1, Fault::CutOff).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn swapped_rows_are_named() {
    let swap = |table: &str| {
        [
            format!("UPDATE {table} SET seq = -1 WHERE seq = 17"),
            format!("UPDATE {table} SET seq = 17 WHERE seq = 40"),
            format!("UPDATE {table} SET seq = 40 WHERE seq = -1"),
        ]
    };
    let (entries, payloads) = (swap("entries"), swap("payloads"));
    let both: Vec<&str> = entries
        .iter()
        .chain(&payloads)
        .map(String::as_str)
        .collect();
    check(&both, 17, Fault::Replaced).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_that_was_cut_off_is_named() {
    check(
        &[
            "DELETE FROM entries WHERE seq > 50",
            "DELETE FROM payloads WHERE seq > 50",
        ],
        51,
        Fault::CutOff,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_were_added_are_named() {
    check(
        &[
            "INSERT INTO entries VALUES (61, 'x', zeroblob(32), zeroblob(32))",
            "INSERT INTO payloads VALUES (61, 'c', 's', x'00')",
        ],
        61,
        Fault::Replaced,
    )
    .await;
    check(
        &["INSERT INTO payloads VALUES (99, 'c', 's', x'00')"],
        99,
        Fault::Extra,
    )
    .await;
    check(
        &["UPDATE head SET chain = zeroblob(32)"],
        60,
        Fault::HeadChanged,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_for_queries_that_hide_or_hand_over_an_event_are_named() {
    for change in [
        "DELETE FROM event_index WHERE seq = 17",
        "UPDATE event_index SET user_name = 'mallory' WHERE seq >= 17",
        "UPDATE event_index SET user_name = NULL WHERE seq = 17",
        "UPDATE event_index SET user_name = CAST(x'ff41' AS TEXT) WHERE seq = 17",
        "UPDATE event_index SET job_id = 9999999999 WHERE seq = 17",
        "UPDATE event_index SET cluster = 'other' WHERE seq = 17",
        "UPDATE event_index SET occurred_at = occurred_at + 1 WHERE seq = 17",
        "UPDATE event_index SET occurred_at = 9223372036854775807 WHERE seq = 17",
    ] {
        check(&[change], 17, Fault::IndexDiffers).await;
    }
    let stray = "INSERT INTO event_index SELECT 61, cluster, category, type, job_id, array_job_id, task_id, het_job_id, het_offset, run,
                 user_name, account, partition, node, occurred_at, observed_at FROM event_index WHERE seq = 17";
    check(&[stray], 61, Fault::IndexDiffers).await;
    check(
        &[
            "DELETE FROM event_index WHERE seq = 17",
            "UPDATE payloads SET body = x'00' WHERE seq = 40",
        ],
        40,
        Fault::ContentChanged,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_is_no_text_any_more_is_named() {
    for change in [
        "UPDATE entries SET id = CAST(x'ff41' AS TEXT) WHERE seq = 17",
        "UPDATE payloads SET cluster = CAST(x'ff41' AS TEXT) WHERE seq = 17",
        "UPDATE payloads SET subject = CAST(x'ff41' AS TEXT) WHERE seq = 17",
    ] {
        check(&[change], 17, Fault::ContentChanged).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_before_the_first_is_named() {
    for seq in [i64::MIN, 0] {
        let row = format!("INSERT INTO entries VALUES ({seq}, 'x', zeroblob(32), zeroblob(32))");
        check(&[&row], seq, Fault::Extra).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_head_is_named() {
    let (folder, template) = template().await;
    let (path, mut connection) = copy(&template, folder.path()).await;
    execute(&mut connection, "DELETE FROM head").await;
    connection.close().await.unwrap();
    let result = verify_database(&path, |_| ()).await;
    assert!(matches!(result, Err(VerifyError::NoHead)), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_there_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no.db");
    let result = verify_database(&path, |_| ()).await;
    assert!(
        matches!(result, Err(VerifyError::Read(ledger::Error::NotThere(_)))),
        "{result:?}"
    );
    assert!(!path.exists());
}

/// One act of tampering with the entry at a place.
#[derive(Clone, Debug)]
enum Act {
    FlipBit {
        column: &'static str,
        byte: prop::sample::Index,
        bit: u8,
    },
    Shorten {
        column: &'static str,
    },
    Rename {
        column: &'static str,
    },
    Delete {
        entry: bool,
        payload: bool,
    },
    SwapBodies {
        with: i64,
    },
    SwapRows {
        with: i64,
    },
    CutTail,
    ShiftBack,
}

fn acts() -> impl Strategy<Value = Act> {
    let column = prop::sample::select(vec!["entries.leaf", "entries.chain", "payloads.body"]);
    let text = prop::sample::select(vec!["entries.id", "payloads.cluster", "payloads.subject"]);
    prop_oneof![
        4 => (column, any::<prop::sample::Index>(), 0u8..8)
            .prop_map(|(column, byte, bit)| Act::FlipBit { column, byte, bit }),
        1 => Just(Act::Shorten { column: "payloads.body" }),
        2 => text.prop_map(|column| Act::Rename { column }),
        1 => Just(Act::Delete { entry: true, payload: true }),
        1 => Just(Act::Delete { entry: true, payload: false }),
        1 => Just(Act::Delete { entry: false, payload: true }),
        2 => (1..=COUNT).prop_map(|with| Act::SwapBodies { with }),
        2 => (1..=COUNT).prop_map(|with| Act::SwapRows { with }),
        1 => Just(Act::CutTail),
        1 => Just(Act::ShiftBack),
    ]
}

impl Act {
    /// Does it, and says which sequence is the first bad one.
    async fn perform(&self, connection: &mut SqliteConnection, at: i64) -> Option<i64> {
        let split = |column: &'static str| column.split_once('.').unwrap();
        match self {
            Self::FlipBit { column, byte, bit } => {
                let (table, column) = split(column);
                let sql = format!("SELECT {column} FROM {table} WHERE seq = {at}");
                let mut bytes: Vec<u8> = sqlx::query_scalar(AssertSqlSafe(sql))
                    .fetch_one(&mut *connection)
                    .await
                    .unwrap();
                let index = byte.index(bytes.len());
                bytes[index] ^= 1 << bit;
                let bytes = bytes
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>();
                execute(
                    connection,
                    &format!("UPDATE {table} SET {column} = x'{bytes}' WHERE seq = {at}"),
                )
                .await;
                Some(at)
            }
            Self::Shorten { column } => {
                let (table, column) = split(column);
                execute(
                    connection,
                    &format!("UPDATE {table} SET {column} = substr({column}, 2) WHERE seq = {at}"),
                )
                .await;
                Some(at)
            }
            Self::Rename { column } => {
                let (table, column) = split(column);
                execute(
                    connection,
                    &format!("UPDATE {table} SET {column} = {column} || 'x' WHERE seq = {at}"),
                )
                .await;
                Some(at)
            }
            Self::Delete { entry, payload } => {
                for (table, delete) in [("entries", entry), ("payloads", payload)] {
                    if *delete {
                        execute(connection, &format!("DELETE FROM {table} WHERE seq = {at}")).await;
                    }
                }
                Some(at)
            }
            Self::SwapBodies { with } => {
                let sql = format!(
                    "UPDATE payloads SET body = (SELECT body FROM payloads other WHERE other.seq = {at} + {with} - payloads.seq)
                     WHERE seq IN ({at}, {with})"
                );
                // Both are read before either is written, as a table on the side.
                execute(
                    connection,
                    "CREATE TEMP TABLE side AS SELECT seq, body FROM payloads",
                )
                .await;
                execute(
                    connection,
                    &sql.replace("FROM payloads other", "FROM side other"),
                )
                .await;
                (at != *with).then_some(at.min(*with))
            }
            Self::SwapRows { with } => {
                for table in ["entries", "payloads"] {
                    execute(
                        connection,
                        &format!("UPDATE {table} SET seq = -1 WHERE seq = {at}"),
                    )
                    .await;
                    execute(
                        connection,
                        &format!("UPDATE {table} SET seq = {at} WHERE seq = {with}"),
                    )
                    .await;
                    execute(
                        connection,
                        &format!("UPDATE {table} SET seq = {with} WHERE seq = -1"),
                    )
                    .await;
                }
                (at != *with).then_some(at.min(*with))
            }
            Self::CutTail => {
                execute(
                    connection,
                    &format!("DELETE FROM entries WHERE seq >= {at}"),
                )
                .await;
                execute(
                    connection,
                    &format!("DELETE FROM payloads WHERE seq >= {at}"),
                )
                .await;
                Some(at)
            }
            // Deletes a row and moves those behind it up, head included, so that the sequence is dense again.
            Self::ShiftBack => {
                for table in ["entries", "payloads"] {
                    execute(connection, &format!("DELETE FROM {table} WHERE seq = {at}")).await;
                    for seq in at + 1..=COUNT {
                        execute(
                            connection,
                            &format!("UPDATE {table} SET seq = {seq} - 1 WHERE seq = {seq}"),
                        )
                        .await;
                    }
                }
                execute(connection, "UPDATE head SET seq = seq - 1").await;
                // Of the last row nothing is left behind: only the head's chain value shows it.
                Some(at.min(COUNT - 1))
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_tampering_is_found_at_its_first_sequence() {
    let (folder, template) = template().await;
    let runtime = tokio::runtime::Handle::current();
    let property = move || {
        let config = Config {
            cases: 200,
            failure_persistence: None,
            ..Config::default()
        };
        let strategy = (acts(), 1..=COUNT);
        TestRunner::new(config).run(&strategy, |(act, at)| {
            let found = runtime.block_on(async {
                let (path, mut connection) = copy(&template, folder.path()).await;
                let expected = act.perform(&mut connection, at).await;
                connection.close().await.unwrap();
                match expected {
                    Some(expected) => (first_bad(&path).await.seq, expected),
                    // Swapped with itself.
                    None => {
                        assert!(verify_database(&path, |_| ()).await.is_ok());
                        (0, 0)
                    }
                }
            });
            prop_assert_eq!(found.0, found.1);
            Ok(())
        })
    };
    tokio::task::spawn_blocking(property)
        .await
        .unwrap()
        .unwrap();
}
