//! Where the dispatcher's tables are: a SQLite file for one process, or a PostgreSQL database for any number.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mesh_db::Location;
use mesh_db::pool::Pool;
use mesh_db::postgres::{self, Tables};
use sqlx::migrate::Migrator;

use crate::error::Error;

/// Whose the tables are, for messages.
const NAME: &str = "webhook-dispatcher";
/// Queries at a time.
const READER_CONNECTIONS: u32 = 4;
/// A query takes no longer.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// On PostgreSQL: one for deliveries, which commits many at once, and one that need not wait for it.
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
    /// Held as long as the file is used.
    lock: Arc<Mutex<Option<File>>>,
}

impl Database {
    /// The database, not opened yet. A file is locked from now on.
    pub fn connect(location: &Location) -> Result<Self, Error> {
        let mut lock = None;
        let (writer, reader) = match location {
            Location::Sqlite(path) => {
                if let Some(folder) = path.parent() {
                    // What cannot be made is said by who opens the file.
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

    /// Brings the tables to this version.
    pub async fn prepare(&self) -> Result<(), Error> {
        match (&self.writer, &self.location) {
            (Pool::Postgres(_), Location::Postgres(options)) => {
                TABLES.migrate(options, &self.location).await?;
            }
            (Pool::Sqlite(pool), _) => {
                let migrated = SQLITE.run(pool).await;
                migrated.map_err(|source| mesh_db::Error::Migrate {
                    name: NAME,
                    location: self.location.clone(),
                    source,
                })?;
            }
            (Pool::Postgres(_), Location::Sqlite(_)) => {}
        }
        Ok(())
    }

    /// True if other processes may be at work on the same tables.
    pub const fn is_shared(&self) -> bool {
        matches!(self.writer, Pool::Postgres(_))
    }

    /// Closes every connection and lets go of the file.
    pub async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
        let lock = self
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Closed alone it would stay locked for as long as a process that is just being started has a copy of it.
        if let Some(Err(error)) = lock.map(|file| file.unlock()) {
            tracing::debug!(%error, "unlock the database");
        }
    }
}

/// Leases are for replicas on a server; those on one file would not see each other's clocks and caches. So there is one at a time.
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
