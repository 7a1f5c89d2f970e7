//! Stores deliveries, provider state and outcomes to publish.
//!
//! Reads use a small pool. Writes of deliveries go through the writer, which groups many into one commit. Every write
//! about an endpoint's deliveries carries the epoch of its lease: a dispatcher that lost the lease writes nothing
//! more.

mod command;
mod cursor_rows;
pub mod cursors;
mod database;
mod delivery;
pub mod delivery_position;
pub mod endpoint_rows;
pub mod endpoint_stats;
pub mod endpoints;
mod lookup;
pub mod outbox;
pub mod ownership;
pub mod redeliveries;
pub mod replicas;
pub mod restored;
mod retention;
mod saves;
mod writer;

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mesh_db::sql::{Row, Sql};
use mesh_db::{Database, Location, sql};
use tokio::sync::watch;

use crate::error::Error;
use database::{LIMITS, TABLES, lock_file};
pub use delivery::{Attempt, Delivery, State};
use delivery::{COLUMNS, beyond, read, read_attempt};
use delivery_position::DeliveryPosition;
use lookup::Lookup;
use redeliveries::DeliverySelection;
use writer::Writer;

/// The database. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub(crate) database: Database,
    /// Keeps other dispatchers from a SQLite file.
    lock: Option<Arc<File>>,
    writer: Writer,
    lookup: Lookup,
    /// Number of writes to the tables of endpoints, leases and jobs by this process.
    changes: Arc<AtomicU64>,
}

impl Store {
    /// Opens the database and creates or migrates its tables.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn open(location: &Location) -> Result<Self, Error> {
        let store = Self::connect(location)?;
        store.prepare().await?;
        Ok(store)
    }

    /// Prepares the database without connecting, and starts the tasks that write and look up.
    ///
    /// # Errors
    /// If its file cannot be created, or another process uses it.
    pub fn connect(location: &Location) -> Result<Self, Error> {
        let database = Database::connect(&TABLES, location, LIMITS)?;
        let lock = location.file().map(lock_file).transpose()?;
        let writer = Writer::start(database.clone());
        let lookup = Lookup::start(database.readers.clone());
        Ok(Self {
            database,
            lock: lock.map(Arc::new),
            writer,
            lookup,
            changes: Arc::default(),
        })
    }

    /// Creates or migrates the tables.
    ///
    /// # Errors
    /// If the migration fails.
    pub async fn prepare(&self) -> Result<(), Error> {
        Ok(self.database.prepare().await?)
    }

    /// True if other processes may use the same tables.
    pub const fn is_shared(&self) -> bool {
        self.database.is_shared()
    }

    /// A number that is the same as long as endpoints, leases and jobs are, as far as this process changes them.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Called after each change.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Watches why writes fail. `None` while they succeed.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.writer.trouble.clone()
    }

    /// Checks that the database is writable. Called before each request: an outcome that cannot be stored would lead
    /// to endless repetitions.
    ///
    /// # Errors
    /// If the last write failed and none has succeeded since.
    pub fn check_writes(&self) -> Result<(), Error> {
        match &*self.writer.trouble.borrow() {
            None => Ok(()),
            Some(reason) => Err(Error::NotWriting(reason.clone())),
        }
    }

    /// True if the endpoint has a delivery of this event, in any state.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn knows(&self, endpoint: &str, event_id: &str) -> Result<bool, Error> {
        let known = self.lookup.knows(endpoint, event_id).await;
        known.map_err(Error::database("look up delivery"))
    }

    /// The endpoints that have waiting deliveries, digests, or missed events that were not reported.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn with_waiting(&self) -> Result<BTreeSet<String>, Error> {
        let sql = sql!(
            "SELECT endpoint FROM deliveries WHERE state = 'waiting' UNION SELECT endpoint FROM missed UNION SELECT endpoint FROM kept WHERE key LIKE 'digest/%'"
        );
        self.query("read waiting deliveries", &sql, |row| row.get("endpoint"))
            .await
    }

    /// Reads one delivery.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn load(&self, endpoint: &str, event_id: &str) -> Result<Option<Delivery>, Error> {
        let action = "read delivery";
        let of_event = " FROM deliveries WHERE endpoint = ? AND event_id = ?";
        let sql = Sql::new("SELECT ").push(COLUMNS);
        let sql = sql.append(of_event, [endpoint.into(), event_id.into()]);
        self.first(action, &sql, read).await
    }

    /// The newest deliveries of an endpoint that match the selection, or the next page of them.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn recent(
        &self,
        endpoint: &str,
        wanted: &DeliverySelection,
        after: Option<&DeliveryPosition>,
        max: u32,
    ) -> Result<Vec<Delivery>, Error> {
        macro_rules! newest {
            () => {
                " ORDER BY created_at DESC, stream_sequence DESC, event_id DESC LIMIT ?"
            };
        }
        // Query each state separately, so that an index yields its newest rows without a sort.
        let states = wanted
            .state
            .map_or_else(|| State::ALL.to_vec(), |one| vec![one]);
        let mut sql = Sql::default();
        for (n, state) in states.into_iter().enumerate() {
            sql = sql
                .push(if n > 0 { " UNION ALL " } else { "" })
                .push("SELECT * FROM (SELECT ")
                .push(COLUMNS)
                .append(" FROM deliveries WHERE endpoint = ?", [endpoint.into()]);
            let wanted = DeliverySelection {
                state: Some(state),
                ..wanted.clone()
            };
            sql = wanted.narrow(sql);
            if let Some(place) = after {
                sql = beyond(sql, "<", place);
            }
            sql = sql.append(concat!(newest!(), ") AS found"), [max.into()]);
        }
        let sql = sql.append(newest!(), [max.into()]);
        self.query("read deliveries", &sql, read).await
    }

    /// The stored attempts of a delivery, oldest first.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn attempts(&self, endpoint: &str, event_id: &str) -> Result<Vec<Attempt>, Error> {
        let action = "read attempts";
        // A delivery that succeeded on its first attempt has that attempt in its own row.
        let sql = sql!(
            "SELECT n, at, status, latency_ms, cause, error, snippet, next_at FROM attempts WHERE endpoint = ? AND event_id = ? UNION ALL SELECT 1, sent_at, status, latency_ms, '', '', snippet, NULL FROM deliveries WHERE sent_at IS NOT NULL AND endpoint = ? AND event_id = ? ORDER BY n",
            endpoint,
            event_id,
            endpoint,
            event_id,
        );
        self.query(action, &sql, read_attempt).await
    }

    /// Completes pending writes and closes the database.
    pub async fn close(&self) {
        self.writer.close().await;
        self.database.close().await;
        // Explicitly: a child process that is being spawned may hold a copy of the descriptor, which would keep the lock.
        if let Some(Err(error)) = self.lock.as_deref().map(File::unlock) {
            tracing::debug!(%error, "release lock of database");
        }
    }

    /// The rows of a query, each read by this function.
    async fn query<T, C: FromIterator<T>>(
        &self,
        action: &'static str,
        sql: &Sql,
        read: impl Fn(&Row) -> Result<T, sqlx::Error>,
    ) -> Result<C, Error> {
        Ok(self.database.query(action, sql, read).await?)
    }

    /// The first row of a query.
    async fn first<T>(
        &self,
        action: &'static str,
        sql: &Sql,
        read: impl Fn(&Row) -> Result<T, sqlx::Error>,
    ) -> Result<Option<T>, Error> {
        let rows: Vec<T> = self.query(action, sql, read).await?;
        Ok(rows.into_iter().next())
    }
}

#[cfg(test)]
mod tests;
