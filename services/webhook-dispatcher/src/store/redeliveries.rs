//! The table of redelivery jobs.

use audit_outbox::AuditRow;
use chrono::{DateTime, Utc};
use mesh_db::sql;
use mesh_db::sql::{Row, Sql};
use mesh_runtime::time_bound;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::attempt::cause::Cause;
use crate::error::Error;
use crate::store::Store;
use crate::store::delivery::{State, beyond, place, time};
use crate::store::delivery_position::DeliveryPosition;
use crate::store::writer::Command;

/// Selects deliveries. Every condition that is set must hold.
#[derive(Clone, Debug, Default)]
pub struct DeliverySelection {
    /// State of the delivery.
    pub state: Option<State>,
    /// Event type, or `job.*` for a whole category.
    pub kind: Option<String>,
    /// Cause of the last failed attempt.
    pub cause: Option<Cause>,
    /// Changed at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// Changed before this time.
    pub until: Option<DateTime<Utc>>,
}

impl DeliverySelection {
    /// Adds the conditions to a statement.
    pub(super) fn narrow(&self, mut sql: Sql) -> Sql {
        if let Some(state) = self.state {
            sql = sql.append(" AND state = ?", [state.as_str().into()]);
        }
        match self.kind.as_deref() {
            None | Some("*") => {}
            Some(kind) => match kind.strip_suffix('*') {
                Some(prefix) => {
                    let length = i64::try_from(prefix.len()).unwrap_or(i64::MAX);
                    let begins = " AND substr(event_type, 1, ?{|::int}) = ?";
                    sql = sql.append(begins, [length.into(), prefix.into()]);
                }
                None => sql = sql.append(" AND event_type = ?", [kind.into()]),
            },
        }
        if let Some(cause) = self.cause {
            sql = sql.append(" AND cause = ?", [cause.as_str().into()]);
        }
        if let Some(since) = self.since {
            sql = sql.append(" AND updated_at >= ?", [since.timestamp_millis().into()]);
        }
        if let Some(until) = self.until {
            sql = sql.append(" AND updated_at < ?", [until.timestamp_millis().into()]);
        }
        sql
    }
}

/// Selects the dead letters to redeliver: either by `ids`, or by `all` or at least one filter (`type`, `cause`,
/// `since`, `until`). All filters that are given must match.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RedeliverRequest {
    /// Ids of events, at most 1,000. Excludes `all` and the filters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Selects all dead letters that the given filters do not exclude. Default: false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Event type, such as `job.failed`; `job.*` matches a whole category.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Cause of the last failed attempt, such as `refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Became a dead letter at or after this time: RFC 3339, or a duration before now such as `2h`.
    #[serde(
        deserialize_with = "time_bound::deserialize",
        skip_serializing_if = "Option::is_none"
    )]
    pub since: Option<DateTime<Utc>>,
    /// Became a dead letter before this time; same formats as `since`.
    #[serde(
        deserialize_with = "time_bound::deserialize",
        skip_serializing_if = "Option::is_none"
    )]
    pub until: Option<DateTime<Utc>>,
    /// Maximum redeliveries per second, 1 to 1,000. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub rate: Option<u32>,
}

/// A redelivery job.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Redelivery)]
pub struct RedeliveryJob {
    /// Id of the job.
    pub id: String,
    /// Full name of the webhook.
    pub webhook: String,
    /// The request that started it.
    pub filter: RedeliverRequest,
    /// `running` or `done`.
    pub state: String,
    /// Number of deliveries queued again so far.
    pub queued: u64,
    /// Caller who started it.
    pub by: String,
    /// When it was started.
    pub created_at: DateTime<Utc>,
    /// When it last made progress.
    pub updated_at: DateTime<Utc>,
    /// The [`DeliveryPosition`] of the last delivery read; empty if none was read.
    #[serde(skip)]
    pub cursor: String,
}

impl Store {
    /// Starts a redelivery job. Returns false if the endpoint already has `most` running jobs.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn redeliver(
        &self,
        job: &RedeliveryJob,
        max: i64,
        act: AuditRow,
    ) -> Result<bool, Error> {
        let now = job.created_at.timestamp_millis();
        let filter = serde_json::to_string(&job.filter).unwrap_or_default();
        let sql = sql!(
            "INSERT INTO redeliveries (id, endpoint, filter, state, by, created_at, updated_at) SELECT ?, ?, ?, 'running', ?, ?, ? WHERE (SELECT COUNT(*) FROM redeliveries WHERE state = 'running' AND endpoint = ?) < ?",
            &job.id,
            &job.webhook,
            &filter,
            &job.by,
            now,
            now,
            &job.webhook,
            max,
        );
        self.act("store redelivery", &sql, Some(act)).await
    }

    /// Redelivery jobs of an endpoint, newest first.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn redeliveries(&self, endpoint: &str) -> Result<Vec<RedeliveryJob>, Error> {
        let sql = sql!(
            "SELECT * FROM redeliveries WHERE endpoint = ? ORDER BY created_at DESC, id LIMIT 100",
            endpoint,
        );
        self.query("read redeliveries", &sql, read).await
    }

    /// Endpoints with running redelivery jobs.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn with_redeliveries(&self) -> Result<Vec<String>, Error> {
        let action = "read redeliveries";
        let sql = sql!("SELECT DISTINCT endpoint FROM redeliveries WHERE state = 'running'");
        self.query(action, &sql, |row| row.get("endpoint")).await
    }

    /// The oldest running redelivery job of an endpoint.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn next_redelivery(&self, endpoint: &str) -> Result<Option<RedeliveryJob>, Error> {
        let sql = sql!(
            "SELECT * FROM redeliveries WHERE state = 'running' AND endpoint = ? ORDER BY created_at, id LIMIT 1",
            endpoint,
        );
        self.first("read redeliveries", &sql, read).await
    }

    /// The next dead letters of a job, oldest first, each with a flag that says whether its outcome was published.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn dead_after(
        &self,
        job: &RedeliveryJob,
        max: u32,
    ) -> Result<Vec<(DeliveryPosition, bool)>, Error> {
        let action = "read dead letters";
        let mut sql = sql!(
            "SELECT created_at, stream_sequence, event_id, announced FROM deliveries WHERE endpoint = ?",
            &job.webhook,
        );
        if let Some(place) = DeliveryPosition::parse(&job.cursor) {
            sql = beyond(sql, ">", &place);
        }
        let again = &job.filter;
        sql = if again.ids.is_empty() {
            sql.push(" AND state = 'dead'")
        } else {
            // The `+` stops SQLite from scanning all dead letters instead of looking up the ids.
            let named = " AND event_id IN ? AND {+|}state = 'dead'";
            sql.append(named, [again.ids.clone().into()])
        };
        let until = again
            .until
            .unwrap_or(DateTime::<Utc>::MAX_UTC)
            .min(job.created_at + chrono::TimeDelta::milliseconds(1));
        let wanted = DeliverySelection {
            state: None,
            kind: again.kind.clone(),
            cause: again.cause.as_deref().and_then(Cause::parse),
            since: again.since,
            // A delivery that fails during the job is not redelivered once more by it.
            until: again.ids.is_empty().then_some(until),
        };
        let order = " ORDER BY created_at, stream_sequence, event_id LIMIT ?";
        let sql = wanted.narrow(sql).append(order, [max.into()]);
        self.query(action, &sql, |row| {
            Ok((place(row)?, row.get::<i64>("announced")? == 1))
        })
        .await
    }

    /// Puts dead letters back into the queue and stores the job's progress. Returns their number.
    ///
    /// # Errors
    /// If the database write fails, or another dispatcher holds the lease.
    pub async fn begin_again(
        &self,
        epoch: i64,
        job: &RedeliveryJob,
        places: Vec<DeliveryPosition>,
        done: bool,
        now: DateTime<Utc>,
    ) -> Result<u64, Error> {
        let (id, now) = (job.id.clone(), now.timestamp_millis());
        let last = places.last().map(DeliveryPosition::cursor);
        let cursor = last.unwrap_or_else(|| job.cursor.clone());
        let ids: Vec<String> = places.into_iter().map(|place| place.event_id).collect();
        // Skip outcomes that are not published yet: this update would lose them. Without a body after a recovery from
        // the audit. The `+` stops SQLite from scanning all dead letters.
        let letters = sql!(
            "UPDATE deliveries SET state = 'waiting', attempts = 0, announced = 0, round = round + 1, next_at = ?, began_at = ?, updated_at = ? WHERE {+|}state = 'dead' AND announced = 1 AND body IS NOT NULL AND endpoint = ? AND event_id IN ?",
            now,
            now,
            now,
            &job.webhook,
            ids,
        );
        let progress = move |queued: u64| {
            sql!(
                "UPDATE redeliveries SET queued = queued + ?, cursor = ?, state = ?, updated_at = ? WHERE id = ?",
                queued.cast_signed(),
                &cursor,
                if done { "done" } else { "running" },
                now,
                &id,
            )
        };
        let command = Command::Redeliver {
            endpoint: job.webhook.clone(),
            letters,
            progress: Box::new(progress),
        };
        self.writer.write(Some(epoch), command).await
    }
}

fn read(row: &Row) -> Result<RedeliveryJob, sqlx::Error> {
    Ok(RedeliveryJob {
        id: row.get("id")?,
        webhook: row.get("endpoint")?,
        // Filters written by an older version are readable. An unreadable one selects nothing.
        filter: serde_json::from_str(&row.get::<String>("filter")?).unwrap_or_default(),
        state: row.get("state")?,
        queued: row.get::<i64>("queued")?.unsigned_abs(),
        by: row.get("by")?,
        created_at: time(row.get("created_at")?),
        updated_at: time(row.get("updated_at")?),
        cursor: row.get("cursor")?,
    })
}
