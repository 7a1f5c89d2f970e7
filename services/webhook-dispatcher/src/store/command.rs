//! Writes about deliveries. Each is part of a transaction of the [writer](super::writer).

use chrono::{DateTime, Utc};
use event_message::schedule::MAX_DRIFT;
use mesh_db::pool::WriteTransaction;
use mesh_db::sql;
use mesh_db::sql::Sql;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::store::Store;
use crate::store::cursor_rows::{self, CursorRow};
use crate::store::delivery::Delivery;
use crate::store::outbox;
use crate::store::retention::piece;
use crate::store::saves::{provider_state_statement, save};

/// A write.
pub(super) enum Command {
    /// Store the current state of a delivery.
    Save(Box<Delivery>),
    /// Store an expired delivery and count it.
    SaveMissed(Box<Delivery>),
    /// Queue a summary of missed events and reset the count.
    ReportMissed(Box<Delivery>),
    /// Change rows, of an endpoint or of several.
    Change {
        endpoint: Option<String>,
        statements: Vec<Sql>,
    },
    /// Put dead letters back into the queue, and store the job's progress by their number.
    Redeliver {
        endpoint: String,
        letters: Sql,
        progress: Box<dyn Fn(u64) -> Sql + Send + Sync>,
    },
    /// Store the cursor of an endpoint that stops.
    SaveCursor(CursorRow<'static>),
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
            Self::Redeliver { endpoint, .. } => Some(endpoint),
            Self::Change { endpoint, .. } => endpoint.as_deref(),
            Self::SaveCursor(_) | Self::Announced(_) => None,
        }
    }

    /// True for the result of a request, which would be repeated if this write were lost.
    pub const fn is_outcome(&self) -> bool {
        matches!(self, Self::Save(_) | Self::SaveMissed(_))
    }

    /// Applies the write. Returns the number of rows.
    pub async fn apply(&self, transaction: &mut WriteTransaction) -> Result<u64, sqlx::Error> {
        match self {
            Self::Save(delivery) => save(transaction, &[delivery]).await,
            Self::SaveMissed(delivery) => {
                let sql = sql!(
                    "INSERT INTO missed (endpoint, first_id, count, last_at) VALUES (?, ?, 1, ?) ON CONFLICT (endpoint) DO UPDATE SET count = missed.count + 1, last_at = excluded.last_at",
                    &delivery.endpoint,
                    &delivery.event_id,
                    delivery.updated_at.timestamp_millis(),
                );
                transaction.conn().execute(&sql).await?;
                save(transaction, &[delivery]).await
            }
            Self::ReportMissed(report) => {
                // Read the count in the same transaction, so that events missed since the decision to report are
                // included.
                let sql = sql!(
                    "DELETE FROM missed WHERE endpoint = ? RETURNING count",
                    &report.endpoint
                );
                let Some(row) = transaction.conn().first(&sql).await? else {
                    return Ok(0);
                };
                let mut report = report.clone();
                report.body = row.get::<i64>("count")?.to_string().into();
                save(transaction, &[&report]).await
            }
            Self::Change { statements, .. } => {
                let mut rows = 0;
                for sql in statements {
                    rows += transaction.conn().execute(sql).await?;
                }
                Ok(rows)
            }
            Self::Redeliver {
                letters, progress, ..
            } => {
                let queued = transaction.conn().execute(letters).await?;
                transaction.conn().execute(&progress(queued)).await?;
                Ok(queued)
            }
            Self::SaveCursor(row) => cursor_rows::save(transaction, std::slice::from_ref(row))
                .await
                .map(|()| 1),
            Self::Announced(keys) => outbox::note(transaction, keys).await,
        }
    }
}

/// # Errors
/// Each fails if the database write fails, or another dispatcher holds the lease.
impl Store {
    /// Stores the current state of a delivery. Returns once it is on disk.
    pub async fn save(&self, epoch: i64, delivery: Delivery) -> Result<(), Error> {
        let command = Command::Save(Box::new(delivery));
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    /// Stores an expired delivery and counts it for the endpoint's summary of missed events.
    pub async fn save_missed(&self, epoch: i64, delivery: Delivery) -> Result<(), Error> {
        let command = Command::SaveMissed(Box::new(delivery));
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    /// Queues a summary of missed events and resets the count.
    pub async fn report_missed(&self, epoch: i64, report: Delivery) -> Result<(), Error> {
        let command = Command::ReportMissed(Box::new(report));
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    async fn change_rows(
        &self,
        epoch: i64,
        endpoint: &str,
        statements: Vec<Sql>,
    ) -> Result<u64, Error> {
        let endpoint = Some(endpoint.to_owned());
        let command = Command::Change {
            endpoint,
            statements,
        };
        self.writer.write(Some(epoch), command).await
    }

    /// Adds a cost to the delivery that waits for it, and makes it due, or to the notice with the key `notice`, which waits for something
    /// else. Returns true if there was one.
    pub async fn join_cost(
        &self,
        epoch: i64,
        endpoint: &str,
        (pair, notice): (String, Option<String>),
        cost: Vec<u8>,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let pairs: Vec<String> = notice.into_iter().chain([pair.clone()]).collect();
        // The `+` stops SQLite from scanning all waiting deliveries.
        let sql = sql!(
            "UPDATE deliveries SET cost = ?, next_at = CASE WHEN pair = ? THEN ? ELSE next_at END, pair = NULLIF(pair, ?) WHERE endpoint = ? AND pair IN ? AND {+|}state = 'waiting' AND attempts = 0",
            cost.as_slice(),
            &pair,
            now.timestamp_millis(),
            &pair,
            endpoint,
            pairs,
        );
        Ok(self.change_rows(epoch, endpoint, vec![sql]).await? > 0)
    }

    /// Replaces the event of the notice that waits under this key. It is due at this time, or once the cost with the key `pair` arrives.
    /// Returns true if there was one.
    pub async fn complete_notice(
        &self,
        epoch: i64,
        endpoint: &str,
        key: &str,
        body: &[u8],
        (due, pair): (DateTime<Utc>, Option<String>),
    ) -> Result<bool, Error> {
        // The `+` stops SQLite from scanning all waiting deliveries.
        let sql = sql!(
            "UPDATE deliveries SET body = ?, next_at = ?, pair = ? WHERE endpoint = ? AND pair = ? AND {+|}state = 'waiting' AND attempts = 0",
            body,
            due.timestamp_millis(),
            pair.as_deref(),
            endpoint,
            key,
        );
        Ok(self.change_rows(epoch, endpoint, vec![sql]).await? > 0)
    }

    /// Expires deliveries that wait under these keys and are no longer needed. Returns their number.
    pub async fn drop_waiting(
        &self,
        epoch: i64,
        endpoint: &str,
        pairs: Vec<String>,
        reason: &'static str,
        now: DateTime<Utc>,
    ) -> Result<u64, Error> {
        // The `+` stops SQLite from scanning all waiting deliveries.
        let sql = sql!(
            "UPDATE deliveries SET state = 'expired', cause = '', error = ?, pair = NULL, next_at = NULL, body = NULL, cost = NULL, updated_at = ? WHERE endpoint = ? AND pair IN ? AND {+|}state = 'waiting'",
            reason,
            now.timestamp_millis(),
            endpoint,
            pairs,
        );
        self.change_rows(epoch, endpoint, vec![sql]).await
    }

    /// Updates provider state of an endpoint. `None` removes a key.
    pub async fn store_provider_state(
        &self,
        epoch: i64,
        endpoint: &str,
        updates: Vec<(String, Option<String>)>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let statements = updates
            .iter()
            .map(|(key, value)| provider_state_statement(endpoint, now, key, value.as_deref()));
        let changed = self
            .change_rows(epoch, endpoint, statements.collect())
            .await;
        changed.map(drop)
    }

    /// Ends the waiting deliveries of a removed endpoint, in batches, until none is left or it is stopped. Returns
    /// their number.
    pub async fn end(
        &self,
        epoch: i64,
        endpoint: &str,
        now: DateTime<Utc>,
        stop: &CancellationToken,
    ) -> Result<u64, Error> {
        let sql = sql!(
            "UPDATE deliveries SET state = 'dead', cause = 'removed', error = ltrim(error || ' (the endpoint was removed)'), next_at = NULL, pair = NULL, updated_at = ?",
            now.timestamp_millis(),
        );
        let waits = "endpoint = ? AND state = 'waiting'";
        let sql = piece(sql, "deliveries", waits, [endpoint.into()]);
        let mut ended = 0;
        while !stop.is_cancelled() {
            match self.change_rows(epoch, endpoint, vec![sql.clone()]).await? {
                0 => break,
                some => ended += some,
            }
        }
        Ok(ended)
    }

    /// Makes waiting deliveries due that were scheduled by a clock ahead of this one. Returns their number.
    pub async fn replan(
        &self,
        epoch: i64,
        endpoint: &str,
        now: DateTime<Utc>,
    ) -> Result<u64, Error> {
        let latest = (now + MAX_DRIFT).timestamp_millis();
        let now = now.timestamp_millis();
        let sql = sql!(
            "UPDATE deliveries SET next_at = ?, updated_at = ?, began_at = {MIN|LEAST}(began_at, ?), created_at = {MIN|LEAST}(created_at, ?) WHERE endpoint = ? AND state = 'waiting' AND next_at > ? AND updated_at > ?",
            now,
            now,
            now,
            now,
            endpoint,
            now,
            latest,
        );
        self.change_rows(epoch, endpoint, vec![sql]).await
    }

    /// Marks outcomes as published.
    pub async fn mark_published(&self, keys: Vec<outbox::Key>) -> Result<(), Error> {
        let command = Command::Announced(keys);
        self.writer.write(None, command).await.map(drop)
    }
}
