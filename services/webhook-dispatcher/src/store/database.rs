//! The dispatcher's database: a SQLite file for one process, or PostgreSQL for any number.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mesh_db::Location;
use mesh_db::pool::Pool;
use mesh_db::postgres::{self, Tables};
use sqlx::migrate::Migrator;

use crate::error::Error;

/// Name in error messages.
const NAME: &str = "webhook-dispatcher";
/// Maximum concurrent queries.
const READER_CONNECTIONS: u32 = 4;
/// Maximum duration of a query.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// For PostgreSQL: one for the group commits of deliveries, and one for statements that must not wait for them.
const WRITER_CONNECTIONS: u32 = 2;

static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");
const TABLES: Tables = Tables {
    name: NAME,
    migrations: &POSTGRES,
    first: "endpoints",
    remedy: "start the dispatcher once with the address of their owner",
};

/// The database. Cheap to clone.
#[derive(Clone)]
pub(super) struct Database {
    pub writer: Pool,
    pub reader: Pool,
    location: Location,
    /// Locks the SQLite file while it is in use.
    lock: Arc<Mutex<Option<File>>>,
}

impl Database {
    /// Prepares the database without connecting. Locks a SQLite file.
    pub fn connect(location: &Location) -> Result<Self, Error> {
        let mut lock = None;
        let (writer, reader) = match location {
            Location::Sqlite(path) => {
                if let Some(folder) = path.parent() {
                    // Opening the file reports the error.
                    drop(std::fs::create_dir_all(folder));
                }
                let pools =
                    mesh_db::sqlite::pools(NAME, path, READER_CONNECTIONS, STATEMENT_TIMEOUT)?;
                lock = Some(lock_file(path)?);
                pools
            }
            Location::Postgres(options) => (
                postgres::writers(NAME, options, WRITER_CONNECTIONS, "5s"),
                postgres::readers(NAME, options, READER_CONNECTIONS, STATEMENT_TIMEOUT),
            ),
        };
        Ok(Self {
            writer,
            reader,
            location: location.clone(),
            lock: Arc::new(Mutex::new(lock)),
        })
    }

    /// Creates or migrates the tables.
    pub async fn prepare(&self) -> Result<(), Error> {
        match (&self.writer, &self.location) {
            (Pool::Postgres(_), Location::Postgres(options)) => {
                TABLES.migrate(options, &self.location).await?;
            }
            (Pool::Sqlite(pool), _) => {
                mesh_db::migrations::run_on_sqlite(NAME, &SQLITE, pool, &self.location).await?;
            }
            (Pool::Postgres(_), Location::Sqlite(_)) => {}
        }
        Ok(())
    }

    /// True if other processes may use the same tables.
    pub const fn is_shared(&self) -> bool {
        matches!(self.writer, Pool::Postgres(_))
    }

    /// Closes every connection and unlocks the file.
    pub async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
        let lock = self
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Unlock explicitly: a child process that is being spawned may hold a copy of the descriptor, which would
        // keep the lock.
        if let Some(Err(error)) = lock.map(|file| file.unlock()) {
            tracing::debug!(%error, "release lock of database");
        }
    }
}

/// Locks a SQLite file for one process. Replicas on one file would not see each other's clocks and caches; they need
/// a database server.
fn lock_file(path: &Path) -> Result<File, Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let unusable = |source| mesh_db::Error::Create {
        name: NAME,
        path: name.clone().into(),
        source,
    };
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&name)
        .map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(unusable(source).into()),
    }
}
