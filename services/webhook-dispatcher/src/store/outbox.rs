//! Outcomes that are not published yet.

use chrono::{DateTime, Utc};
use mesh_db::pool::{Conn, Transaction};
use mesh_db::sql::{Column, Row, Sql};

use crate::attempt::cause::Cause;
use crate::error::Error;
use crate::store::Store;
use crate::store::delivery::{State, time};
use crate::store::writer::Command;

/// Selects the event only for dead letters.
const COLUMNS: &str = "SELECT endpoint, event_id, event_type, state, attempts, status, error, updated_at, round, cause,
     CASE WHEN state = 'dead' THEN subject END AS subject, stream_sequence, CASE WHEN state = 'dead' THEN body END AS body
 FROM deliveries WHERE announced = 0 AND state <> 'waiting' AND ";

/// Final state of a delivery.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of the endpoint.
    pub endpoint: String,
    /// Id of the event.
    pub event_id: String,
    /// Type of the event.
    pub event_type: String,
    /// Delivered, dead or expired.
    pub state: State,
    /// Number of attempts.
    pub attempts: u32,
    /// HTTP status of the last attempt.
    pub status: u16,
    /// Error of the last attempt.
    pub error: String,
    /// When the delivery ended.
    pub updated_at: DateTime<Utc>,
    /// Number of redeliveries.
    pub round: u32,
    /// Why the last attempt failed.
    pub cause: Option<Cause>,
    /// Subject of the event, for dead letters.
    pub subject: String,
    /// Sequence of the event in its stream.
    pub stream_sequence: u64,
    /// The encoded event, for dead letters.
    pub body: Vec<u8>,
}

/// Identifies an outcome. The round distinguishes the outcomes of a redelivered event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    endpoint: String,
    event_id: String,
    round: u32,
}

impl Outcome {
    /// The identity of this outcome.
    pub fn key(&self) -> Key {
        Key {
            endpoint: self.endpoint.clone(),
            event_id: self.event_id.clone(),
            round: self.round,
        }
    }
}

impl Store {
    /// Unpublished outcomes of these endpoints, oldest first.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn outbox(&self, endpoints: Vec<String>, max: u32) -> Result<Vec<Outcome>, Error> {
        if endpoints.is_empty() {
            return Ok(Vec::new());
        }
        let action = "read outcomes";
        // The `+` stops SQLite from scanning all deliveries of these endpoints.
        let sql = Sql::new(COLUMNS)
            .either("+endpoint", "endpoint")
            .any_of(endpoints)
            .push(" ORDER BY updated_at LIMIT ")
            .bind(max);
        self.query(action, &sql, read).await
    }

    /// Marks outcomes as published.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn mark_published(&self, keys: Vec<Key>) -> Result<(), Error> {
        let command = Command::Announced(keys);
        self.writer.write(None, command).await.map(drop)
    }
}

fn read(row: &Row) -> Result<Outcome, sqlx::Error> {
    let number = |name| row.get::<i64>(name).map(i64::unsigned_abs);
    Ok(Outcome {
        endpoint: row.get("endpoint")?,
        event_id: row.get("event_id")?,
        event_type: row.get("event_type")?,
        state: State::parse(&row.get::<String>("state")?),
        attempts: number("attempts")?.try_into().unwrap_or(u32::MAX),
        status: number("status")?.try_into().unwrap_or_default(),
        error: row.get("error")?,
        updated_at: time(row.get("updated_at")?),
        round: number("round")?.try_into().unwrap_or(u32::MAX),
        cause: Cause::parse(&row.get::<String>("cause")?),
        subject: row.get::<Option<String>>("subject")?.unwrap_or_default(),
        stream_sequence: number("stream_sequence")?,
        body: row.get::<Option<Vec<u8>>>("body")?.unwrap_or_default(),
    })
}

pub(super) async fn note(
    transaction: &mut Transaction<'_>,
    keys: &[Key],
) -> Result<u64, sqlx::Error> {
    let texts =
        |of: fn(&Key) -> &str| Column::Texts(keys.iter().map(|key| Some(of(key))).collect());
    let rounds = keys.iter().map(|key| Some(key.round.into())).collect();
    let bulk = [
        ("endpoint", texts(|key| &key.endpoint)),
        ("event_id", texts(|key| &key.event_id)),
        ("round", Column::Ints(rounds)),
    ];
    if matches!(transaction.conn(), Conn::Postgres(_)) {
        // Lock in a fixed order: while an endpoint changes owner, two dispatchers may publish the same outcomes.
        let lock = "SELECT 1 FROM deliveries WHERE (endpoint, event_id) IN (SELECT endpoint, event_id FROM bulk)
             ORDER BY endpoint, event_id FOR UPDATE";
        transaction.conn().fetch_bulk(&bulk, lock).await?;
    }
    let update = "UPDATE deliveries SET announced = 1 WHERE (endpoint, event_id, round) IN (SELECT endpoint, event_id, round FROM bulk)";
    transaction.conn().execute_bulk(&bulk, update).await
}
