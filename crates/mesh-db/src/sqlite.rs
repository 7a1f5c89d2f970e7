//! A SQLite file.
//!
//! In WAL mode readers never wait for the writer. `synchronous = FULL` makes a commit durable before anything is acknowledged. The file is
//! readable for its owner only, as it holds everybody's jobs; SQLite gives its side files the same mode.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};

use crate::Error;
use crate::pool::Pool;

/// How long one attempt waits for another process that holds the file.
const BUSY: Duration = Duration::from_secs(2);

/// Steps of SQLite's virtual machine between two looks at the clock: well below a millisecond.
const STEPS: i32 = 10_000;

/// The one connection that writes, and those that read, each query no longer than a time. Nothing is opened yet, but the file is there.
///
/// # Errors
/// If the file cannot be made.
pub fn pools(
    name: &'static str,
    path: &Path,
    readers: u32,
    longest: Duration,
) -> Result<(Pool, Pool), Error> {
    create(path).map_err(|source| Error::Create {
        name,
        path: path.to_owned(),
        source,
    })?;
    let options = options(path);
    // A file is always there: to ask a connection whether it lives would only be another round to its thread.
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .connect_lazy_with(options.clone());
    let readers = SqlitePoolOptions::new()
        .max_connections(readers)
        .test_before_acquire(false)
        .after_connect(move |connection, _| Box::pin(limit(connection, longest)))
        .before_acquire(move |connection, _| {
            Box::pin(async move { limit(connection, longest).await.map(|()| true) })
        })
        .connect_lazy_with(options.read_only(true));
    Ok((Pool::Sqlite(writer), Pool::Sqlite(readers)))
}

/// Closes the connections of a pool. What is in the log is merged into the file first: SQLite by itself leaves that to the last connection,
/// which may be a reader, and who copies or checks the file alone then sees less.
pub async fn close(pool: &SqlitePool) {
    if pool.size() > 0
        && let Ok(mut connection) = pool.acquire().await
    {
        let merged = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut *connection);
        if let Err(error) = merged.await {
            tracing::debug!(%error, "merge the log, as readers cannot");
        }
    }
    pool.close().await;
}

/// Makes the file if it is not there, for its owner only.
fn create(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new();
    let file = file.create(true).append(true).mode(0o600);
    file.open(path).map(drop)
}

/// Ends whatever runs on a connection after a time, as a server does by itself. What nobody waits for any more ends, too.
async fn limit(connection: &mut SqliteConnection, longest: Duration) -> Result<(), sqlx::Error> {
    let end = Instant::now() + longest;
    let mut handle = connection.lock_handle().await?;
    handle.set_progress_handler(STEPS, move || Instant::now() < end);
    Ok(())
}

/// A connection that writes durably. What moves within the file while rows are added leaves no copy behind, which nobody would ever find and
/// erase.
pub fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .pragma("secure_delete", "FAST")
        .busy_timeout(BUSY)
}

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions as _, Connection as _};

    use super::*;
    use crate::damage::damage;

    #[tokio::test]
    async fn a_closed_file_is_whole_also_while_somebody_reads_it() {
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
