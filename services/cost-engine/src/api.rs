//! `GET /v1/costs/live` and `GET /v1/costs`: costs of running jobs, and past costs.
//!
//! Amounts are millionths of the currency unit, as JSON strings like every 64-bit integer of the mesh. Users see their own jobs,
//! coordinators those of their accounts, auditors and administrators all jobs.

mod response;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Extension, Json, Router};
use chrono::{DateTime, Utc};
use mesh_runtime::TimeBound;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Deserialize;
use tokio::sync::watch;

use crate::adapters::{CostGroup, Filter, Store};
use crate::price_book::PriceBook;

pub use response::{CostReport, CostReportRow, LiveCosts, LiveJob};

/// State of the API. Without a price book no cost was ever computed.
#[derive(Clone)]
pub(crate) struct Api {
    pub store: Store,
    pub book: Option<watch::Receiver<Arc<PriceBook>>>,
}

pub(crate) fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/costs/live", get(live))
        .route("/v1/costs", get(spent))
        .with_state(api)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LiveQuery {
    cluster: Option<String>,
    user: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CostQuery {
    by: Option<CostGroup>,
    since: Option<String>,
    until: Option<String>,
    cluster: Option<String>,
    user: Option<String>,
}

async fn live(
    caller: Caller,
    State(api): State<Api>,
    query: Result<Query<LiveQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<LiveCosts>), Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    let filter = Filter {
        visibility: caller.visibility(),
        cluster: query.cluster,
        user: asked(&caller, query.user)?,
        since: None,
        until: None,
    };
    let runs = api
        .store
        .open_runs(&filter)
        .await
        .map_err(|error| Problem::internal(&error))?;
    let answer = response::live(api.book().as_deref(), runs, Utc::now());
    let mut shown = AuditedRead::to(&caller);
    for job in &answer.jobs {
        shown.row(&job.user);
    }
    Ok((shown.extension(), Json(answer)))
}

async fn spent(
    caller: Caller,
    State(api): State<Api>,
    query: Result<Query<CostQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<CostReport>), Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    let now = Utc::now();
    let filter = Filter {
        visibility: caller.visibility(),
        cluster: query.cluster,
        user: asked(&caller, query.user)?,
        since: time("since", query.since.as_deref(), now)?,
        until: time("until", query.until.as_deref(), now)?,
    };
    let by = query.by.unwrap_or(CostGroup::User);
    let sums = api
        .store
        .sums(by, &filter)
        .await
        .map_err(|error| Problem::internal(&error))?;
    // Runs that are still open belong to a period that has not ended.
    let runs = if filter.until.is_none_or(|until| until > now.timestamp()) {
        api.store
            .open_runs(&filter)
            .await
            .map_err(|error| Problem::internal(&error))?
    } else {
        Vec::new()
    };
    let answer = response::spent(by, sums, api.book().as_deref(), runs, now);
    let mut shown = AuditedRead::to(&caller);
    for row in &answer.rows {
        match (by, &filter.user) {
            (CostGroup::User, _) => shown.row(&row.key),
            (_, Some(user)) => shown.row(user),
            (_, None) => shown.row_about_people(),
        }
    }
    Ok((shown.extension(), Json(answer)))
}

impl Api {
    fn book(&self) -> Option<Arc<PriceBook>> {
        self.book.as_ref().map(|book| Arc::clone(&book.borrow()))
    }
}

/// The requested user, if the caller may see that user's jobs.
fn asked(caller: &Caller, user: Option<String>) -> Result<Option<String>, Problem> {
    match user {
        Some(user) if !caller.may_ask_about(&user) => Err(Problem::forbidden(format!(
            "you may not see what jobs of {user:?} cost; leave the filter out or ask an administrator"
        ))),
        user => Ok(user),
    }
}

/// Parses a bound of the period. Dates are days in UTC.
fn time(key: &str, text: Option<&str>, now: DateTime<Utc>) -> Result<Option<i64>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let bound = TimeBound::parse(text, &now)
        .map_err(|error| Problem::bad_request(format!("{key}: {error}")))?;
    Ok(Some(bound.resolve(&now).timestamp()))
}
