//! Writes about deliveries, each part of a transaction.

use chrono::{DateTime, Utc};
use event_message::schedule::MAX_DRIFT;
use mesh_db::pool::Transaction;
use mesh_db::sql::Sql;

use crate::store::cursors::{self, CursorRow};
use crate::store::delivery::Delivery;
use crate::store::outbox;
use crate::store::retention::piece;
use crate::store::saves::{keep, save};
use crate::stream::cursor::Cursor;

/// A write.
pub(super) enum Command {
    /// Store the current state of a delivery.
    Save(Box<Delivery>),
    /// Store an expired delivery and count it.
    SaveMissed(Box<Delivery>),
    /// Add a cost to the delivery that waits for it, and make it due.
    JoinCost {
        endpoint: String,
        pair: String,
        cost: Vec<u8>,
        now: DateTime<Utc>,
    },
    /// Expire waiting deliveries under these keys.
    DropWaiting {
        endpoint: String,
        pairs: Vec<String>,
        reason: &'static str,
        now: DateTime<Utc>,
    },
    /// Upsert or delete provider state of an endpoint.
    Keep {
        endpoint: String,
        keep: Vec<(String, Option<String>)>,
        now: DateTime<Utc>,
    },
    /// Queue a summary of missed events and reset the count.
    ReportMissed(Box<Delivery>),
    /// Make deliveries due that were scheduled by a clock ahead of this one.
    Replan {
        endpoint: String,
        now: DateTime<Utc>,
    },
    /// End a batch of the waiting deliveries of a removed endpoint.
    End {
        endpoint: String,
        now: DateTime<Utc>,
    },
    /// Put dead letters back into the queue and store the job's progress.
    Redeliver {
        endpoint: String,
        job: String,
        ids: Vec<String>,
        cursor: String,
        done: bool,
        now: DateTime<Utc>,
    },
    /// Move endpoints that have nothing under way to this position of a stream.
    AdvanceCursors {
        endpoints: Vec<String>,
        stream: &'static str,
        created: DateTime<Utc>,
        settled: u64,
    },
    /// Store the cursor of an endpoint that stops.
    SaveCursor {
        endpoint: String,
        stream: &'static str,
        created: DateTime<Utc>,
        cursor: Cursor,
    },
    /// Mark outcomes as published.
    Announced(Vec<outbox::Key>),
}

impl Command {
    /// The endpoint whose lease is required.
    pub fn endpoint(&self) -> Option<&str> {
        match self {
            Self::Save(delivery) | Self::SaveMissed(delivery) | Self::ReportMissed(delivery) => {
                Some(&delivery.endpoint)
            }
            Self::JoinCost { endpoint, .. }
            | Self::DropWaiting { endpoint, .. }
            | Self::Keep { endpoint, .. }
            | Self::Replan { endpoint, .. }
            | Self::End { endpoint, .. }
            | Self::Redeliver { endpoint, .. } => Some(endpoint),
            Self::AdvanceCursors { .. } | Self::SaveCursor { .. } | Self::Announced(_) => None,
        }
    }

    /// True for the result of a request, which would be repeated if this write were lost.
    pub const fn is_outcome(&self) -> bool {
        matches!(self, Self::Save(_) | Self::SaveMissed(_))
    }

    /// Applies the write. Returns the number of rows.
    pub async fn apply(&self, transaction: &mut Transaction<'_>) -> Result<u64, sqlx::Error> {
        match self {
            Self::Save(delivery) => save(transaction, &[delivery]).await,
            Self::SaveMissed(delivery) => {
                let sql = Sql::new("INSERT INTO missed (endpoint, first_id, count, last_at) VALUES (")
                    .list([
                        (&delivery.endpoint).into(),
                        (&delivery.event_id).into(),
                        1_i64.into(),
                        delivery.updated_at.timestamp_millis().into(),
                    ])
                    .push(") ON CONFLICT (endpoint) DO UPDATE SET count = missed.count + 1, last_at = excluded.last_at");
                transaction.conn().execute(&sql).await?;
                save(transaction, &[delivery]).await
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
                    // The `+` stops SQLite from scanning all waiting deliveries.
                    .either(" AND +state", " AND state")
                    .push(" = 'waiting' AND attempts = 0");
                transaction.conn().execute(&sql).await
            }
            Self::DropWaiting {
                endpoint,
                pairs,
                reason,
                now,
            } => {
                let sql = Sql::new("UPDATE deliveries SET state = 'expired', cause = '', error = ")
                    .bind(*reason)
                    .push(", pair = NULL, next_at = NULL, body = NULL, cost = NULL, updated_at = ")
                    .bind(now.timestamp_millis())
                    .push(" WHERE endpoint = ")
                    .bind(endpoint)
                    .push(" AND pair")
                    .any_of(pairs.clone())
                    // As above.
                    .either(" AND +state", " AND state")
                    .push(" = 'waiting'");
                transaction.conn().execute(&sql).await
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
                // Read the count in the same transaction, so that events missed since the decision to report are
                // included.
                let sql = Sql::new("DELETE FROM missed WHERE endpoint = ")
                    .bind(&report.endpoint)
                    .push(" RETURNING count");
                let Some(row) = transaction.conn().first(&sql).await? else {
                    return Ok(0);
                };
                let mut report = report.clone();
                report.body = row.get::<i64>("count")?.to_string().into();
                save(transaction, &[&report]).await
            }
            Self::Replan { endpoint, now } => {
                let latest = (*now + MAX_DRIFT).timestamp_millis();
                let now = now.timestamp_millis();
                let earliest = |sql: Sql, column: &'static str| {
                    sql.push(column)
                        .push(" = ")
                        .either("MIN(", "LEAST(")
                        .push(column)
                        .push(", ")
                        .bind(now)
                        .push(")")
                };
                let sql = Sql::new("UPDATE deliveries SET next_at = ")
                    .bind(now)
                    .push(", updated_at = ")
                    .bind(now)
                    .push(", ");
                let sql = earliest(sql, "began_at").push(", ");
                let sql = earliest(sql, "created_at")
                    .push(" WHERE endpoint = ")
                    .bind(endpoint)
                    .push(" AND state = 'waiting' AND next_at > ")
                    .bind(now)
                    .push(" AND updated_at > ")
                    .bind(latest);
                transaction.conn().execute(&sql).await
            }
            Self::End { endpoint, now } => {
                let sql = Sql::new(
                    "UPDATE deliveries SET state = 'dead', cause = 'removed', error = ltrim(error || ' (the endpoint was removed)'), next_at = NULL, pair = NULL, updated_at = ",
                )
                .bind(now.timestamp_millis());
                let waits = |sql: Sql| {
                    sql.push("endpoint = ")
                        .bind(endpoint)
                        .push(" AND state = 'waiting'")
                };
                let sql = piece(sql, "deliveries", waits);
                transaction.conn().execute(&sql).await
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
                // Skip outcomes that are not published yet: this update would lose them. Without a body after a recovery from the audit.
                let sql = Sql::new(
                    "UPDATE deliveries SET state = 'waiting', attempts = 0, announced = 0, round = round + 1, next_at = ",
                )
                .bind(now)
                .push(", began_at = ")
                .bind(now)
                .push(", updated_at = ")
                .bind(now)
                // The `+` stops SQLite from scanning all dead letters.
                .either(" WHERE +state", " WHERE state")
                .push(" = 'dead' AND announced = 1 AND body IS NOT NULL AND endpoint = ")
                .bind(endpoint)
                .push(" AND event_id")
                .any_of(ids.clone());
                let queued = transaction.conn().execute(&sql).await?;
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
                transaction.conn().execute(&sql).await?;
                Ok(queued)
            }
            Self::AdvanceCursors {
                endpoints,
                stream,
                created,
                settled,
            } => {
                let sql = cursors::advance(endpoints.clone(), stream, *created, *settled);
                transaction.conn().execute(&sql).await
            }
            Self::SaveCursor {
                endpoint,
                stream,
                created,
                cursor,
            } => {
                let row = CursorRow {
                    endpoint,
                    stream,
                    created: *created,
                    cursor: cursor.clone(),
                };
                cursors::save(transaction, &[row]).await.map(|()| 1)
            }
            Self::Announced(keys) => outbox::note(transaction, keys).await,
        }
    }
}
