//! Deletes old rows and the rows of removed endpoints, in batches with a transaction each. Writes of deliveries run
//! in between and wait for at most one batch.

use std::time::Duration;

use chrono::{DateTime, Utc};
use event_message::schedule::MAX_DRIFT;
use mesh_db::pool::WriteTransaction;
use mesh_db::sql;
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

/// Tables whose rows age, with the columns of their times and the conditions for rows that may be deleted.
const AGEING: [(&str, &str, &str); 4] = [
    ("kept", "updated_at", ""),
    ("attempts", "at", ""),
    ("redeliveries", "updated_at", "state <> 'running' AND "),
    // Matches the index.
    (
        "deliveries",
        "updated_at",
        "state <> 'waiting' AND announced = 1 AND ",
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
        let sql = sql!(concat!("SELECT ", now!(), " AS now"));
        let now = self.first(action, &sql, |row| row.get("now").map(time));
        Ok(now.await?.unwrap_or_default())
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
        let action = "correct times of outcomes";
        for (table, column, condition) in AGEING {
            let sql = Sql::new("UPDATE ").push(table).push(" SET ").push(column);
            let sql = sql.append(" = ?", [now.timestamp_millis().into()]);
            let latest = (now + MAX_DRIFT).timestamp_millis();
            let future = Sql::new(condition).push(column).push(" > ").bind(latest);
            let sql = piece(sql, table, future);
            corrected += self.in_pieces(action, &sql, stop).await?;
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
        for (table, column, condition) in AGEING {
            let before = before.timestamp_millis();
            let old = Sql::new(condition).push(column).push(" < ").bind(before);
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
            let own = sql!(
                "endpoint = ? AND EXISTS (SELECT 1 FROM endpoints WHERE state = 'removed' AND name = ?) AND EXISTS (SELECT 1 FROM leases WHERE endpoint = ? AND epoch = ?)",
                name,
                name,
                name,
                epoch,
            );
            let sql = piece(delete(table), table, own);
            self.in_pieces(action, &sql, stop).await?;
        }
        if stop.is_cancelled() {
            return Ok(false);
        }
        let erase = async |transaction: &mut WriteTransaction| {
            let ours = sql!(
                "SELECT epoch FROM leases WHERE endpoint = ? AND epoch = ?{| FOR SHARE}",
                name,
                epoch,
            );
            let removed = sql!(
                "DELETE FROM endpoints WHERE state = 'removed' AND name = ?",
                name
            );
            if transaction.conn().first(&ours).await?.is_none()
                || transaction.conn().execute(&removed).await? == 0
            {
                return Ok(false);
            }
            // Rows that were written in the meantime.
            for table in OWN {
                let sql = delete(table).append(" WHERE endpoint = ?", [name.into()]);
                transaction.conn().execute(&sql).await?;
            }
            Ok(true)
        };
        let is_erased = self.database.write(action, erase).await?;
        if is_erased {
            self.changed();
        }
        Ok(is_erased)
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
pub(super) fn piece(sql: Sql, table: &'static str, condition: Sql) -> Sql {
    let sql = sql.append(
        " WHERE {rowid IN (SELECT rowid FROM |ctid = ANY(ARRAY(SELECT ctid FROM }",
        [],
    );
    let sql = sql.push(table).push(" WHERE ").followed_by(condition);
    let end = " LIMIT ?{)| FOR UPDATE SKIP LOCKED))}";
    sql.append(end, [ROWS_PER_DELETE.into()])
}

fn delete(table: &'static str) -> Sql {
    Sql::new("DELETE FROM ").push(table)
}
