//! Deletes old rows and the rows of removed endpoints, in batches with a transaction each. Writes of deliveries run
//! in between and wait for at most one batch.

use std::time::Duration;

use chrono::{DateTime, Utc};
use event_message::schedule::MAX_DRIFT;
use mesh_db::pool::Access;
use mesh_db::sql::Sql;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::store::Store;
use crate::store::delivery::time;
use crate::store::replicas::now;

/// Rows per batch: about ten milliseconds.
const ROWS_PER_DELETE: i64 = 1_000;
/// Pause between batches.
const DELETE_PAUSE: Duration = Duration::from_millis(20);

/// Tables with conditions for old rows. The cut-off time is appended.
const OLD: [(&str, &str); 4] = [
    ("kept", "updated_at < "),
    ("attempts", "at < "),
    ("redeliveries", "state <> 'running' AND updated_at < "),
    // Matches the index.
    (
        "deliveries",
        "state <> 'waiting' AND announced = 1 AND updated_at < ",
    ),
];

/// Tables with time columns and conditions for future timestamps. The latest plausible time is appended.
const FUTURE: [(&str, &str, &str); 4] = [
    ("kept", "updated_at", "updated_at > "),
    ("attempts", "at", "at > "),
    (
        "redeliveries",
        "updated_at",
        "state <> 'running' AND updated_at > ",
    ),
    (
        "deliveries",
        "updated_at",
        "state <> 'waiting' AND announced = 1 AND updated_at > ",
    ),
];

/// Tables with rows of an endpoint.
const OWN: [&str; 6] = [
    "deliveries",
    "missed",
    "attempts",
    "redeliveries",
    "kept",
    "cursors",
];

impl Store {
    /// Current time of the database's clock. All dispatchers share it; with a database server it is usually not this
    /// host's clock.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn clock(&self) -> Result<DateTime<Utc>, Error> {
        let action = "read the clock";
        let sql = now(Sql::new("SELECT ")).push(" AS now");
        let row = self.first(action, &sql).await?;
        let millis = row.map(|row| row.get::<i64>("now")).transpose();
        let millis = millis.map_err(Error::database(action))?;
        Ok(time(millis.unwrap_or_default()))
    }

    /// Sets timestamps that lie in the future to now. They were written by a clock that was ahead, and their rows
    /// would otherwise be stored until then.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn correct_future(
        &self,
        now: DateTime<Utc>,
        stop: &CancellationToken,
    ) -> Result<u64, Error> {
        let mut corrected = 0;
        for (table, column, future) in FUTURE {
            let sql = Sql::new("UPDATE ")
                .push(table)
                .push(" SET ")
                .push(column)
                .push(" = ")
                .bind(now.timestamp_millis());
            let latest = (now + MAX_DRIFT).timestamp_millis();
            let future = |sql: Sql| sql.push(future).bind(latest);
            let sql = piece(sql, table, future);
            corrected += self
                .in_pieces("correct times of outcomes", &sql, stop)
                .await?;
        }
        Ok(corrected)
    }

    /// Deletes outcomes older than `before`, until none is left or it is stopped. Returns their number.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn forget(
        &self,
        before: DateTime<Utc>,
        stop: &CancellationToken,
    ) -> Result<u64, Error> {
        let mut deliveries = 0;
        for (table, old) in OLD {
            let old = |sql: Sql| sql.push(old).bind(before.timestamp_millis());
            let sql = piece(delete(table), table, old);
            let forgotten = self.in_pieces("forget old outcomes", &sql, stop).await?;
            if table == "deliveries" {
                deliveries = forgotten;
            }
        }
        Ok(deliveries)
    }

    /// Deletes a removed endpoint and all its rows. Only the lease stays, so that a new endpoint of the same name
    /// gets a higher epoch. Returns false if the endpoint is not removed, if another dispatcher holds its lease, or
    /// if it was stopped before the end.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn erase(
        &self,
        name: &str,
        epoch: i64,
        stop: &CancellationToken,
    ) -> Result<bool, Error> {
        let action = "erase endpoint";
        for table in OWN {
            let own = |sql: Sql| {
                sql.push("endpoint = ")
                    .bind(name)
                    .push(
                        " AND EXISTS (SELECT 1 FROM endpoints WHERE state = 'removed' AND name = ",
                    )
                    .bind(name)
                    .push(") AND EXISTS (SELECT 1 FROM leases WHERE endpoint = ")
                    .bind(name)
                    .push(" AND epoch = ")
                    .bind(epoch)
                    .push(")")
            };
            let sql = piece(delete(table), table, own);
            self.in_pieces(action, &sql, stop).await?;
        }
        if stop.is_cancelled() {
            return Ok(false);
        }
        let erase = async {
            let mut connection = self.database.inner.writer.acquire().await?;
            let mut transaction = connection.begin(Access::Write).await?;
            let ours = Sql::new("SELECT epoch FROM leases WHERE endpoint = ")
                .bind(name)
                .push(" AND epoch = ")
                .bind(epoch)
                .either("", " FOR SHARE");
            let removed =
                Sql::new("DELETE FROM endpoints WHERE state = 'removed' AND name = ").bind(name);
            if transaction.conn().first(&ours).await?.is_none()
                || transaction.conn().execute(&removed).await? == 0
            {
                return Ok(false);
            }
            // Rows that were written in the meantime.
            for table in OWN {
                let sql = delete(table).push(" WHERE endpoint = ").bind(name);
                transaction.conn().execute(&sql).await?;
            }
            transaction.commit().await?;
            self.changed();
            Ok(true)
        };
        erase.await.map_err(Error::database(action))
    }

    /// Repeats a batched statement until no row is left. Returns the approximate number of rows.
    async fn in_pieces(
        &self,
        action: &'static str,
        sql: &Sql,
        stop: &CancellationToken,
    ) -> Result<u64, Error> {
        let mut rows = 0;
        while !stop.is_cancelled() {
            match self.run(action, sql).await? {
                0 => break,
                some => rows += some,
            }
            tokio::time::sleep(DELETE_PAUSE).await;
        }
        Ok(rows)
    }
}

/// Limits a statement to one batch of the matching rows. Concurrent dispatchers skip each other's locked rows.
pub(super) fn piece(sql: Sql, table: &'static str, which: impl FnOnce(Sql) -> Sql) -> Sql {
    let sql = sql
        .either(
            " WHERE rowid IN (SELECT rowid FROM ",
            " WHERE ctid = ANY(ARRAY(SELECT ctid FROM ",
        )
        .push(table)
        .push(" WHERE ");
    which(sql)
        .push(" LIMIT ")
        .bind(ROWS_PER_DELETE)
        .either(")", " FOR UPDATE SKIP LOCKED))")
}

fn delete(table: &'static str) -> Sql {
    Sql::new("DELETE FROM ").push(table)
}
