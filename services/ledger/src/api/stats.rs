//! `/v1/events/stats`: aggregates over the history.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Serialize;
use utoipa::ToSchema;

use super::openapi::{self, FilterParams};
use super::params::Params;
use super::rest::problem;
use super::{EventsApi, audited_stats};
use crate::domain::stats::{Group, StatsRow, WaitStats};

/// Sums of groups.
#[derive(Serialize, ToSchema)]
#[schema(as = Stats)]
pub(super) struct StatsJson {
    /// One row for each group, ordered by its values.
    rows: Vec<StatsRowJson>,
}

/// Sums of one group.
#[derive(Serialize, ToSchema)]
#[schema(as = StatsRow)]
struct StatsRowJson {
    /// Values of what the sums are grouped by: `{"user": "alice", "day": "2026-11-22"}`; null for what has no such value.
    group: BTreeMap<&'static str, Option<String>>,
    /// How often each event of a job happened, by its word: submitted, started, completed, failed, ...
    jobs: BTreeMap<String, u64>,
    /// How long jobs that started had waited since they were eligible; null if none started.
    wait: Option<WaitStatsJson>,
    /// Final costs of the runs that ended, by currency, in millionths of its unit, as strings of digits.
    cost_micros: BTreeMap<String, String>,
}

/// Waits, in seconds.
#[derive(Serialize, ToSchema)]
#[schema(as = WaitStats)]
struct WaitStatsJson {
    /// How many starts.
    starts: u64,
    /// Half of them waited no longer.
    p50_seconds: u64,
    /// Nine of ten waited no longer.
    p90_seconds: u64,
    /// The longest.
    max_seconds: u64,
}

/// How often jobs were submitted, started, failed, ..., how long they waited and what they cost: in total, or by day, person, account, ...
#[utoipa::path(
    get, path = "/v1/events/stats", operation_id = "getEventStats", tag = "events",
    params(
        FilterParams,
        ("by" = Option<String>, Query, description = "Groups, with commas: day (UTC), cluster, user, account, partition, name. Without: one total"),
    ),
    responses(
        (status = 200, description = "The sums", body = StatsJson), (status = 400, response = openapi::BadRequest),
        (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden),
        (status = 503, response = openapi::Unavailable),
    )
)]
pub(super) async fn stats<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<(Extension<AuditedRead>, Json<StatsJson>), Problem> {
    let mut params = Params::of(query.as_deref())?;
    let by = params
        .take("by")
        .map(|text| Group::parse_list(&text))
        .transpose()
        .map_err(|invalid| problem(invalid.into()))?
        .unwrap_or_default();
    let filter = params.filter("by")?;
    let rows = api.stats(&caller, filter, &by).await.map_err(problem)?;
    let shown = audited_stats(&caller, &rows, &by);
    let stats = StatsJson {
        rows: rows.into_iter().map(|found| row(found, &by)).collect(),
    };
    Ok((shown.extension(), Json(stats)))
}

fn row(row: StatsRow, by: &[Group]) -> StatsRowJson {
    let wait = |wait: WaitStats| WaitStatsJson {
        starts: wait.starts,
        p50_seconds: wait.p50,
        p90_seconds: wait.p90,
        max_seconds: wait.max,
    };
    StatsRowJson {
        group: by.iter().map(|group| group.as_str()).zip(row.key).collect(),
        jobs: row.counts,
        wait: row.wait.map(wait),
        cost_micros: row
            .costs
            .into_iter()
            .map(|(currency, micros)| (currency, micros.to_string()))
            .collect(),
    }
}
