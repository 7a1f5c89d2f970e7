//! A ledger in a SQLite file.
//!
//! One connection writes, a few read: in WAL mode readers never wait for the writer. `synchronous = FULL` makes a commit durable before
//! anything is acknowledged. The file is readable for its owner only, as it holds everybody's jobs; SQLite gives its side files the same mode.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use super::pool::Pool;
use crate::error::Error;

/// How long one attempt waits for another process that holds the file.
const BUSY: Duration = Duration::from_secs(2);
/// How long somebody who verifies waits.
const PATIENT: Duration = Duration::from_secs(10);

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// Nothing is changed or taken away by accident. Set whenever the ledger is opened and not by a migration: who makes the columns anew drops
/// one of them (see the README), and has it back afterwards.
const INDEX_GUARDS: [&str; 3] = [
    "CREATE TRIGGER IF NOT EXISTS event_index_no_update BEFORE UPDATE ON event_index
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be changed'); END",
    "CREATE TRIGGER IF NOT EXISTS event_index_no_delete BEFORE DELETE ON event_index
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be deleted'); END",
    // As for the other tables: REPLACE fires no DELETE trigger.
    "CREATE TRIGGER IF NOT EXISTS event_index_no_replace BEFORE INSERT ON event_index
     WHEN EXISTS (SELECT 1 FROM event_index WHERE seq = NEW.seq)
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be replaced'); END",
];

/// The connection that writes, and those that read. Nothing is opened yet.
pub(super) fn pools(path: &Path, readers: u32) -> Result<(Pool, Pool), Error> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| Error::Create {
            path: path.to_owned(),
            source,
        })?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY);
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(options.clone());
    let readers = SqlitePoolOptions::new()
        .max_connections(readers)
        .connect_lazy_with(options.read_only(true));
    Ok((Pool::Sqlite(writer), Pool::Sqlite(readers)))
}

/// Reads only, and a file that is there.
pub(super) fn only_reading(path: &Path) -> Result<Pool, Error> {
    if !path.exists() {
        return Err(Error::NotThere(path.to_owned()));
    }
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .busy_timeout(PATIENT);
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(options);
    Ok(Pool::Sqlite(pool))
}

pub(super) async fn migrate(writer: &SqlitePool) -> Result<(), MigrateError> {
    MIGRATIONS.run(writer).await
}

pub(super) async fn guard_index(writer: &SqlitePool) -> Result<(), sqlx::Error> {
    for guard in INDEX_GUARDS {
        sqlx::query(guard).execute(writer).await?;
    }
    Ok(())
}
