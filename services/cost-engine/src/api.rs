//! The REST API: costs, reports, closed periods, nodes and budgets.
//!
//! Amounts are millionths of the currency unit, as JSON strings like every 64-bit integer of the mesh. Users see their own jobs,
//! coordinators those of their accounts, auditors and administrators all jobs.

mod budgets;
mod focus;
mod nodes;
pub mod openapi;
mod periods;
mod personal;
mod responses;
pub(crate) mod view;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Extension, Json, Router};
use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use mesh_runtime::TimeBound;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Deserialize;
use tokio::sync::{Notify, watch};

use crate::adapters::{CostGroup, Filter, OpenRun, People, Store};
use crate::budgets::Budget;
use crate::budgets::evaluator::Evaluation;
use crate::domain::calendar_period::{self, Period};
use crate::error::Error;
use crate::price_book::PriceBook;
use view::Slices;

pub use crate::spending::{PersonSpending, PersonalAmount, UnixUser};
pub use personal::PersonalCosts;
pub use view::{Attribution, CostReport, CostReportRow, LiveCosts, LiveJob};

/// State of the API. Without a price book no cost was ever computed.
#[derive(Clone)]
pub(crate) struct Api {
    pub store: Store,
    pub book: Option<watch::Receiver<Arc<PriceBook>>>,
    /// The budgets of files. `None` if budgets are not enabled.
    pub file_budgets: Option<watch::Receiver<Arc<Vec<Budget>>>>,
    /// The last evaluation of budgets.
    pub evaluation: watch::Receiver<Arc<Evaluation>>,
    /// Cluster of this process.
    pub cluster: String,
    /// Notified when an audit entry was committed.
    pub audit_pending: Arc<Notify>,
}

pub(crate) fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/costs/openapi.json", get(openapi::serve))
        .route("/v1/costs/live", get(live))
        .route("/v1/costs", get(spent))
        .route("/v1/costs/me", get(personal::show))
        .route("/v1/costs/focus", get(focus::export))
        .route("/v1/costs/periods", get(periods::list))
        .route(
            "/v1/costs/periods/{period}",
            get(periods::show).post(periods::close),
        )
        .route("/v1/costs/nodes", get(nodes::list))
        .route("/v1/budgets", get(budgets::list).post(budgets::set))
        .route(
            "/v1/budgets/{name}",
            get(budgets::show).delete(budgets::delete),
        )
        .with_state(api)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct LiveQuery {
    /// Only this cluster.
    cluster: Option<String>,
    /// Only jobs of this Unix user.
    user: Option<String>,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct CostQuery {
    /// Grouping of the rows. Default: `user`.
    #[param(inline)]
    by: Option<CostGroup>,
    /// `2026-11`, `2026-Q4` or `2026`; with `attribution=slice` in the time zone. Not with `since` or `until`.
    period: Option<String>,
    /// Start: a time, a date, or an age such as `7d`.
    since: Option<String>,
    /// End, as `since`. Default: now.
    until: Option<String>,
    /// Only this cluster.
    cluster: Option<String>,
    /// Only jobs of this Unix user.
    user: Option<String>,
    /// How runs are assigned to the period. Default: `end`.
    #[serde(default)]
    #[param(inline, required = false)]
    attribution: Attribution,
    /// Time zone of slices, such as `Europe/Berlin`. Default: UTC.
    timezone: Option<String>,
}

/// Lists running jobs and their costs so far.
#[utoipa::path(get, operation_id = "listLiveCosts", path = "/v1/costs/live", tag = "costs", params(LiveQuery), responses(
    (status = 200, description = "Running jobs", body = LiveCosts), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 503, response = responses::Unavailable),
))]
async fn live(
    caller: Caller,
    State(api): State<Api>,
    query: Result<Query<LiveQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<LiveCosts>), Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    let filter = Filter {
        visibility: caller.visibility(),
        cluster: query.cluster,
        user: requested_user(&caller, query.user)?,
        since: None,
        until: None,
    };
    let runs = api.store.open_runs(&filter).await?;
    let answer = view::live(api.book().as_deref(), runs, Utc::now());
    let mut audited_read = AuditedRead::to(&caller);
    for job in &answer.jobs {
        audited_read.row(&job.user);
    }
    Ok((audited_read.extension(), Json(answer)))
}

/// Sums up the costs of a period.
#[utoipa::path(get, operation_id = "getCostReport", path = "/v1/costs", tag = "costs", params(CostQuery), responses(
    (status = 200, description = "Sums by the grouping", body = CostReport), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 503, response = responses::Unavailable),
))]
async fn spent(
    caller: Caller,
    State(api): State<Api>,
    query: Result<Query<CostQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<CostReport>), Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    let now = Utc::now();
    let by = query.by.unwrap_or(CostGroup::User);
    if by == CostGroup::Day && query.attribution == Attribution::End {
        return Err(Problem::bad_request("by=day: only with attribution=slice"));
    }
    let zone = zone(query.timezone.as_deref(), query.attribution)?;
    let bounds = [&query.period, &query.since, &query.until].map(Option::as_deref);
    let (since, until) = bounds_of(bounds, zone, now)?;
    let filter = Filter {
        visibility: caller.visibility(),
        cluster: query.cluster,
        user: requested_user(&caller, query.user)?,
        since,
        until,
    };
    // Runs that are still open belong to a period that has not ended.
    let runs = if filter.until.is_none_or(|until| until > now.timestamp()) {
        api.store.open_runs(&filter).await?
    } else {
        Vec::new()
    };
    let people = if by == CostGroup::Identity {
        api.store.people().await?
    } else {
        People::default()
    };
    let book = api.book();
    let answer = match query.attribution {
        Attribution::End => {
            let sums = api.store.sums(by, &filter).await;
            let sums = sums?;
            view::spent(by, sums, book.as_deref(), runs, &people, now)
        }
        Attribution::Slice => {
            let slices = slices(&api.store, by, &filter, zone, &runs, now).await?;
            view::sliced(by, slices, book.as_deref(), &runs, &people, now).map_err(Error::Amount)?
        }
    };
    let mut audited_read = AuditedRead::to(&caller);
    for row in &answer.rows {
        match (by, &filter.user) {
            (CostGroup::User, _) => audited_read.row(&row.key),
            (_, Some(user)) => audited_read.row(user),
            (_, None) => audited_read.row_about_people(),
        }
    }
    Ok((audited_read.extension(), Json(answer)))
}

/// Most months of a report by month.
const MAX_MONTHS: usize = 240;
/// Most days of a report by day.
const MAX_DAYS: usize = 400;

/// Costs of the slices of a report: the days or months, or the whole period.
async fn slices(
    store: &Store,
    by: CostGroup,
    filter: &Filter,
    zone: Tz,
    open: &[OpenRun],
    now: DateTime<Utc>,
) -> Result<Slices, Problem> {
    let whole = Period {
        name: String::new(),
        from: filter.since.unwrap_or(i64::MIN),
        to: filter.until.unwrap_or(i64::MAX),
    };
    let periods = if matches!(by, CostGroup::Month | CostGroup::Day) {
        let first = store.first_start(filter).await?;
        let started = |open: &OpenRun| open.job.start_time.as_ref().map(|time| time.seconds);
        let first = open.iter().filter_map(started).chain(first).min();
        let from = whole.from.max(first.unwrap_or_else(|| now.timestamp()));
        let to = whole.to.min(now.timestamp() + 1);
        let (periods, most) = match by {
            CostGroup::Day => (
                calendar_period::days(zone, from, to, MAX_DAYS),
                format!("{MAX_DAYS} days"),
            ),
            _ => (
                calendar_period::months(zone, from, to, MAX_MONTHS),
                format!("{MAX_MONTHS} months"),
            ),
        };
        periods.ok_or_else(|| {
            Problem::bad_request(format!("the report has more than {most}: set since"))
        })?
    } else {
        vec![whole]
    };
    Slices::read(store, by, filter, periods)
        .await
        .map_err(Problem::from)
}

/// Parses the bounds of a report: a period by its name, or `since` and `until`.
fn bounds_of(
    [period, since, until]: [Option<&str>; 3],
    zone: Tz,
    now: DateTime<Utc>,
) -> Result<(Option<i64>, Option<i64>), Problem> {
    match period {
        Some(_) if since.is_some() || until.is_some() => {
            Err(Problem::bad_request("period: not with since or until"))
        }
        Some(name) => {
            let period = named_period(name, zone)?;
            Ok((Some(period.from), Some(period.to)))
        }
        None => Ok((time("since", since, now)?, time("until", until, now)?)),
    }
}

/// Parses the name of a period.
fn named_period(name: &str, zone: Tz) -> Result<Period, Problem> {
    let fault = || format!("period: {name:?} is not like 2026-11, 2026-Q4 or 2026");
    calendar_period::named(zone, name).ok_or_else(|| Problem::bad_request(fault()))
}

/// Parses a time zone. Only slices have one.
fn zone(text: Option<&str>, attribution: Attribution) -> Result<Tz, Problem> {
    match text {
        None => Ok(Tz::UTC),
        Some(_) if attribution == Attribution::End => Err(Problem::bad_request(
            "timezone: only with attribution=slice",
        )),
        Some(text) => text.parse().map_err(|_| {
            Problem::bad_request(format!(
                "timezone: {text:?} is not a time zone such as Europe/Berlin"
            ))
        }),
    }
}

impl Api {
    fn book(&self) -> Option<Arc<PriceBook>> {
        self.book.as_ref().map(|book| Arc::clone(&book.borrow()))
    }
}

/// The requested user, if the caller may see that user's jobs.
fn requested_user(caller: &Caller, user: Option<String>) -> Result<Option<String>, Problem> {
    match user {
        Some(user) if !caller.may_ask_about(&user) => Err(Problem::forbidden(format!(
            "you may not see costs of jobs of {user:?}; omit the filter or ask an administrator"
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
