//! `GET /v1/costs/focus`: ended runs as rows of FOCUS 1.2, in CSV, in constant memory.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use chrono::Utc;
use chrono_tz::Tz;
use futures_util::stream;
use mesh_runtime::api::{AuditedRead, AuditedStream, Caller, Problem};
use mesh_runtime::harmless_cell;
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::{Api, MAX_MONTHS, bounds_of, responses, time};
use crate::adapters::{Filter, FinalizedRun, FinalizedRuns, People, Store};
use crate::costing;
use crate::domain::calendar_period::{self, Period};
use crate::error::Error;
use crate::focus::{self, BilledCostPolicy, COLUMNS, RowContext};
use crate::price_book::PriceBook;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct FocusQuery {
    /// `2026-11`, `2026-Q4` or `2026`. Not with `since` or `until`.
    period: Option<String>,
    /// Start: a time, a date, or an age such as `7d`. Default: the start of the month, UTC.
    since: Option<String>,
    /// End, as `since`. Default: now.
    until: Option<String>,
    /// Only this cluster.
    cluster: Option<String>,
    /// When `BilledCost` is the effective cost. Default: `closed`.
    #[serde(default)]
    #[param(inline, required = false)]
    billed: BilledCostPolicy,
    /// Name of the site, as who bills. Default: `slurm-mesh`.
    site: Option<String>,
}

/// Exports ended runs as rows of FOCUS 1.2.
///
/// If the export cannot be completed, the connection is aborted.
#[utoipa::path(get, operation_id = "exportFocus", path = "/v1/costs/focus", tag = "costs", params(FocusQuery), responses(
    (status = 200, description = "The rows, with a header", content((String = "text/csv"))), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn export(
    caller: Caller,
    State(api): State<Api>,
    query: Result<Query<FocusQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    let now = Utc::now();
    // FOCUS has months of UTC.
    let bounds = [&query.period, &query.since, &query.until].map(Option::as_deref);
    let (since, until) = bounds_of(bounds, Tz::UTC, now)?;
    let month = now.format("%Y-%m-01").to_string();
    let since = since.or(time("since", Some(&month), now)?);
    let until = until.unwrap_or(i64::MAX).min(now.timestamp() + 1);
    let months = calendar_period::months(Tz::UTC, since.unwrap_or_default(), until, MAX_MONTHS)
        .ok_or_else(|| Problem::bad_request(format!("since: more than {MAX_MONTHS} months ago")))?;
    let filter = Filter {
        visibility: caller.visibility(),
        cluster: query.cluster,
        user: None,
        since: None,
        until: None,
    };
    let closed = api.store.closed_periods().await?;
    let closed = closed.iter();
    let (audited_read, counts) = AuditedRead::to(&caller).stream();
    let mut export = FocusExport {
        people: Arc::new(api.store.people().await?),
        store: api.store,
        filter,
        site: query.site.unwrap_or_else(|| "slurm-mesh".to_owned()).into(),
        billed: query.billed,
        closed: closed
            .filter_map(|closed| calendar_period::named(Tz::UTC, &closed.period))
            .collect(),
        months: months.into_iter(),
        current: None,
        counts,
    };
    let mut text = table([COLUMNS.map(str::to_owned)])?;
    // The first page before the answer, so that errors of the database still get a status code.
    text.extend(export.next().await?.unwrap_or_default());
    let rest = stream::try_unfold(export, async |mut export| {
        let text = export.next().await.map_err(io::Error::other)?;
        Ok::<_, io::Error>(text.map(|text| (text, export)))
    });
    let first = stream::iter([Ok(text)]);
    let headers = [
        (CONTENT_TYPE, "text/csv; charset=utf-8; header=present"),
        (CONTENT_DISPOSITION, "attachment; filename=\"focus.csv\""),
    ];
    let body = Body::from_stream(futures_util::StreamExt::chain(first, rest));
    Ok((audited_read.extension(), headers, body).into_response())
}

/// An export, page by page.
struct FocusExport {
    store: Store,
    filter: Filter,
    people: Arc<People>,
    site: Arc<str>,
    billed: BilledCostPolicy,
    closed: Vec<Period>,
    /// Months that have not begun.
    months: std::vec::IntoIter<Period>,
    /// The present month and its runs.
    current: Option<(Period, FinalizedRuns)>,
    counts: AuditedStream,
}

impl FocusExport {
    /// The rows of the next page. `None` after the last one.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let Some((month, runs)) = &mut self.current else {
                let Some(month) = self.months.next() else {
                    return Ok(None);
                };
                let runs = FinalizedRuns::new(&self.store, &self.filter, month.bounds());
                self.current = Some((month, runs));
                continue;
            };
            let Some(page) = runs.next().await? else {
                self.current = None;
                continue;
            };
            for (run, _) in &page {
                self.counts.row(&run.keys.user);
            }
            let whole = calendar_period::named(Tz::UTC, &month.name);
            let covers = |closed: &Period| closed.from <= month.from && month.to <= closed.to;
            let is_billed =
                self.billed == BilledCostPolicy::Effective || self.closed.iter().any(covers);
            let slice = month.bounds();
            let billing_period = whole.map_or(slice, |month| month.bounds());
            let (people, site) = (Arc::clone(&self.people), Arc::clone(&self.site));
            let rows = move || {
                let row = |(run, book): &(FinalizedRun, Option<Arc<PriceBook>>)| {
                    let context = RowContext {
                        site: &site,
                        is_billed,
                        billing_period,
                        slice,
                        person: &people.of(&run.keys.cluster, &run.keys.user),
                    };
                    row(run, book.as_deref(), &context)
                };
                let rows: Result<Vec<_>, _> = page.iter().map(row).collect();
                table(rows?)
            };
            let text = spawn_blocking(rows).await.map_err(Error::Interrupted)??;
            return Ok(Some(text));
        }
    }
}

/// Without a stored history or a price the quantity is not known, but the cost is.
fn row(
    run: &FinalizedRun,
    book: Option<&PriceBook>,
    context: &RowContext<'_>,
) -> Result<Vec<String>, Error> {
    let curve = book.and_then(|book| run.curve(book));
    let cost = run.part(curve.as_ref(), context.slice)?;
    let part = book.zip(run.history.end.as_ref()).and_then(|(book, end)| {
        costing::slice_part(book, &run.history, &end.1, run.ended, context.slice).ok()
    });
    Ok(focus::row(run, cost, part.as_ref(), context))
}

/// FOCUS has negative amounts with a sign, and a number is no formula: of a run whose stored history is not complete, the part of its last
/// month can be negative. Texts that look like formulas are made harmless.
fn cell(text: String) -> String {
    let digits = text.strip_prefix('-').unwrap_or_default();
    let is_number = digits.starts_with(|first: char| first.is_ascii_digit())
        && digits
            .chars()
            .all(|char| char.is_ascii_digit() || char == '.');
    if is_number { text } else { harmless_cell(text) }
}

fn table<R: IntoIterator<Item = String>>(
    rows: impl IntoIterator<Item = R>,
) -> Result<Vec<u8>, Error> {
    let mut table = csv::Writer::from_writer(Vec::new());
    for cells in rows {
        let cells = cells.into_iter().map(cell);
        table.write_record(cells).map_err(Error::Csv)?;
    }
    table
        .into_inner()
        .map_err(|error| Error::Csv(error.into_error().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_amounts_are_numbers_and_formulas_are_texts() {
        for number in ["-0.000001", "-12.5", "12.5", ""] {
            assert_eq!(cell(number.into()), number);
        }
        for formula in ["-1+cmd", "-", "--1", "-.5", "=1", "+1"] {
            assert_eq!(cell(formula.into()), format!("'{formula}"));
        }
    }
}
