//! The cost engine's tables: a SQLite file for one process, or a PostgreSQL database for several.

use std::sync::Arc;
use std::time::Duration;

use mesh_db::Location;
use mesh_db::pool::{Connection, Pool};
use mesh_db::postgres::{self, Tables};
use mesh_db::sql::{Row, Sql};
use sqlx::migrate::Migrator;

use crate::error::Error;

const NAME: &str = "cost-engine";
/// Maximum number of concurrent queries.
const MAX_READERS: u32 = 4;
/// Time limit of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Writers on PostgreSQL: one for batches of job events, one for the outbox, one for budgets.
const MAX_WRITERS: u32 = 3;

static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");
const TABLES: Tables = Tables {
    name: NAME,
    migrations: &POSTGRES,
    first: "runs",
    remedy: "start the cost engine once with the address of their owner",
};

/// The tables. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    writer: Pool,
    readers: Pool,
    location: Location,
    /// Id of this process in the outbox. Empty for SQLite, where events left by an earlier process belong to this one.
    pub(super) instance: Arc<str>,
}

impl Store {
    /// Configures the database without opening it.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub fn connect(location: &Location) -> Result<Self, Error> {
        let (writer, readers, instance) = match location {
            Location::Sqlite(path) => {
                if let Some(folder) = path.parent() {
                    // Opening the file reports an error if the folder cannot be created.
                    drop(std::fs::create_dir_all(folder));
                }
                let (writer, readers) =
                    mesh_db::sqlite::pools(NAME, path, MAX_READERS, QUERY_TIMEOUT)?;
                (writer, readers, String::new())
            }
            Location::Postgres(options) => (
                postgres::writers(NAME, options, MAX_WRITERS, "5s"),
                postgres::readers(NAME, options, MAX_READERS, QUERY_TIMEOUT),
                uuid::Uuid::new_v4().to_string(),
            ),
        };
        Ok(Self {
            writer,
            readers,
            location: location.clone(),
            instance: instance.into(),
        })
    }

    /// Opens the database and migrates its schema.
    ///
    /// # Errors
    /// If it cannot be used.
    pub async fn open(location: &Location) -> Result<Self, Error> {
        let store = Self::connect(location)?;
        store.prepare().await?;
        Ok(store)
    }

    /// Creates or migrates the tables.
    ///
    /// # Errors
    /// If that fails.
    pub async fn prepare(&self) -> Result<(), Error> {
        match (&self.writer, &self.location) {
            (Pool::Sqlite(pool), _) => {
                mesh_db::migrations::run_on_sqlite(NAME, &SQLITE, pool, &self.location).await?;
            }
            (Pool::Postgres(_), Location::Postgres(options)) => {
                TABLES.migrate(options, &self.location).await?;
            }
            (Pool::Postgres(_), Location::Sqlite(_)) => {}
        }
        Ok(())
    }

    /// True if other processes may use the same tables.
    pub const fn is_shared(&self) -> bool {
        matches!(self.writer, Pool::Postgres(_))
    }

    /// A connection for writing.
    ///
    /// # Errors
    /// If none is available in time.
    pub async fn writer(&self) -> Result<Connection, Error> {
        let connection = self.writer.acquire().await;
        connection.map_err(Error::database("open cost database"))
    }

    /// A connection for reading.
    pub(super) async fn reader(&self, action: &'static str) -> Result<Connection, Error> {
        let connection = self.readers.acquire().await;
        connection.map_err(Error::database(action))
    }

    pub(super) async fn rows(&self, action: &'static str, sql: &Sql) -> Result<Vec<Row>, Error> {
        let rows = self.readers.rows(sql).await;
        rows.map_err(Error::database(action))
    }

    /// Closes all connections. Committed data is on disk already.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}
