//! A ledger in a SQLite file.

use std::path::Path;
use std::time::Duration;

use mesh_db::pool::Pool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};

use crate::error::Error;

/// How long a verification waits for a lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Triggers that prevent accidental changes and deletions. They are created whenever the ledger is
/// opened, not by a migration. An operator who rebuilds the columns drops one of them (see the
/// README); the next start restores it.
const INDEX_GUARDS: [&str; 5] = [
    "CREATE TRIGGER IF NOT EXISTS event_index_no_update BEFORE UPDATE ON event_index
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be changed'); END",
    "CREATE TRIGGER IF NOT EXISTS event_index_no_delete BEFORE DELETE ON event_index
     WHEN NOT EXISTS (SELECT 1 FROM archives a WHERE OLD.seq BETWEEN a.first_seq AND a.last_seq)
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be deleted'); END",
    "CREATE TRIGGER IF NOT EXISTS event_nodes_no_update BEFORE UPDATE ON event_nodes
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be changed'); END",
    "CREATE TRIGGER IF NOT EXISTS event_nodes_no_delete BEFORE DELETE ON event_nodes
     WHEN NOT EXISTS (SELECT 1 FROM archives a WHERE OLD.seq BETWEEN a.first_seq AND a.last_seq)
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be deleted'); END",
    // As for the other tables: REPLACE does not fire DELETE triggers.
    "CREATE TRIGGER IF NOT EXISTS event_index_no_replace BEFORE INSERT ON event_index
     WHEN EXISTS (SELECT 1 FROM event_index WHERE seq = NEW.seq)
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be replaced'); END",
];

/// Creates the pool for deleting payloads of an existing ledger. Deleted content is overwritten
/// with zeros.
pub(super) fn dropping(path: &Path) -> Pool {
    let options = mesh_db::sqlite::options(path)
        .busy_timeout(BUSY_TIMEOUT)
        .pragma("secure_delete", "ON");
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(options);
    Pool::Sqlite(pool)
}

/// Checkpoints the write-ahead log into the file and truncates it.
pub(super) async fn empty_log(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    let row = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)");
    row.execute(pool).await.map(drop)
}

/// Creates a read-only pool for an existing file.
pub(super) fn only_reading(path: &Path, connections: u32) -> Result<Pool, Error> {
    if !path.exists() {
        return Err(Error::NotThere(path.to_owned()));
    }
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .busy_timeout(BUSY_TIMEOUT);
    let pool = SqlitePoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options);
    Ok(Pool::Sqlite(pool))
}

pub(super) async fn guard_index(writer: &SqlitePool) -> Result<(), sqlx::Error> {
    for guard in INDEX_GUARDS {
        sqlx::query(guard).execute(writer).await?;
    }
    Ok(())
}
