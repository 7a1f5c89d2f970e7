//! SQLite pools.
//!
//! In WAL mode readers never wait for the writer. `synchronous = FULL` makes commits durable. The
//! file holds the jobs of all users, so only its owner may read it. SQLite gives its side files the
//! same mode.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};

use crate::Error;
use crate::pool::{Pool, interrupt_when};

const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of pages in the WAL (32 MiB) at which a commit writes them into the file and syncs it. A
/// page that many transactions change is written there once.
const AUTOCHECKPOINT_PAGES: &str = "8000";

/// Page cache of a writer, in KiB because it is negative. It holds the pages of one transaction, so
/// that they are not written before its commit.
const WRITER_CACHE: &str = "-16384";

/// Creates the file and lazy pools: one writer connection, and read-only connections with a query
/// timeout.
///
/// # Errors
/// If the file cannot be created.
pub fn pools(
    name: &'static str,
    path: &Path,
    readers: u32,
    query_timeout: Duration,
) -> Result<(Pool, Pool), Error> {
    create(path).map_err(|source| Error::Create {
        name,
        path: path.to_owned(),
        source,
    })?;
    let options = options(path);
    // Testing the connection is useless for a local file and costs a round trip to its thread.
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .connect_lazy_with(writer_options(path));
    let readers = SqlitePoolOptions::new()
        .max_connections(readers)
        .test_before_acquire(false)
        .after_connect(move |connection, _| Box::pin(limit(connection, query_timeout)))
        .before_acquire(move |connection, _| {
            Box::pin(async move { limit(connection, query_timeout).await.map(|()| true) })
        })
        .connect_lazy_with(options.read_only(true));
    Ok((Pool::Sqlite(writer), Pool::Sqlite(readers)))
}

/// Creates the file if it is missing, readable by its owner only.
fn create(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new();
    let file = file.create(true).append(true).mode(0o600);
    file.open(path).map(drop)
}

/// Interrupts queries that exceed the timeout, even if their caller is gone.
async fn limit(
    connection: &mut SqliteConnection,
    query_timeout: Duration,
) -> Result<(), sqlx::Error> {
    let end = Instant::now() + query_timeout;
    interrupt_when(connection, move || Instant::now() >= end).await
}

/// Options of a connection with many writes. The undo data of single statements, needed by every
/// statement that fires triggers, is held in memory.
pub fn writer_options(path: &Path) -> SqliteConnectOptions {
    options(path)
        .pragma("temp_store", "MEMORY")
        .pragma("cache_size", WRITER_CACHE)
        .pragma("wal_autocheckpoint", AUTOCHECKPOINT_PAGES)
}

/// Options of a connection with durable commits. `secure_delete` overwrites the old copies of moved
/// rows, so that erased content does not remain in the file.
pub fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .pragma("secure_delete", "FAST")
        .busy_timeout(BUSY_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions as _, Connection as _};

    use super::*;
    use crate::damage::damage;

    #[tokio::test]
    async fn a_closed_file_is_complete_while_a_reader_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.db");
        let (writer, readers) = pools("test", &path, 2, Duration::from_secs(5)).unwrap();
        let Pool::Sqlite(pool) = &writer else {
            panic!("a file")
        };
        sqlx::query("CREATE TABLE t (id INTEGER PRIMARY KEY)")
            .execute(pool)
            .await
            .unwrap();
        let mut other = options(&path).read_only(true).connect().await.unwrap();
        let read = "SELECT count(*) FROM t";
        sqlx::query(read).fetch_one(&mut other).await.unwrap();
        readers.close().await;
        writer.close().await;
        let copy = folder.path().join("copy.db");
        std::fs::copy(&path, &copy).unwrap();
        assert_eq!(damage(&copy).await.unwrap(), None);
        let mut copied = options(&copy).connect().await.unwrap();
        sqlx::query(read).fetch_one(&mut copied).await.unwrap();
        other.close().await.unwrap();
    }
}
