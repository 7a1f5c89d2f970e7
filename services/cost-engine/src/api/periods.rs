//! `/v1/costs/periods`: closed periods. Administrators close them; their reports do not change any more, and the ledger has the SHA-256.

mod corrections;

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, CostPeriodClosed};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::timestamp;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use prost::Message as _;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::recorded_report;

use self::corrections::{Correction, StoredReport, corrections};
use super::response::{self, CostReportRow, Slices};
use super::{Api, named_period};
use crate::adapters::{AuditRow, ClosedPeriod, CostGroup, Filter, People};
use crate::audit_publisher::AUDIT_KIND;
use crate::domain::calendar_period::{self, Period};
use crate::error::Error;

/// A closed period.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ClosedPeriodRow {
    period: String,
    /// SHA-256 of the bytes of `report`.
    sha256: String,
    /// Number of rows of the report.
    rows: i64,
    closed_at: DateTime<Utc>,
    closed_by: String,
    /// The report, as text, so that its bytes stay the same. Only of a single period.
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ClosedPeriods {
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
}

pub(super) async fn list(
    caller: Caller,
    State(api): State<Api>,
) -> Result<(Extension<AuditedRead>, Json<ClosedPeriods>), Problem> {
    may_see(&caller)?;
    let periods = api.store.closed_periods().await;
    let periods = periods.map_err(|error| Problem::internal(&error))?;
    let periods = periods
        .into_iter()
        .map(|closed| row(closed, None))
        .collect();
    let nothing = AuditedRead::nothing().extension();
    Ok((nothing, Json(ClosedPeriods { periods })))
}

pub(super) async fn show(
    caller: Caller,
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<(Extension<AuditedRead>, Json<ClosedPeriodRow>), Problem> {
    may_see(&caller)?;
    let found = api.store.closed_period(&name).await;
    let found = found.map_err(|error| Problem::internal(&error))?;
    let (closed, report) =
        found.ok_or_else(|| Problem::not_found(format!("{name:?} is not closed")))?;
    let mut audited_read = AuditedRead::to(&caller);
    for _ in 0..closed.rows {
        audited_read.row_about_people();
    }
    Ok((audited_read.extension(), Json(row(closed, Some(report)))))
}

/// Closing a closed period changes nothing.
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
    let internal = |error: Error| Problem::internal(&error);
    if let Some((closed, _)) = api.store.closed_period(&name).await.map_err(internal)? {
        return Ok((nothing, Json(row(closed, None))));
    }
    let (report, rows) = report(&api, period, now).await.map_err(internal)?;
    let closed = ClosedPeriod {
        digest: hex::encode(Sha256::digest(report.as_bytes())),
        rows,
        closed_at: now.timestamp(),
        closed_by: caller.name.clone(),
        period: name.clone(),
    };
    let audit = audit_row(&api.cluster, &closed, &report, now);
    let is_new = api.store.close_period(&closed, &report, &audit).await;
    if is_new.map_err(internal)? {
        api.audit_pending.notify_one();
        return Ok((nothing, Json(row(closed, None))));
    }
    // Another request closed it at the same time.
    let stored = api.store.closed_period(&name).await.map_err(internal)?;
    let stored = stored.map_or(closed, |(stored, _)| stored);
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

/// The costs of a period by account, and the number of runs that began before its end and still go on.
async fn costs(
    api: &Api,
    period: &Period,
    now: DateTime<Utc>,
) -> Result<(Vec<CostReportRow>, usize), Error> {
    let by = CostGroup::Account;
    let filter = Filter::all();
    let slice = [period.bounds()];
    let read = api.store.slice_costs_and_open_runs(by, &filter, &slice);
    let (costs, open) = read.await?;
    let began = |job: &Job| {
        let start = job.start_time.as_ref();
        start.is_some_and(|start| start.seconds < period.to)
    };
    let open_runs = open.iter().filter(|run| began(&run.job)).count();
    let slices = Slices::of(&api.store, costs, vec![period.clone()]).await?;
    let report = response::sliced(by, slices, None, &[], &People::default(), now)?;
    Ok((report.rows, open_runs))
}

/// What changed in earlier closed periods of the same length.
async fn corrected(
    api: &Api,
    period: &Period,
    now: DateTime<Utc>,
) -> Result<Vec<Correction>, Error> {
    let length = |name: &str| (name.contains('Q'), name.len());
    let is_like = |name: &str| length(name) == length(&period.name);
    let mut reports = Vec::new();
    for closed in api.store.closed_periods().await? {
        let is_other = closed.period != period.name && is_like(&closed.period);
        let stored = match is_other {
            true => api.store.closed_period(&closed.period).await?,
            false => None,
        };
        if let Some((_, report)) = stored {
            let report: StoredReport = serde_json::from_str(&report).map_err(Error::Json)?;
            reports.push(report);
        }
    }
    let mut found = Vec::new();
    for report in &reports {
        let earlier = calendar_period::named(Tz::UTC, &report.period);
        let Some(earlier) = earlier.filter(|earlier| earlier.to <= period.from) else {
            continue;
        };
        let (rows, _) = costs(api, &earlier, now).await?;
        let cost = |row: CostReportRow| ((row.cluster, row.key, row.currency), row.total_micros);
        let now: BTreeMap<_, _> = rows.into_iter().map(cost).collect();
        found.extend(corrections(report, &reports, now));
    }
    Ok(found)
}

/// The report of a period, and its number of rows.
async fn report(api: &Api, period: Period, now: DateTime<Utc>) -> Result<(String, i64), Error> {
    let (rows, open_runs) = costs(api, &period, now).await?;
    let corrections = corrected(api, &period, now).await?;
    let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let report = PeriodReport {
        period: period.name,
        timezone: "UTC",
        from: period.from,
        to: period.to,
        open_runs: u64::try_from(open_runs).unwrap_or(u64::MAX),
        rows,
        corrections,
    };
    // Maps are sorted and the fields have an order, so equal costs give equal bytes.
    let text = serde_json::to_string(&report).map_err(Error::Json)?;
    Ok((text, count))
}

fn audit_row(cluster: &str, closed: &ClosedPeriod, report: &str, now: DateTime<Utc>) -> AuditRow {
    let audit_id = uuid::Uuid::new_v4().to_string();
    let entry = AuditEntry {
        id: audit_id.clone(),
        cluster: cluster.to_owned(),
        kind: AUDIT_KIND.to_owned(),
        at: Some(timestamp(now)),
        service: "cost-engine".to_owned(),
        act: Some(Act::Cost(CostPeriodClosed {
            period: closed.period.clone(),
            timezone: "UTC".to_owned(),
            report_sha256: closed.digest.clone(),
            rows: closed.rows.unsigned_abs(),
            made_by: closed.closed_by.clone(),
            report_gzip: recorded_report::compress(report),
        })),
    };
    AuditRow {
        audit_id,
        cluster: cluster.to_owned(),
        body: entry.encode_to_vec(),
    }
}

fn row(closed: ClosedPeriod, report: Option<String>) -> ClosedPeriodRow {
    ClosedPeriodRow {
        period: closed.period,
        sha256: closed.digest,
        rows: closed.rows,
        closed_at: DateTime::from_timestamp(closed.closed_at, 0).unwrap_or_default(),
        closed_by: closed.closed_by,
        report,
    }
}
