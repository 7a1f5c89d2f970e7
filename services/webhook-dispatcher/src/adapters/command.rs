//! What is written of deliveries, each as a part of a transaction.

use chrono::{DateTime, Utc};
use mesh_db::pool::Transaction;
use mesh_db::sql::Sql;

use super::delivery::{Attempt, Delivery, State};
use crate::domain::cause::Cause;

/// So many attempts of a delivery are kept, the newest.
const MOST_ATTEMPTS: i64 = 50;

/// A write.
pub(super) enum Command {
    /// Store a delivery as it stands.
    Save(Box<Delivery>),
    /// Store an expired delivery and count it.
    SaveMissed(Box<Delivery>),
    /// Hand a cost to the delivery that waits for it, and make that due.
    JoinCost {
        endpoint: String,
        pair: String,
        cost: Vec<u8>,
        now: DateTime<Utc>,
    },
    /// Keep or forget something of an endpoint.
    Keep {
        endpoint: String,
        keep: Vec<(String, Option<String>)>,
        now: DateTime<Utc>,
    },
    /// Queue a message about missed events and count anew.
    ReportMissed(Box<Delivery>),
    /// End what waits for an endpoint that is removed.
    End {
        endpoint: String,
        now: DateTime<Utc>,
    },
    /// Begin dead deliveries again, and note how far that is.
    Redeliver {
        endpoint: String,
        job: String,
        ids: Vec<String>,
        cursor: String,
        done: bool,
        now: DateTime<Utc>,
    },
    /// Outcomes were announced.
    Announced(Vec<(String, String)>),
    /// Forget old outcomes.
    Forget { before: DateTime<Utc> },
}

impl Command {
    /// The endpoint whose lease is needed.
    pub fn endpoint(&self) -> Option<&str> {
        match self {
            Self::Save(delivery) | Self::SaveMissed(delivery) | Self::ReportMissed(delivery) => {
                Some(&delivery.endpoint)
            }
            Self::JoinCost { endpoint, .. }
            | Self::Keep { endpoint, .. }
            | Self::End { endpoint, .. }
            | Self::Redeliver { endpoint, .. } => Some(endpoint),
            Self::Announced(_) | Self::Forget { .. } => None,
        }
    }

    /// True if it says what became of a request, which would be made again if it were forgotten.
    pub const fn is_outcome(&self) -> bool {
        matches!(self, Self::Save(_) | Self::SaveMissed(_))
    }

    /// Performs it; returns the number of rows.
    pub async fn apply(&self, transaction: &mut Transaction<'_>) -> Result<u64, sqlx::Error> {
        match self {
            Self::Save(delivery) => save(transaction, delivery).await,
            Self::SaveMissed(delivery) => {
                let sql = Sql::new("INSERT INTO missed (endpoint, first_id, count, last_at) VALUES (")
                    .list([
                        (&delivery.endpoint).into(),
                        (&delivery.event_id).into(),
                        1_i64.into(),
                        delivery.updated_at.timestamp_millis().into(),
                    ])
                    .push(") ON CONFLICT (endpoint) DO UPDATE SET count = missed.count + 1, last_at = excluded.last_at");
                transaction.link().run(&sql).await?;
                save(transaction, delivery).await
            }
            Self::JoinCost {
                endpoint,
                pair,
                cost,
                now,
            } => {
                let sql = Sql::new("UPDATE deliveries SET pair = NULL, cost = ")
                    .bind(cost.as_slice())
                    .push(", next_at = ")
                    .bind(now.timestamp_millis())
                    .push(" WHERE endpoint = ")
                    .bind(endpoint)
                    .push(" AND pair = ")
                    .bind(pair)
                    .push(" AND state = 'waiting' AND attempts = 0");
                transaction.link().run(&sql).await
            }
            Self::Keep {
                endpoint,
                keep: entries,
                now,
            } => {
                for (key, value) in entries {
                    keep(transaction, endpoint, *now, key, value.as_deref()).await?;
                }
                Ok(entries.len() as u64)
            }
            Self::ReportMissed(report) => {
                // Counted in the same transaction: what came since the report was decided on belongs to it.
                let sql = Sql::new("DELETE FROM missed WHERE endpoint = ")
                    .bind(&report.endpoint)
                    .push(" RETURNING count");
                let Some(row) = transaction.link().first(&sql).await? else {
                    return Ok(0);
                };
                let mut report = report.clone();
                report.body = row.get::<i64>("count")?.to_string().into_bytes();
                save(transaction, &report).await
            }
            Self::End { endpoint, now } => {
                let sql = Sql::new(
                    "UPDATE deliveries SET state = 'dead', cause = 'removed', error = ltrim(error || ' (the endpoint was removed)'), next_at = NULL, pair = NULL, updated_at = ",
                )
                .bind(now.timestamp_millis())
                .push(" WHERE endpoint = ")
                .bind(endpoint)
                .push(" AND state = 'waiting'");
                transaction.link().run(&sql).await
            }
            Self::Redeliver {
                endpoint,
                job,
                ids,
                cursor,
                done,
                now,
            } => {
                let now = now.timestamp_millis();
                // What was not announced yet would never be: its outcome is lost by this.
                let sql = Sql::new(
                    "UPDATE deliveries SET state = 'waiting', attempts = 0, announced = 0, round = round + 1, next_at = ",
                )
                .bind(now)
                .push(", began_at = ")
                .bind(now)
                .push(", updated_at = ")
                .bind(now)
                .push(" WHERE state = 'dead' AND announced = 1 AND endpoint = ")
                .bind(endpoint)
                .push(" AND event_id")
                .any_of(ids.clone());
                let queued = transaction.link().run(&sql).await?;
                let sql = Sql::new("UPDATE redeliveries SET queued = queued + ")
                    .bind(queued.cast_signed())
                    .push(", cursor = ")
                    .bind(cursor)
                    .push(", state = ")
                    .bind(if *done { "done" } else { "running" })
                    .push(", updated_at = ")
                    .bind(now)
                    .push(" WHERE id = ")
                    .bind(job);
                transaction.link().run(&sql).await?;
                Ok(queued)
            }
            Self::Announced(keys) => {
                for (endpoint, event_id) in keys {
                    let sql = Sql::new("UPDATE deliveries SET announced = 1 WHERE endpoint = ")
                        .bind(endpoint)
                        .push(" AND event_id = ")
                        .bind(event_id);
                    transaction.link().run(&sql).await?;
                }
                Ok(keys.len() as u64)
            }
            Self::Forget { before } => {
                let before = before.timestamp_millis();
                let sql = Sql::new("DELETE FROM kept WHERE updated_at < ").bind(before);
                transaction.link().run(&sql).await?;
                let sql = Sql::new("DELETE FROM attempts WHERE at < ").bind(before);
                transaction.link().run(&sql).await?;
                let sql =
                    Sql::new("DELETE FROM redeliveries WHERE state <> 'running' AND updated_at < ")
                        .bind(before);
                transaction.link().run(&sql).await?;
                let sql = Sql::new("DELETE FROM deliveries WHERE state <> 'waiting' AND announced = 1 AND updated_at < ")
                    .bind(before);
                transaction.link().run(&sql).await
            }
        }
    }
}

/// Inserts or updates. What came in between stays: the cost of a waiting delivery is set by [`Command::JoinCost`] alone.
pub(super) async fn save(
    transaction: &mut Transaction<'_>,
    delivery: &Delivery,
) -> Result<u64, sqlx::Error> {
    let needed = matches!(delivery.state, State::Waiting | State::Dead);
    let sql = Sql::new(
        "INSERT INTO deliveries (endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at, subject,
             stream_sequence, trace, pair, body, cost, cause, began_at)
         VALUES (",
    )
    .list([
        (&delivery.endpoint).into(),
        (&delivery.event_id).into(),
        (&delivery.event_type).into(),
        delivery.state.as_str().into(),
        delivery.attempts.into(),
        delivery.next_at.map(|at| at.timestamp_millis()).into(),
        u32::from(delivery.status).into(),
        (&delivery.error).into(),
        delivery.created_at.timestamp_millis().into(),
        delivery.updated_at.timestamp_millis().into(),
        (&delivery.subject).into(),
        delivery.stream_sequence.cast_signed().into(),
        (&delivery.trace).into(),
        delivery.pair.as_deref().into(),
        needed.then_some(delivery.body.as_slice()).into(),
        delivery.cost.as_deref().into(),
        word(delivery.cause).into(),
        delivery.began_at.timestamp_millis().into(),
    ])
    .push(
        ") ON CONFLICT (endpoint, event_id) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, next_at = excluded.next_at,
             status = excluded.status, error = excluded.error, updated_at = excluded.updated_at, pair = excluded.pair, body = excluded.body,
             cause = excluded.cause
         WHERE deliveries.state = 'waiting'",
    );
    let rows = transaction.link().run(&sql).await?;
    if let Some(attempt) = &delivery.attempt {
        note(transaction, delivery, attempt).await?;
    }
    for (key, value) in &delivery.keep {
        keep(
            transaction,
            &delivery.endpoint,
            delivery.updated_at,
            key,
            value.as_deref(),
        )
        .await?;
    }
    Ok(rows)
}

/// Notes an attempt, once however often this is written, and forgets those that are too many.
async fn note(
    transaction: &mut Transaction<'_>,
    delivery: &Delivery,
    attempt: &Attempt,
) -> Result<(), sqlx::Error> {
    let (endpoint, event, at) = (
        &delivery.endpoint,
        &delivery.event_id,
        attempt.at.timestamp_millis(),
    );
    let sql = Sql::new(
        "INSERT INTO attempts (endpoint, event_id, at, status, latency_ms, cause, error, snippet, next_at, n) SELECT ",
    )
    .bind(endpoint)
    .push(", ")
    .bind(event)
    .push(", ")
    .bind(at)
    .push(", ")
    .bind(u32::from(attempt.status))
    .push(", ")
    .bind(attempt.latency_ms.cast_signed())
    .push(", ")
    .bind(word(attempt.cause))
    .push(", ")
    .bind(&attempt.error)
    .push(", ")
    .bind(&attempt.snippet)
    .push(", ")
    .bind(attempt.next_at.map(|at| at.timestamp_millis()))
    .push(", COALESCE(MAX(n), 0) + 1 FROM attempts WHERE endpoint = ")
    .bind(endpoint)
    .push(" AND event_id = ")
    .bind(event)
    .push(" HAVING COUNT(CASE WHEN at = ")
    .bind(at)
    .push(" THEN 1 END) = 0 RETURNING n");
    let written = transaction.link().first(&sql).await?;
    let n = written.map(|row| row.get::<i64>("n")).transpose()?;
    if let Some(most) = n.map(|n| n - MOST_ATTEMPTS).filter(|most| *most > 0) {
        let sql = Sql::new("DELETE FROM attempts WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND event_id = ")
            .bind(event)
            .push(" AND n <= ")
            .bind(most);
        transaction.link().run(&sql).await?;
    }
    Ok(())
}

fn word(cause: Option<Cause>) -> &'static str {
    cause.map_or("", Cause::as_str)
}

async fn keep(
    transaction: &mut Transaction<'_>,
    endpoint: &str,
    now: DateTime<Utc>,
    key: &str,
    value: Option<&str>,
) -> Result<(), sqlx::Error> {
    let sql = match value {
        Some(value) => Sql::new("INSERT INTO kept (endpoint, key, value, updated_at) VALUES (")
            .list([
                endpoint.into(),
                key.into(),
                value.into(),
                now.timestamp_millis().into(),
            ])
            .push(") ON CONFLICT (endpoint, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at"),
        None => Sql::new("DELETE FROM kept WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND key = ")
            .bind(key),
    };
    transaction.link().run(&sql).await.map(drop)
}
