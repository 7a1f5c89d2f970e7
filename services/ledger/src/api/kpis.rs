//! `/v1/kpis`: key figures of runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Serialize;
use utoipa::ToSchema;

use super::pages::Pages;
use super::params::Params;
use super::rest::problem;
use super::{EntryContent, EventsApi, count, responses};
use crate::domain::filter::Filter;
use crate::domain::kpis::{KpiGroup, KpiSums, Kpis, TYPES};

/// Key figures by group.
#[derive(Serialize, ToSchema)]
#[schema(as = Kpis)]
pub(super) struct KpisJson {
    /// One row per group, ordered by group.
    rows: Vec<KpisRowJson>,
}

/// Key figures of one group. A figure is null where there is nothing to divide by.
#[derive(Serialize, ToSchema)]
#[schema(as = KpisRow)]
struct KpisRowJson {
    /// Values of the grouping dimensions, such as `{"account": "physics"}`; null for runs without such a value. Empty for a total.
    group: BTreeMap<&'static str, Option<String>>,
    /// Number of runs that completed or failed.
    runs: u64,
    /// CPU time used, of the CPU time allocated, between 0 and 1; of runs whose use accounting reports.
    cpu_efficiency: Option<f64>,
    /// Share of the allocated memory above the peak in use, weighted by time, between 0 and 1.
    memory_waste: Option<f64>,
    /// Seconds from eligible to start that 95 % of the first starts did not exceed.
    wait_p95_seconds: Option<i64>,
    /// Share of runs that failed. Cancelled runs do not count.
    failure_rate: Option<f64>,
    /// Share of runs that failed with their node.
    node_failure_rate: Option<f64>,
}

/// Returns key figures of runs: in total or by group.
///
/// Reads every selected event, some 20,000 to 50,000 a second: restrict the time with `since` and `until`.
#[utoipa::path(
    get, path = "/v1/kpis", operation_id = "getKpis", tag = "events",
    params(
        Filter,
        ("by" = Option<String>, Query, description = "Grouping dimensions, comma-separated: `cluster`, `partition`, `account`, `user`, `identity`, `qos`. Default: one total"),
    ),
    responses(
        (status = 200, description = "The key figures", body = KpisJson), (status = 400, response = responses::BadRequest),
        (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
        (status = 503, response = responses::Unavailable),
    )
)]
pub(super) async fn kpis<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<(Extension<AuditedRead>, Json<KpisJson>), Problem> {
    let mut params = Params::of(query.as_deref())?;
    let by = params
        .take("by")
        .map(|text| KpiGroup::parse_list(&text))
        .transpose()
        .map_err(|invalid| problem(invalid.into()))?
        .unwrap_or_default();
    let mut filter = params.filter("by")?;
    // With types of its own, only these events count.
    if filter.types.is_empty() {
        filter.types = TYPES.iter().map(ToString::to_string).collect();
    }
    let mut pages = Pages::begin(api, caller.clone(), filter)
        .await
        .map_err(problem)?;
    let (audited_read, counts) = AuditedRead::to(&caller).stream();
    let mut sums = KpiSums::new(&by);
    while let Some(entries) = pages.next().await.map_err(problem)? {
        for entry in &entries {
            count(&counts, &entry.content);
            if let EntryContent::Event(event) = &entry.content {
                sums.add(event).map_err(|invalid| problem(invalid.into()))?;
            }
        }
    }
    let rows = sums.rows().map(|(key, kpis)| row(&by, key, kpis)).collect();
    Ok((audited_read.extension(), Json(KpisJson { rows })))
}

fn row(by: &[KpiGroup], key: Vec<Option<String>>, kpis: Kpis) -> KpisRowJson {
    KpisRowJson {
        group: by.iter().map(|group| group.as_str()).zip(key).collect(),
        runs: kpis.runs,
        cpu_efficiency: kpis.cpu_efficiency,
        memory_waste: kpis.memory_waste,
        wait_p95_seconds: kpis.wait_p95_seconds,
        failure_rate: kpis.failure_rate,
        node_failure_rate: kpis.node_failure_rate,
    }
}
