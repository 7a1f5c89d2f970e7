//! The rows of one endpoint, as the holder of its lease reads and changes them.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use event_message::schedule::MAX_DRIFT;
use mesh_db::sql;
use mesh_db::sql::{Row, Sql};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::store::Store;
use crate::store::delivery::time;
use crate::store::retention::piece;
use crate::store::saves::provider_state_statement;
use crate::store::writer::Command;

/// The rows of an endpoint.
#[derive(Clone, Copy)]
pub struct EndpointRows<'a> {
    /// The database.
    pub store: &'a Store,
    /// Name of the endpoint.
    pub endpoint: &'a str,
    /// Epoch of the lease that writes require.
    pub epoch: i64,
}

/// # Errors
/// Each fails if the database read fails.
impl EndpointRows<'_> {
    /// Ids of due deliveries, longest waiting first.
    pub async fn due(self, now: DateTime<Utc>, max: usize) -> Result<Vec<String>, Error> {
        let sql = sql!(
            "SELECT event_id FROM deliveries WHERE endpoint = ? AND state = 'waiting' AND next_at <= ? ORDER BY next_at, stream_sequence LIMIT ?",
            self.endpoint,
            now.timestamp_millis(),
            i64::try_from(max).unwrap_or(i64::MAX),
        );
        let read = |row: &Row| row.get("event_id");
        self.store.query("read due deliveries", &sql, read).await
    }

    /// Due time of the next delivery after `now`.
    pub async fn next_due(self, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, Error> {
        let sql = sql!(
            "SELECT MIN(next_at) AS next FROM deliveries WHERE endpoint = ? AND state = 'waiting' AND next_at > ?",
            self.endpoint,
            now.timestamp_millis(),
        );
        let read = |row: &Row| row.get::<Option<i64>>("next");
        let next = self.store.first("read due deliveries", &sql, read);
        Ok(next.await?.flatten().map(time))
    }

    /// Missed events that were not reported yet: id of the first one, and time of the last one.
    pub async fn missed(self) -> Result<Option<(String, DateTime<Utc>)>, Error> {
        let sql = sql!(
            "SELECT first_id, last_at FROM missed WHERE endpoint = ?",
            self.endpoint
        );
        let read = |row: &Row| Ok((row.get("first_id")?, time(row.get("last_at")?)));
        self.store.first("read missed events", &sql, read).await
    }

    /// Stored state under a key.
    pub async fn provider_state(self, key: &str) -> Result<Option<String>, Error> {
        let mut state = self.provider_states(vec![key.to_owned()]).await?;
        Ok(state.remove(key))
    }

    /// Stored state under these keys.
    pub async fn provider_states(
        self,
        keys: Vec<String>,
    ) -> Result<BTreeMap<String, String>, Error> {
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let condition = sql!("key IN ?", keys);
        self.provider_states_where(condition).await
    }

    /// Stored state under keys that begin with this prefix and a slash.
    pub async fn provider_states_below(
        self,
        word: &str,
    ) -> Result<BTreeMap<String, String>, Error> {
        let condition = sql!("key LIKE ?", &format!("{word}/%"));
        self.provider_states_where(condition).await
    }

    async fn provider_states_where(self, keys: Sql) -> Result<BTreeMap<String, String>, Error> {
        let sql = sql!(
            "SELECT key, value FROM kept WHERE endpoint = ? AND ",
            self.endpoint
        );
        let read = |row: &Row| Ok((row.get("key")?, row.get("value")?));
        let sql = sql.followed_by(keys);
        self.store.query("read provider state", &sql, read).await
    }
}

/// # Errors
/// Each fails if the database write fails, or another dispatcher holds the lease.
impl EndpointRows<'_> {
    /// Updates provider state. `None` removes a key.
    pub async fn store_provider_state(
        self,
        updates: Vec<(String, Option<String>)>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let statements = updates.iter().map(|(key, value)| {
            provider_state_statement(self.endpoint, now, key, value.as_deref())
        });
        self.change(statements.collect()).await.map(drop)
    }

    /// Executes statements in one transaction. Returns the number of rows.
    pub(super) async fn change(self, statements: Vec<Sql>) -> Result<u64, Error> {
        let command = Command::Change {
            endpoint: Some(self.endpoint.to_owned()),
            statements,
        };
        self.store.writer.write(Some(self.epoch), command).await
    }

    /// Adds a cost to the delivery that waits for it, and makes it due, or to the notice with the key `notice`, which waits for something
    /// else. Returns true if there was one.
    pub async fn join_cost(
        self,
        pair: &str,
        notice: Option<String>,
        cost: &[u8],
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let pairs: Vec<String> = notice.into_iter().chain([pair.to_owned()]).collect();
        // The `+` stops SQLite from scanning all waiting deliveries.
        let sql = sql!(
            "UPDATE deliveries SET cost = ?, next_at = CASE WHEN pair = ? THEN ? ELSE next_at END, pair = NULLIF(pair, ?) WHERE endpoint = ? AND pair IN ? AND {+|}state = 'waiting' AND attempts = 0",
            cost,
            pair,
            now.timestamp_millis(),
            pair,
            self.endpoint,
            pairs,
        );
        Ok(self.change(vec![sql]).await? > 0)
    }

    /// Replaces the event of the notice that waits under this key. It is due at this time, or once the cost with the key `pair` arrives.
    /// Returns true if there was one.
    pub async fn complete_notice(
        self,
        key: &str,
        body: &[u8],
        due: DateTime<Utc>,
        pair: Option<&str>,
    ) -> Result<bool, Error> {
        // The `+` stops SQLite from scanning all waiting deliveries.
        let sql = sql!(
            "UPDATE deliveries SET body = ?, next_at = ?, pair = ? WHERE endpoint = ? AND pair = ? AND {+|}state = 'waiting' AND attempts = 0",
            body,
            due.timestamp_millis(),
            pair,
            self.endpoint,
            key,
        );
        Ok(self.change(vec![sql]).await? > 0)
    }

    /// Expires deliveries that wait under these keys and are no longer needed. Returns their number.
    pub async fn drop_waiting(
        self,
        pairs: Vec<String>,
        reason: &'static str,
        now: DateTime<Utc>,
    ) -> Result<u64, Error> {
        // The `+` stops SQLite from scanning all waiting deliveries.
        let sql = sql!(
            "UPDATE deliveries SET state = 'expired', cause = '', error = ?, pair = NULL, next_at = NULL, body = NULL, cost = NULL, updated_at = ? WHERE endpoint = ? AND pair IN ? AND {+|}state = 'waiting'",
            reason,
            now.timestamp_millis(),
            self.endpoint,
            pairs,
        );
        self.change(vec![sql]).await
    }

    /// Ends the waiting deliveries of a removed endpoint, in batches, until none is left or it is stopped. Returns
    /// their number.
    pub async fn end(self, now: DateTime<Utc>, stop: &CancellationToken) -> Result<u64, Error> {
        let sql = sql!(
            "UPDATE deliveries SET state = 'dead', cause = 'removed', error = ltrim(error || ' (the endpoint was removed)'), next_at = NULL, pair = NULL, updated_at = ?",
            now.timestamp_millis(),
        );
        let waits = sql!("endpoint = ? AND state = 'waiting'", self.endpoint);
        let sql = piece(sql, "deliveries", waits);
        let mut ended = 0;
        while !stop.is_cancelled() {
            match self.change(vec![sql.clone()]).await? {
                0 => break,
                some => ended += some,
            }
        }
        Ok(ended)
    }

    /// Makes waiting deliveries due that were scheduled by a clock ahead of this one. Returns their number.
    pub async fn replan(self, now: DateTime<Utc>) -> Result<u64, Error> {
        let latest = (now + MAX_DRIFT).timestamp_millis();
        let now = now.timestamp_millis();
        let sql = sql!(
            "UPDATE deliveries SET next_at = ?, updated_at = ?, began_at = {MIN|LEAST}(began_at, ?), created_at = {MIN|LEAST}(created_at, ?) WHERE endpoint = ? AND state = 'waiting' AND next_at > ? AND updated_at > ?",
            now,
            now,
            now,
            now,
            self.endpoint,
            now,
            latest,
        );
        self.change(vec![sql]).await
    }
}
