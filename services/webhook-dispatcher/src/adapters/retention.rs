//! What is old, or of an endpoint that is removed, is forgotten a piece at a time, each in a transaction of its own: deliveries are written
//! in between, and none of them waits for more than one piece.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_db::pool::Access;
use mesh_db::sql::Sql;
use tokio_util::sync::CancellationToken;

use super::delivery::time;
use super::replicas::now;
use super::store::Store;
use crate::domain::clock::MAX_DRIFT;
use crate::error::Error;

/// Rows of a piece: some ten milliseconds.
const ROWS_PER_DELETE: i64 = 1_000;
/// Between two pieces.
const DELETE_PAUSE: Duration = Duration::from_millis(20);

/// Where old rows are, and which they are: what comes next is the time before which they are old.
const OLD: [(&str, &str); 4] = [
    ("kept", "updated_at < "),
    ("attempts", "at < "),
    ("redeliveries", "state <> 'running' AND updated_at < "),
    // As the index has it.
    (
        "deliveries",
        "state <> 'waiting' AND announced = 1 AND updated_at < ",
    ),
];

/// When rows were written, and which of them are looked at: what comes next is the time after which they cannot be.
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

/// Where rows of an endpoint are.
const OWN: [&str; 5] = ["deliveries", "missed", "attempts", "redeliveries", "kept"];

impl Store {
    /// What time it is by the database's clock: the same for all dispatchers, and mostly not that of this host where it has a server.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn clock(&self) -> Result<DateTime<Utc>, Error> {
        let action = "read the clock";
        let sql = now(Sql::new("SELECT ")).push(" AS now");
        let row = self.first(action, &sql).await?;
        let millis = row.map(|row| row.get::<i64>("now")).transpose();
        let millis = millis.map_err(Error::database(action))?;
        Ok(time(millis.unwrap_or_default()))
    }

    /// What was written at a time that has not come yet, by a clock that ran ahead, was written now: else it would be kept until then.
    ///
    /// # Errors
    /// If the database does not write.
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

    /// Forgets outcomes older than this, until nothing is left or it is told to stop; returns how many.
    ///
    /// # Errors
    /// If the database does not write.
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

    /// Forgets an endpoint that is removed, with everything that is kept of it. Only its lease stays, so that the next of its name gets
    /// a higher epoch. False if it is not removed, or not ours; or if it was told to stop, and something is left.
    ///
    /// # Errors
    /// If the database does not write.
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
            let mut connection = self.database.writer.acquire().await?;
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
            // What came meanwhile.
            for table in OWN {
                let sql = delete(table).push(" WHERE endpoint = ").bind(name);
                transaction.conn().execute(&sql).await?;
            }
            transaction.commit().await?;
            Ok(true)
        };
        erase.await.map_err(Error::database(action))
    }

    /// Performs a statement about a piece until nothing is left; returns about how many rows it was.
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

/// Goes on with some rows of a table, of those that are named. Dispatchers that do the same at a time do not wait for each other.
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
