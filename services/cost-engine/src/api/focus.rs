//! `GET /v1/costs/focus`: ended runs as rows of FOCUS 1.2, in CSV.

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use chrono::Utc;
use chrono_tz::Tz;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use mesh_runtime::harmless_cell;
use serde::Deserialize;

use super::{Api, MAX_MONTHS, named_period, time};
use crate::adapters::{Filter, PriceBooks};
use crate::costing;
use crate::domain::calendar_period::{self, Period};
use crate::error::Error;
use crate::focus::{self, Billed, COLUMNS, RowContext};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FocusQuery {
    period: Option<String>,
    since: Option<String>,
    until: Option<String>,
    cluster: Option<String>,
    #[serde(default)]
    billed: Billed,
    site: Option<String>,
}

pub(super) async fn export(
    caller: Caller,
    State(api): State<Api>,
    query: Result<Query<FocusQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, impl IntoResponse), Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    let now = Utc::now();
    let month = now.format("%Y-%m-01").to_string();
    let (since, until) = match named_period(query.period.as_deref(), Tz::UTC)? {
        Some(period) => (period.from, period.to),
        None => (
            time("since", Some(query.since.as_deref().unwrap_or(&month)), now)?.unwrap_or_default(),
            time("until", query.until.as_deref(), now)?.unwrap_or(i64::MAX),
        ),
    };
    let until = until.min(now.timestamp() + 1);
    // FOCUS has months of UTC.
    let months = calendar_period::months(Tz::UTC, since, until, MAX_MONTHS)
        .ok_or_else(|| Problem::bad_request(format!("since: more than {MAX_MONTHS} months ago")))?;
    let filter = Filter {
        visibility: caller.visibility(),
        cluster: query.cluster,
        user: None,
        since: None,
        until: None,
    };
    let internal = |error: Error| Problem::internal(&error);
    let people = api.store.people().await.map_err(internal)?;
    let mut books = PriceBooks::of(&api.store);
    let mut audited_read = AuditedRead::to(&caller);
    let mut table = csv::Writer::from_writer(Vec::new());
    let refused = |error: csv::Error| Problem::internal(&error);
    table.write_record(COLUMNS).map_err(refused)?;
    let site = query.site.unwrap_or_else(|| "slurm-mesh".to_owned());
    let closed = api.store.closed_periods().await.map_err(internal)?;
    let closed: Vec<Period> = closed
        .iter()
        .filter_map(|closed| calendar_period::named(Tz::UTC, &closed.period))
        .collect();
    for month in &months {
        let covers = |closed: &Period| closed.from <= month.from && month.to <= closed.to;
        let is_billed = query.billed == Billed::Effective || closed.iter().any(covers);
        let slice = (month.from, month.to);
        let whole = calendar_period::named(Tz::UTC, &month.name);
        let billing_period = whole.map_or(slice, |month| (month.from, month.to));
        for run in api.store.runs_in(&filter, slice).await.map_err(internal)? {
            let curve = books.curve(&run).await.map_err(internal)?;
            let cost = run.part(curve.as_ref(), slice);
            let cost = cost.map_err(|error| internal(error.into()))?;
            let (Some((_, record)), Some(book)) = (
                &run.history.end,
                books.get(&run.price_book).await.map_err(internal)?,
            ) else {
                continue;
            };
            let part = costing::slice_part(&book, &run.history, record, run.ended, slice);
            // It has a cost, so it has prices.
            let Ok(part) = part else { continue };
            let person = people.of(&run.keys.cluster, &run.keys.user);
            let cells = focus::row(
                &run,
                cost,
                &part,
                &RowContext {
                    site: &site,
                    is_billed,
                    billing_period,
                    slice,
                    person: &person,
                },
            );
            audited_read.row(&run.keys.user);
            // Amounts are never negative here, so no number looks like a formula.
            let cells = cells.into_iter().map(harmless_cell);
            table.write_record(cells).map_err(refused)?;
        }
    }
    let body = table
        .into_inner()
        .map_err(|error| Problem::internal(&error.into_error()))?;
    let headers = [
        (CONTENT_TYPE, "text/csv; charset=utf-8; header=present"),
        (CONTENT_DISPOSITION, "attachment; filename=\"focus.csv\""),
    ];
    Ok((audited_read.extension(), (headers, body)))
}
