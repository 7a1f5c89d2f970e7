//! The table of redelivery jobs.

use chrono::{DateTime, Utc};
use mesh_db::sql::{Row, Sql};
use mesh_runtime::time_bound;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::attempt::cause::Cause;
use crate::error::Error;
use crate::store::Store;
use crate::store::delivery::{State, beyond, place, time};
use crate::store::delivery_position::DeliveryPosition;
use crate::store::endpoints::Act;
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
            sql = sql.push(" AND state = ").bind(state.as_str());
        }
        match self.kind.as_deref() {
            None | Some("*") => {}
            Some(kind) => match kind.strip_suffix('*') {
                Some(prefix) => {
                    let length = i64::try_from(prefix.len()).unwrap_or(i64::MAX);
                    sql = sql
                        .push(" AND substr(event_type, 1, ")
                        .bind(length)
                        .either(") = ", "::int) = ")
                        .bind(prefix);
                }
                None => sql = sql.push(" AND event_type = ").bind(kind),
            },
        }
        if let Some(cause) = self.cause {
            sql = sql.push(" AND cause = ").bind(cause.as_str());
        }
        if let Some(since) = self.since {
            sql = sql
                .push(" AND updated_at >= ")
                .bind(since.timestamp_millis());
        }
        if let Some(until) = self.until {
            sql = sql
                .push(" AND updated_at < ")
                .bind(until.timestamp_millis());
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
    pub async fn redeliver(&self, job: &RedeliveryJob, max: i64, act: Act) -> Result<bool, Error> {
        let now = job.created_at.timestamp_millis();
        let filter = serde_json::to_string(&job.filter).unwrap_or_default();
        let sql = Sql::new(
            "INSERT INTO redeliveries (id, endpoint, filter, state, by, created_at, updated_at) SELECT ",
        )
        .bind(&job.id)
        .push(", ")
        .bind(&job.webhook)
        .push(", ")
        .bind(&filter)
        .push(", 'running', ")
        .bind(&job.by)
        .push(", ")
        .bind(now)
        .push(", ")
        .bind(now)
        .push(" WHERE (SELECT COUNT(*) FROM redeliveries WHERE state = 'running' AND endpoint = ")
        .bind(&job.webhook)
        .push(") < ")
        .bind(max);
        self.act("store redelivery", &sql, Some(act)).await
    }

    /// Redelivery jobs of an endpoint, newest first.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn redeliveries(&self, endpoint: &str) -> Result<Vec<RedeliveryJob>, Error> {
        let sql = Sql::new("SELECT * FROM redeliveries WHERE endpoint = ")
            .bind(endpoint)
            .push(" ORDER BY created_at DESC, id LIMIT 100");
        self.jobs(&sql).await
    }

    /// Endpoints with running redelivery jobs.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn with_redeliveries(&self) -> Result<Vec<String>, Error> {
        let action = "read redeliveries";
        let sql = Sql::new("SELECT DISTINCT endpoint FROM redeliveries WHERE state = 'running'");
        self.query(action, &sql, |row| row.get("endpoint")).await
    }

    /// The oldest running redelivery job of an endpoint.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn next_redelivery(&self, endpoint: &str) -> Result<Option<RedeliveryJob>, Error> {
        let sql = Sql::new("SELECT * FROM redeliveries WHERE state = 'running' AND endpoint = ")
            .bind(endpoint)
            .push(" ORDER BY created_at, id LIMIT 1");
        Ok(self.jobs(&sql).await?.pop())
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
        let mut sql = Sql::new(
            "SELECT created_at, stream_sequence, event_id, announced FROM deliveries WHERE endpoint = ",
        )
        .bind(&job.webhook);
        if let Some(place) = DeliveryPosition::parse(&job.cursor) {
            sql = beyond(sql, ">", &place);
        }
        let again = &job.filter;
        sql = if again.ids.is_empty() {
            sql.push(" AND state")
        } else {
            // The `+` stops SQLite from scanning all dead letters instead of looking up the ids.
            sql.push(" AND event_id")
                .any_of(again.ids.clone())
                .either(" AND +state", " AND state")
        };
        sql = sql.push(" = 'dead'");
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
        let sql = wanted
            .narrow(sql)
            .push(" ORDER BY created_at, stream_sequence, event_id LIMIT ")
            .bind(max);
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
        let command = Command::Redeliver {
            endpoint: job.webhook.clone(),
            job: job.id.clone(),
            cursor: places
                .last()
                .map_or_else(|| job.cursor.clone(), DeliveryPosition::cursor),
            ids: places.into_iter().map(|place| place.event_id).collect(),
            done,
            now,
        };
        self.writer.write(Some(epoch), command).await
    }

    async fn jobs(&self, sql: &Sql) -> Result<Vec<RedeliveryJob>, Error> {
        let action = "read redeliveries";
        self.query(action, sql, read).await
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
