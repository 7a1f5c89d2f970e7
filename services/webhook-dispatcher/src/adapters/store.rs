//! The dispatcher's SQLite file: what waits, what was done, and what is to be announced.
//!
//! Reads go through a small pool, writes through the writer, which commits many at once.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::Row as _;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use tokio::sync::watch;

use super::writer::{Command, Writer};
use crate::error::Error;

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// To be tried (again).
    Waiting,
    /// Arrived.
    Delivered,
    /// Given up.
    Dead,
    /// Too old to be sent.
    Expired,
}

impl State {
    /// Its word in the database, audit entries and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Expired => "expired",
        }
    }

    fn parse(word: &str) -> Self {
        match word {
            "delivered" => Self::Delivered,
            "dead" => Self::Dead,
            "expired" => Self::Expired,
            // The table's CHECK allows nothing else.
            _ => Self::Waiting,
        }
    }
}

/// One event on its way to one endpoint.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Name of the endpoint.
    pub endpoint: String,
    /// Id of the event; of our own messages an id of our own.
    pub event_id: String,
    /// Type of the event; empty for our own messages.
    pub event_type: String,
    /// Where it stands.
    pub state: State,
    /// Attempts so far.
    pub attempts: u32,
    /// When it is tried next.
    pub next_at: Option<DateTime<Utc>>,
    /// HTTP status of the last attempt, 0 without an answer.
    pub status: u16,
    /// Error of the last attempt.
    pub error: String,
    /// When it came.
    pub created_at: DateTime<Utc>,
    /// When it changed.
    pub updated_at: DateTime<Utc>,
    /// Subject of the event.
    pub subject: String,
    /// Its sequence in the stream.
    pub stream_sequence: u64,
    /// `traceparent` of the event; empty without one.
    pub trace: String,
    /// Which cost it waits for.
    pub pair: Option<String>,
    /// The event as it was received; empty once it is not needed any more.
    pub body: Vec<u8>,
    /// The cost event that came for it.
    pub cost: Option<Vec<u8>>,
}

/// Deliveries of an endpoint by state, and the last error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Arrived.
    pub delivered: u64,
    /// To be tried (again).
    pub waiting: u64,
    /// Given up.
    pub dead: u64,
    /// Too old to be sent.
    pub expired: u64,
    /// Error of the newest delivery that has one; empty without.
    pub last_error: String,
}

/// The database. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    reads: SqlitePool,
    writer: Writer,
}

impl Store {
    /// Opens the file, makes or updates its tables, and starts the writer.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        Self::try_open(path).await.map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })
    }

    async fn try_open(path: &Path) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // It holds everybody's jobs; SQLite gives its side files the same mode.
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            // A commit is on disk before its message is acknowledged.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5));
        let setup = SqlitePoolOptions::new()
            .max_connections(1)
            .connect_with(options.clone())
            .await?;
        sqlx::migrate!("./migrations").run(&setup).await?;
        let connection = setup.acquire().await?.detach();
        let reads = SqlitePoolOptions::new()
            .max_connections(2)
            .connect_with(options.clone().read_only(true))
            .await?;
        Ok(Self {
            reads,
            writer: Writer::start(connection, options),
        })
    }

    /// Why the database does not write, as that changes; `None` while it does.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.writer.trouble()
    }

    /// Checked before anything is sent: what cannot be noted would be sent again and again.
    ///
    /// # Errors
    /// If the last write failed and none has succeeded since.
    pub fn check_writes(&self) -> Result<(), Error> {
        match &*self.writer.trouble().borrow() {
            None => Ok(()),
            Some(reason) => Err(Error::NotWriting(reason.clone())),
        }
    }

    /// True if the event is known for the endpoint, whatever became of it.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn knows(&self, endpoint: &str, event_id: &str) -> Result<bool, Error> {
        sqlx::query("SELECT 1 FROM deliveries WHERE endpoint = ? AND event_id = ?")
            .bind(endpoint)
            .bind(event_id)
            .fetch_optional(&self.reads)
            .await
            .map(|row| row.is_some())
            .map_err(Error::database("look up delivery"))
    }

    /// Stores a delivery as it stands now; returns when it is on disk.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn save(&self, delivery: Delivery) -> Result<(), Error> {
        self.writer
            .write(Command::Save(Box::new(delivery)))
            .await
            .map(drop)
    }

    /// Stores an expired delivery, and counts it for the endpoint's message about what it missed.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn save_missed(&self, delivery: Delivery) -> Result<(), Error> {
        self.writer
            .write(Command::SaveMissed(Box::new(delivery)))
            .await
            .map(drop)
    }

    /// Hands a cost to the delivery that waits for it; true if there was one.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn join_cost(
        &self,
        endpoint: &str,
        pair: String,
        cost: Vec<u8>,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        self.writer
            .write(Command::JoinCost {
                endpoint: endpoint.to_owned(),
                pair,
                cost,
                now,
            })
            .await
            .map(|rows| rows > 0)
    }

    /// Puts a message about missed events in the queue and begins counting anew.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn report_missed(&self, report: Delivery) -> Result<(), Error> {
        self.writer
            .write(Command::ReportMissed(Box::new(report)))
            .await
            .map(drop)
    }

    /// Notes that outcomes were announced.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn announced(&self, keys: Vec<(String, String)>) -> Result<(), Error> {
        self.writer.write(Command::Announced(keys)).await.map(drop)
    }

    /// Ends what waits for endpoints other than these, and forgets outcomes older than `before`; returns how many.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn forget(
        &self,
        configured: BTreeSet<String>,
        before: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<u64, Error> {
        self.writer
            .write(Command::Forget {
                configured,
                before,
                now,
            })
            .await
    }

    /// Ids of deliveries that are due, longest waiting first.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn due(
        &self,
        endpoint: &str,
        now: DateTime<Utc>,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        sqlx::query_scalar("SELECT event_id FROM deliveries WHERE endpoint = ? AND state = 'waiting' AND next_at <= ? ORDER BY next_at LIMIT ?")
            .bind(endpoint)
            .bind(now.timestamp_millis())
            .bind(i64::try_from(most).unwrap_or(i64::MAX))
            .fetch_all(&self.reads)
            .await
            .map_err(Error::database("look for due deliveries"))
    }

    /// When the next delivery after `now` is due.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn next_due(
        &self,
        endpoint: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, Error> {
        let next: Option<i64> =
            sqlx::query_scalar("SELECT MIN(next_at) FROM deliveries WHERE endpoint = ? AND state = 'waiting' AND next_at > ?")
                .bind(endpoint)
                .bind(now.timestamp_millis())
                .fetch_one(&self.reads)
                .await
                .map_err(Error::database("look for due deliveries"))?;
        Ok(next.and_then(DateTime::from_timestamp_millis))
    }

    /// What an endpoint missed and was not told yet: id of the first event, and when the last was seen.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn missed(&self, endpoint: &str) -> Result<Option<(String, DateTime<Utc>)>, Error> {
        let row: Option<(String, i64)> =
            sqlx::query_as("SELECT first_id, last_at FROM away WHERE endpoint = ?")
                .bind(endpoint)
                .fetch_optional(&self.reads)
                .await
                .map_err(Error::database("look for missed events"))?;
        Ok(row.map(|(first, last)| {
            (
                first,
                DateTime::from_timestamp_millis(last).unwrap_or_default(),
            )
        }))
    }

    /// One delivery.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn load(&self, endpoint: &str, event_id: &str) -> Result<Option<Delivery>, Error> {
        sqlx::query("SELECT * FROM deliveries WHERE endpoint = ? AND event_id = ?")
            .bind(endpoint)
            .bind(event_id)
            .try_map(|row| read(&row))
            .fetch_optional(&self.reads)
            .await
            .map_err(Error::database("read delivery"))
    }

    /// The newest deliveries of an endpoint.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn recent(&self, endpoint: &str, most: u32) -> Result<Vec<Delivery>, Error> {
        sqlx::query("SELECT * FROM deliveries WHERE endpoint = ? ORDER BY created_at DESC, stream_sequence DESC LIMIT ?")
            .bind(endpoint)
            .bind(most)
            .try_map(|row| read(&row))
            .fetch_all(&self.reads)
            .await
            .map_err(Error::database("read deliveries"))
    }

    /// Outcomes that were not announced yet, oldest first.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn outbox(&self, most: u32) -> Result<Vec<Delivery>, Error> {
        sqlx::query("SELECT * FROM deliveries WHERE announced = 0 AND state <> 'waiting' ORDER BY updated_at LIMIT ?")
            .bind(most)
            .try_map(|row| read(&row))
            .fetch_all(&self.reads)
            .await
            .map_err(Error::database("read outcomes"))
    }

    /// How many deliveries of an endpoint are in each state.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn counts(&self, endpoint: &str) -> Result<Counts, Error> {
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "SELECT state, COUNT(*) FROM deliveries WHERE endpoint = ? GROUP BY state",
        )
        .bind(endpoint)
        .fetch_all(&self.reads)
        .await
        .map_err(Error::database("count deliveries"))?;
        let last_error: Option<String> = sqlx::query_scalar(
            "SELECT error FROM deliveries WHERE endpoint = ? AND state IN ('waiting', 'dead') AND error <> '' ORDER BY updated_at DESC LIMIT 1",
        )
        .bind(endpoint)
        .fetch_optional(&self.reads)
        .await
        .map_err(Error::database("read last error"))?;
        let mut counts = Counts {
            last_error: last_error.unwrap_or_default(),
            ..Counts::default()
        };
        for (state, count) in rows {
            let slot = match State::parse(&state) {
                State::Waiting => &mut counts.waiting,
                State::Delivered => &mut counts.delivered,
                State::Dead => &mut counts.dead,
                State::Expired => &mut counts.expired,
            };
            *slot = count.unsigned_abs();
        }
        Ok(counts)
    }

    /// Finishes what was handed to the writer and closes the file.
    pub async fn close(&self) {
        self.writer.close().await;
        self.reads.close().await;
    }
}

fn read(row: &SqliteRow) -> Result<Delivery, sqlx::Error> {
    let time = |name| {
        row.try_get::<i64, _>(name)
            .map(|millis| DateTime::from_timestamp_millis(millis).unwrap_or_default())
    };
    Ok(Delivery {
        endpoint: row.try_get("endpoint")?,
        event_id: row.try_get("event_id")?,
        event_type: row.try_get("event_type")?,
        state: State::parse(row.try_get("state")?),
        attempts: row.try_get("attempts")?,
        next_at: row
            .try_get::<Option<i64>, _>("next_at")?
            .and_then(DateTime::from_timestamp_millis),
        status: row.try_get("status")?,
        error: row.try_get("error")?,
        created_at: time("created_at")?,
        updated_at: time("updated_at")?,
        subject: row.try_get("subject")?,
        stream_sequence: row.try_get::<i64, _>("stream_sequence")?.unsigned_abs(),
        trace: row.try_get("trace")?,
        pair: row.try_get("pair")?,
        body: row
            .try_get::<Option<Vec<u8>>, _>("body")?
            .unwrap_or_default(),
        cost: row.try_get("cost")?,
    })
}
