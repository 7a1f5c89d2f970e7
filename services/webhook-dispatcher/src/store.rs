//! Stores deliveries, provider state and outcomes to publish.
//!
//! Reads use a small pool. Writes of deliveries go through the writer, which groups many into one commit. Every write
//! about an endpoint's deliveries carries the epoch of its lease: a dispatcher that lost the lease writes nothing
//! more.

mod command;
pub mod cursors;
mod database;
mod delivery;
pub mod delivery_position;
pub mod endpoint_stats;
pub mod endpoints;
mod lookup;
pub mod outbox;
pub mod ownership;
#[cfg(test)]
mod plans;
pub mod redeliveries;
pub mod replicas;
pub mod restored;
mod retention;
mod saves;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use mesh_db::Location;
use mesh_db::sql::{Row, Sql};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use database::Database;
pub use delivery::{Attempt, Delivery, State};
use delivery::{COLUMNS, beyond, read, read_attempt, time};
use delivery_position::DeliveryPosition;
use lookup::Lookup;
use redeliveries::DeliverySelection;
use writer::{Command, Writer};

/// The database. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    database: Database,
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
        let database = Database::connect(location)?;
        let writer = Writer::start(database.inner.writer.clone());
        let lookup = Lookup::start(database.inner.readers.clone());
        Ok(Self {
            database,
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
        Ok(self.database.inner.prepare().await?)
    }

    /// True if other processes may use the same tables.
    pub const fn is_shared(&self) -> bool {
        self.database.inner.is_shared()
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

    /// Stores the current state of a delivery. Returns once it is on disk.
    ///
    /// # Errors
    /// If the database write fails, or another dispatcher holds the lease.
    pub async fn save(&self, epoch: i64, delivery: Delivery) -> Result<(), Error> {
        let command = Command::Save(Box::new(delivery));
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    /// Stores an expired delivery and counts it for the endpoint's summary of missed events.
    ///
    /// # Errors
    /// If the database write fails, or another dispatcher holds the lease.
    pub async fn save_missed(&self, epoch: i64, delivery: Delivery) -> Result<(), Error> {
        let command = Command::SaveMissed(Box::new(delivery));
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    /// Adds a cost to the delivery that waits for it. Returns true if there was one.
    ///
    /// # Errors
    /// If the database write fails, or another dispatcher holds the lease.
    pub async fn join_cost(
        &self,
        epoch: i64,
        endpoint: &str,
        pair: String,
        cost: Vec<u8>,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let command = Command::JoinCost {
            endpoint: endpoint.to_owned(),
            pair,
            cost,
            now,
        };
        self.writer
            .write(Some(epoch), command)
            .await
            .map(|rows| rows > 0)
    }

    /// Expires deliveries that wait under these keys and are no longer needed. Returns their number.
    ///
    /// # Errors
    /// If the database write fails, or another dispatcher holds the lease.
    pub async fn drop_waiting(
        &self,
        epoch: i64,
        endpoint: &str,
        pairs: Vec<String>,
        reason: &'static str,
        now: DateTime<Utc>,
    ) -> Result<u64, Error> {
        let command = Command::DropWaiting {
            endpoint: endpoint.to_owned(),
            pairs,
            reason,
            now,
        };
        self.writer.write(Some(epoch), command).await
    }

    /// Queues a summary of missed events and resets the count.
    ///
    /// # Errors
    /// If the database write fails, or another dispatcher holds the lease.
    pub async fn report_missed(&self, epoch: i64, report: Delivery) -> Result<(), Error> {
        let command = Command::ReportMissed(Box::new(report));
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    /// Ends the waiting deliveries of a removed endpoint, in batches, until none is left or it is stopped. Returns
    /// their number.
    ///
    /// # Errors
    /// If the database write fails, or another dispatcher holds the lease.
    pub async fn end(
        &self,
        epoch: i64,
        endpoint: &str,
        now: DateTime<Utc>,
        stop: &CancellationToken,
    ) -> Result<u64, Error> {
        let mut ended = 0;
        while !stop.is_cancelled() {
            let command = Command::End {
                endpoint: endpoint.to_owned(),
                now,
            };
            match self.writer.write(Some(epoch), command).await? {
                0 => break,
                some => ended += some,
            }
        }
        Ok(ended)
    }

    /// Makes waiting deliveries due that were scheduled by a clock ahead of this one. Returns their number.
    ///
    /// # Errors
    /// If the database write fails, or another dispatcher holds the lease.
    pub async fn replan(
        &self,
        epoch: i64,
        endpoint: &str,
        now: DateTime<Utc>,
    ) -> Result<u64, Error> {
        let command = Command::Replan {
            endpoint: endpoint.to_owned(),
            now,
        };
        self.writer.write(Some(epoch), command).await
    }

    /// Ids of due deliveries, longest waiting first.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn due(
        &self,
        endpoint: &str,
        now: DateTime<Utc>,
        max: usize,
    ) -> Result<Vec<String>, Error> {
        let action = "read due deliveries";
        let sql = Sql::new("SELECT event_id FROM deliveries WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND state = 'waiting' AND next_at <= ")
            .bind(now.timestamp_millis())
            .push(" ORDER BY next_at, stream_sequence LIMIT ")
            .bind(i64::try_from(max).unwrap_or(i64::MAX));
        self.query(action, &sql, |row| row.get("event_id")).await
    }

    /// Due time of the next delivery after `now`.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn next_due(
        &self,
        endpoint: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, Error> {
        let action = "read due deliveries";
        let sql = Sql::new("SELECT MIN(next_at) AS next FROM deliveries WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND state = 'waiting' AND next_at > ")
            .bind(now.timestamp_millis());
        let next = match self.first(action, &sql).await? {
            Some(row) => row
                .get::<Option<i64>>("next")
                .map_err(Error::database(action))?,
            None => None,
        };
        Ok(next.and_then(DateTime::from_timestamp_millis))
    }

    /// The endpoints that have waiting deliveries, digests, or missed events that were not reported.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn with_waiting(&self) -> Result<BTreeSet<String>, Error> {
        let sql = Sql::new("SELECT endpoint FROM deliveries WHERE state = 'waiting'")
            .push(" UNION SELECT endpoint FROM missed")
            .push(" UNION SELECT endpoint FROM kept WHERE key LIKE 'digest/%'");
        self.query("read waiting deliveries", &sql, |row| row.get("endpoint"))
            .await
    }

    /// Missed events that were not reported yet: id of the first one, and time of the last one.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn missed(&self, endpoint: &str) -> Result<Option<(String, DateTime<Utc>)>, Error> {
        let action = "read missed events";
        let sql = Sql::new("SELECT first_id, last_at FROM missed WHERE endpoint = ").bind(endpoint);
        let row = self.first(action, &sql).await?;
        row.map(|row| Ok((row.get("first_id")?, time(row.get("last_at")?))))
            .transpose()
            .map_err(Error::database(action))
    }

    /// Updates provider state of an endpoint. `None` removes a key.
    ///
    /// # Errors
    /// If the database write fails, or another dispatcher holds the lease.
    pub async fn keep(
        &self,
        epoch: i64,
        endpoint: &str,
        keep: Vec<(String, Option<String>)>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let command = Command::Keep {
            endpoint: endpoint.to_owned(),
            keep,
            now,
        };
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    /// Stored state of an endpoint under keys that begin with this prefix and a slash.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn provider_state_below(
        &self,
        endpoint: &str,
        word: &str,
    ) -> Result<BTreeMap<String, String>, Error> {
        let action = "read provider state";
        let sql = Sql::new("SELECT key, value FROM kept WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND key LIKE ")
            .bind(&format!("{word}/%"));
        self.query(action, &sql, |row| Ok((row.get("key")?, row.get("value")?)))
            .await
    }

    /// Stored state of an endpoint under these keys.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn provider_state(
        &self,
        endpoint: &str,
        keys: Vec<String>,
    ) -> Result<BTreeMap<String, String>, Error> {
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let action = "read provider state";
        let sql = Sql::new("SELECT key, value FROM kept WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND key")
            .any_of(keys);
        self.query(action, &sql, |row| Ok((row.get("key")?, row.get("value")?)))
            .await
    }

    /// Reads one delivery.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn load(&self, endpoint: &str, event_id: &str) -> Result<Option<Delivery>, Error> {
        let action = "read delivery";
        let sql = Sql::new("SELECT ")
            .push(COLUMNS)
            .push(" FROM deliveries WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND event_id = ")
            .bind(event_id);
        let row = self.first(action, &sql).await?;
        row.map(|row| read(&row))
            .transpose()
            .map_err(Error::database(action))
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
        const NEWEST: &str =
            " ORDER BY created_at DESC, stream_sequence DESC, event_id DESC LIMIT ";
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
                .push(" FROM deliveries WHERE endpoint = ")
                .bind(endpoint);
            let wanted = DeliverySelection {
                state: Some(state),
                ..wanted.clone()
            };
            sql = wanted.narrow(sql);
            if let Some(place) = after {
                sql = beyond(sql, "<", place);
            }
            sql = sql.push(NEWEST).bind(max).push(") AS found");
        }
        let sql = sql.push(NEWEST).bind(max);
        self.deliveries("read deliveries", &sql).await
    }

    /// The stored attempts of a delivery, oldest first.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn attempts(&self, endpoint: &str, event_id: &str) -> Result<Vec<Attempt>, Error> {
        let action = "read attempts";
        let sql = Sql::new(
            "SELECT n, at, status, latency_ms, cause, error, snippet, next_at FROM attempts WHERE endpoint = ",
        )
        .bind(endpoint)
        .push(" AND event_id = ")
        .bind(event_id)
        // A delivery that succeeded on its first attempt has that attempt in its own row.
        .push(
            " UNION ALL SELECT 1, sent_at, status, latency_ms, '', '', snippet, NULL FROM deliveries WHERE sent_at IS NOT NULL AND endpoint = ",
        )
        .bind(endpoint)
        .push(" AND event_id = ")
        .bind(event_id)
        .push(" ORDER BY n");
        self.query(action, &sql, read_attempt).await
    }

    /// Completes pending writes and closes the database.
    pub async fn close(&self) {
        self.writer.close().await;
        self.database.close().await;
    }

    async fn deliveries(&self, action: &'static str, sql: &Sql) -> Result<Vec<Delivery>, Error> {
        self.query(action, sql, read).await
    }

    /// The rows of a query, each read by this function.
    async fn query<T, C: FromIterator<T>>(
        &self,
        action: &'static str,
        sql: &Sql,
        read: impl Fn(&Row) -> Result<T, sqlx::Error>,
    ) -> Result<C, Error> {
        let rows = self.rows(action, sql).await?;
        let read: Result<C, _> = rows.iter().map(read).collect();
        read.map_err(Error::database(action))
    }

    async fn rows(&self, action: &'static str, sql: &Sql) -> Result<Vec<Row>, Error> {
        let rows = self.database.inner.readers.rows(sql).await;
        rows.map_err(Error::database(action))
    }

    async fn first(&self, action: &'static str, sql: &Sql) -> Result<Option<Row>, Error> {
        let row = self.database.inner.readers.first(sql).await;
        row.map_err(Error::database(action))
    }
}
