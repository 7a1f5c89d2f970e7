//! `/v1/costs/periods`: closed periods. Administrators close them; their reports do not change any more, and the ledger has the SHA-256.

mod corrections;

use std::collections::BTreeMap;

use audit_outbox::AuditRow;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use mesh_events::proto::mesh::audit::v1::CostPeriodClosed;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use crate::recorded_report;

use self::corrections::{Correction, StoredReport, corrections};
use super::view::{self, CostReportRow, Slices};
use super::{Api, named_period, responses};
use crate::adapters::{AUDIT_ENTRIES, ClosedPeriod, CostGroup, Filter, People, SliceCosts};
use crate::domain::calendar_period::{self, Period};
use crate::error::Error;

/// Grouping of the reports.
const BY: CostGroup = CostGroup::Account;

/// A closed period.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ClosedPeriodRow {
    /// Name of the period.
    period: String,
    /// SHA-256 of the bytes of `report`.
    sha256: String,
    /// Number of rows of the report.
    rows: i64,
    /// When it was closed.
    closed_at: DateTime<Utc>,
    /// Who closed it.
    closed_by: String,
    /// True if costs are missing since the database was recovered: reports of later periods do not correct this one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    incomplete: bool,
    /// The report, as text, so that its bytes stay the same. Only of a single period.
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<String>,
}

/// The closed periods.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ClosedPeriods {
    /// By their names, without reports.
    periods: Vec<ClosedPeriodRow>,
}

/// The stored report of a period: the costs by account, each run with its part in the period.
#[derive(Clone, Debug, Serialize)]
struct PeriodReport {
    period: String,
    timezone: &'static str,
    from: i64,
    to: i64,
    /// Runs that began before the end of the period and still go on: their parts are not included.
    open_runs: u64,
    rows: Vec<CostReportRow>,
    /// What changed in earlier closed periods of the same length since their reports.
    corrections: Vec<Correction>,
    /// Earlier closed periods of the same length that are not corrected, because costs are missing since the database was recovered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_corrected: Vec<String>,
}

/// Lists the closed periods.
#[utoipa::path(get, operation_id = "listClosedPeriods", path = "/v1/costs/periods", tag = "periods", responses(
    (status = 200, description = "Closed periods", body = ClosedPeriods), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn list(
    caller: Caller,
    State(api): State<Api>,
) -> Result<(Extension<AuditedRead>, Json<ClosedPeriods>), Problem> {
    may_see(&caller)?;
    let periods = api.store.closed_periods().await;
    let periods = periods?;
    let periods = periods
        .into_iter()
        .map(|closed| row(closed, None))
        .collect();
    let nothing = AuditedRead::nothing().extension();
    Ok((nothing, Json(ClosedPeriods { periods })))
}

/// Returns a closed period and its report.
#[utoipa::path(get, operation_id = "getClosedPeriod", path = "/v1/costs/periods/{period}", tag = "periods", params(("period" = String, Path, description = "Name of the period: `2026-11`, `2026-Q4` or `2026`")), responses(
    (status = 200, description = "The period", body = ClosedPeriodRow), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn show(
    caller: Caller,
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<(Extension<AuditedRead>, Json<ClosedPeriodRow>), Problem> {
    may_see(&caller)?;
    let found = api.store.closed_period(&name).await;
    let found = found?;
    let (closed, report) =
        found.ok_or_else(|| Problem::not_found(format!("{name:?} is not closed")))?;
    let mut audited_read = AuditedRead::to(&caller);
    for _ in 0..closed.rows {
        audited_read.row_about_people();
    }
    Ok((audited_read.extension(), Json(row(closed, Some(report)))))
}

/// Closes a period that has ended. Closing a closed period changes nothing.
#[utoipa::path(post, operation_id = "closePeriod", path = "/v1/costs/periods/{period}", tag = "periods", params(("period" = String, Path, description = "Name of the period: `2026-11`, `2026-Q4` or `2026`")), responses(
    (status = 200, description = "The closed period", body = ClosedPeriodRow), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 409, response = responses::Conflict), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn close(
    caller: Caller,
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<(Extension<AuditedRead>, Json<ClosedPeriodRow>), Problem> {
    if !caller.may_write() {
        return Err(Problem::forbidden("only administrators close periods"));
    }
    let now = Utc::now();
    let period = named_period(&name, Tz::UTC)?;
    if period.to > now.timestamp() {
        return Err(Problem::bad_request(format!(
            "period: {name} has not ended (UTC)"
        )));
    }
    let nothing = AuditedRead::nothing().extension();
    // Before the costs: the report is stored only if these are still all closed periods, so no correction is in two reports.
    let known = api.store.closed_periods().await?;
    if let Some(closed) = known.iter().find(|closed| closed.period == name) {
        return Ok((nothing, Json(row(closed.clone(), None))));
    }
    let report = report(&api, period, &known, now).await;
    let (report, rows) = report?;
    let closed = ClosedPeriod {
        digest: hex::encode(Sha256::digest(report.as_bytes())),
        rows,
        closed_at: now.timestamp(),
        closed_by: caller.name.clone(),
        period: name.clone(),
        incomplete: false,
    };
    let audit = audit_row(&api.cluster, &closed, &report, now);
    let is_new = api
        .store
        .close_period(&closed, &report, known.len(), &audit);
    if is_new.await? {
        api.audit_pending.notify_one();
        return Ok((nothing, Json(row(closed, None))));
    }
    // Another request closed it, or another period, at the same time.
    let stored = api.store.closed_period(&name).await?;
    let (stored, _) = stored.ok_or_else(|| {
        let detail = "another period was closed at the same time: close this one again";
        Problem::new(StatusCode::CONFLICT, detail)
    })?;
    Ok((nothing, Json(row(stored, None))))
}

fn may_see(caller: &Caller) -> Result<(), Problem> {
    if caller.sees_everything() {
        return Ok(());
    }
    Err(Problem::forbidden(
        "only administrators and auditors may see closed periods",
    ))
}

/// The costs of a period by account.
async fn costs(
    api: &Api,
    period: &Period,
    now: DateTime<Utc>,
) -> Result<Vec<CostReportRow>, Error> {
    let slice = [period.bounds()];
    let filter = Filter::all();
    let read = api.store.slice_costs(BY, &filter, &slice);
    rows(api, period, read.await?, now).await
}

/// The costs of a period by account, and the number of runs that began before its end and still go on.
async fn costs_and_open_runs(
    api: &Api,
    period: &Period,
    now: DateTime<Utc>,
) -> Result<(Vec<CostReportRow>, usize), Error> {
    let filter = Filter::all();
    let slice = [period.bounds()];
    let read = api.store.slice_costs_and_open_runs(BY, &filter, &slice);
    let (costs, open) = read.await?;
    let began = |job: &Job| {
        let start = job.start_time.as_ref();
        start.is_some_and(|start| start.seconds < period.to)
    };
    let open_runs = open.iter().filter(|run| began(&run.job)).count();
    Ok((rows(api, period, costs, now).await?, open_runs))
}

async fn rows(
    api: &Api,
    period: &Period,
    costs: SliceCosts,
    now: DateTime<Utc>,
) -> Result<Vec<CostReportRow>, Error> {
    let slices = Slices::of(&api.store, costs, vec![period.clone()]).await?;
    let report = view::sliced(BY, slices, None, &[], &People::default(), now)?;
    Ok(report.rows)
}

/// What changed in earlier closed periods of the same length, and the names of those whose costs are not all known.
async fn corrected(
    api: &Api,
    period: &Period,
    known: &[ClosedPeriod],
    now: DateTime<Utc>,
) -> Result<(Vec<Correction>, Vec<String>), Error> {
    let length = |name: &str| (name.contains('Q'), name.len());
    let is_like = |closed: &&ClosedPeriod| length(&closed.period) == length(&period.name);
    let like: Vec<&ClosedPeriod> = known.iter().filter(is_like).collect();
    let mut earlier: BTreeMap<&str, Period> = BTreeMap::new();
    let mut not_corrected = Vec::new();
    for closed in &like {
        let named = calendar_period::named(Tz::UTC, &closed.period);
        match named.filter(|named| named.to <= period.from) {
            Some(_) if closed.incomplete => not_corrected.push(closed.period.clone()),
            Some(named) => drop(earlier.insert(&closed.period, named)),
            None => {}
        }
    }
    if earlier.is_empty() {
        return Ok((Vec::new(), not_corrected));
    }
    // Also reports of later periods have corrections of earlier ones.
    let mut reports = Vec::new();
    for closed in like {
        if let Some((_, report)) = api.store.closed_period(&closed.period).await? {
            let report: StoredReport = serde_json::from_str(&report).map_err(Error::Json)?;
            reports.push(report);
        }
    }
    let mut found = Vec::new();
    for report in &reports {
        let Some(earlier) = earlier.get(report.period.as_str()) else {
            continue;
        };
        let rows = costs(api, earlier, now).await?;
        let cost = |row: CostReportRow| {
            let place = (row.cluster, row.key, row.currency);
            (place, row.total_micros.known)
        };
        let now: BTreeMap<_, _> = rows.into_iter().map(cost).collect();
        found.extend(corrections(report, &reports, now)?);
    }
    Ok((found, not_corrected))
}

/// The report of a period, and its number of rows.
async fn report(
    api: &Api,
    period: Period,
    known: &[ClosedPeriod],
    now: DateTime<Utc>,
) -> Result<(String, i64), Error> {
    let (rows, open_runs) = costs_and_open_runs(api, &period, now).await?;
    let (corrections, not_corrected) = corrected(api, &period, known, now).await?;
    let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let report = PeriodReport {
        period: period.name,
        timezone: "UTC",
        from: period.from,
        to: period.to,
        open_runs: u64::try_from(open_runs).unwrap_or(u64::MAX),
        rows,
        corrections,
        not_corrected,
    };
    // Maps are sorted and the fields have an order, so equal costs give equal bytes.
    let text = serde_json::to_string(&report).map_err(Error::Json)?;
    Ok((text, count))
}

fn audit_row(cluster: &str, closed: &ClosedPeriod, report: &str, now: DateTime<Utc>) -> AuditRow {
    let act = Act::Cost(CostPeriodClosed {
        period: closed.period.clone(),
        timezone: "UTC".to_owned(),
        report_sha256: closed.digest.clone(),
        rows: closed.rows.unsigned_abs(),
        made_by: closed.closed_by.clone(),
        report_gzip: recorded_report::compress(report),
    });
    AUDIT_ENTRIES.entry(cluster, now, act)
}

fn row(closed: ClosedPeriod, report: Option<String>) -> ClosedPeriodRow {
    ClosedPeriodRow {
        period: closed.period,
        sha256: closed.digest,
        rows: closed.rows,
        closed_at: DateTime::from_timestamp(closed.closed_at, 0).unwrap_or_default(),
        closed_by: closed.closed_by,
        incomplete: closed.incomplete,
        report,
    }
}
