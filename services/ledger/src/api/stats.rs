//! `/v1/events/stats`: aggregates over the history.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Serialize;
use utoipa::ToSchema;

use super::params::{self, Params};
use super::rest::problem;
use super::{EventsApi, audited_stats, responses};
use crate::domain::filter::Filter;
use crate::domain::stats::{Group, StatsRow, WaitStats};

/// Statistics by group.
#[derive(Serialize, ToSchema)]
#[schema(as = Stats)]
pub(super) struct StatsJson {
    /// One row per group, ordered by group.
    rows: Vec<StatsRowJson>,
}

/// Statistics of one group.
#[derive(Serialize, ToSchema)]
#[schema(as = StatsRow)]
struct StatsRowJson {
    /// Values of the grouping dimensions, such as `{"user": "alice", "day": "2026-11-22"}`; null for entries without such a
    /// value. Empty for a total.
    group: BTreeMap<&'static str, Option<String>>,
    /// Number of job events by type without `job.`: `submitted`, `started`, `completed`, `failed` and others.
    jobs: BTreeMap<String, u64>,
    /// Wait times of the jobs that started, from eligible to start; null if none started.
    wait: Option<WaitStats>,
    /// Final cost of ended runs by currency (ISO 4217), in millionths of the currency unit, as decimal strings.
    cost_micros: BTreeMap<String, String>,
}

/// Returns the number of job events, wait times and costs: in total or by group.
#[utoipa::path(
    get, path = "/v1/events/stats", operation_id = "getEventStats", tag = "events",
    params(
        Filter,
        ("category" = Option<String>, Query, description = params::CATEGORY),
        ("by" = Option<String>, Query, description = "Grouping dimensions, comma-separated: `day` (UTC), `cluster`, `user`, `account`, `partition`, `name`. Default: one total"),
    ),
    responses(
        (status = 200, description = "The statistics", body = StatsJson), (status = 400, response = responses::BadRequest),
        (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
        (status = 503, response = responses::Unavailable),
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
    let audited_read = audited_stats(&caller, &rows, &by);
    let stats = StatsJson {
        rows: rows.into_iter().map(|found| row(found, &by)).collect(),
    };
    Ok((audited_read.extension(), Json(stats)))
}

fn row(row: StatsRow, by: &[Group]) -> StatsRowJson {
    StatsRowJson {
        group: by.iter().map(|group| group.as_str()).zip(row.key).collect(),
        jobs: row.counts,
        wait: row.wait,
        cost_micros: row
            .costs
            .into_iter()
            .map(|(currency, micros)| (currency, micros.to_string()))
            .collect(),
    }
}
