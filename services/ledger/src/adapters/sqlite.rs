//! Opening the ledger's SQLite file.
//!
//! One connection writes, a few read: in WAL mode readers never wait for the writer. `synchronous = FULL` makes a commit durable before
//! anything is acknowledged. The file is readable for its owner only, as it holds everybody's jobs; SQLite gives its side files the same mode.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::sync::watch;

use crate::domain::append::Head;
use crate::error::Error;

/// How long one attempt waits for another process that holds the file.
const BUSY: Duration = Duration::from_secs(2);

/// The ledger's tables.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) writer: SqlitePool,
    pub(super) readers: SqlitePool,
    pub(super) appended: watch::Sender<u64>,
}

impl Store {
    /// Opens the ledger, makes it if it is not there, and fills columns for queries that are missing.
    ///
    /// # Errors
    /// If the file cannot be made or opened, or is no ledger.
    pub async fn open(path: &Path, readers: u32) -> Result<Self, Error> {
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
        let open = |source| Error::Open {
            path: path.to_owned(),
            source,
        };
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .connect_with(options.clone())
            .await
            .map_err(open)?;
        sqlx::migrate!()
            .run(&writer)
            .await
            .map_err(|source| Error::Migrate {
                path: path.to_owned(),
                source,
            })?;
        let readers = SqlitePoolOptions::new()
            .max_connections(readers)
            .connect_with(options.read_only(true))
            .await
            .map_err(open)?;
        let appended = watch::Sender::new(0);
        let store = Self {
            writer,
            readers,
            appended,
        };
        store.complete_index().await?;
        store.appended.send_replace(store.head().await?.seq);
        Ok(store)
    }

    /// End of the chain.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn head(&self) -> Result<Head, Error> {
        let row = sqlx::query_as("SELECT seq, chain FROM head")
            .fetch_one(&self.readers)
            .await
            .map_err(Error::Read)?;
        head(row).ok_or(Error::CorruptHead)
    }

    /// Last sequence of a stream that was taken in; `None` before the first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn last_sequence(&self, stream: &str) -> Result<Option<u64>, Error> {
        let sequence: Option<i64> =
            sqlx::query_scalar("SELECT last_sequence FROM streams WHERE name = $1")
                .bind(stream)
                .fetch_optional(&self.readers)
                .await
                .map_err(Error::Read)?;
        Ok(sequence.map(i64::unsigned_abs))
    }

    /// Sequence of the last entry, changing as this store appends.
    pub fn appended(&self) -> watch::Receiver<u64> {
        self.appended.subscribe()
    }

    /// Closes every connection; what was acknowledged is on disk already.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

pub(super) fn head((seq, chain): (i64, Vec<u8>)) -> Option<Head> {
    Some(Head {
        seq: seq.try_into().ok()?,
        chain: chain.try_into().ok()?,
    })
}
