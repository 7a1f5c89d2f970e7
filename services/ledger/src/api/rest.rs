//! Lists, histories and the head of the chain over REST: parameters and responses.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::fields::Fields;
use super::json::{self, EventPageJson, JobHistoryJson, NodeJson};
use super::params::{self, Params};
use super::{ApiError, EventsApi, audited_read, audited_runs, responses, unavailable};
use crate::domain::filter::Filter;
use crate::domain::query::ListRequest;

/// Lists entries in ledger order, in pages.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "listEvents", tag = "events", 
    params(
        Filter,
        ("category" = Option<String>, Query, description = params::CATEGORY),
        ListRequest,
        ("fields" = Option<String>, Query, description = params::FIELDS),
    ),
    responses(
        (status = 200, description = "A page of entries", body = EventPageJson),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
        (status = 503, response = responses::Unavailable),
    )
)]
pub(super) async fn list<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<(Extension<AuditedRead>, Json<EventPageJson>), Problem> {
    let mut params = Params::of(query.as_deref())?;
    let fields = params.fields()?;
    let page = api.list(&caller, params.list()?).await.map_err(problem)?;
    let entry = |entry| json::chosen(entry, fields.as_ref());
    let audited_read = audited_read(&caller, page.entries.iter().map(|entry| &entry.content));
    let page = EventPageJson {
        entries: page.entries.iter().map(entry).collect::<Result<_, _>>()?,
        next_cursor: page.next_cursor,
    };
    Ok((audited_read.extension(), Json(page)))
}

/// Returns the history of a job: its runs, their state and their events.
#[utoipa::path(
    get, path = "/v1/jobs/{cluster}/{job}", operation_id = "getJobHistory", tag = "events",
    params(
        ("cluster" = String, Path, description = "Slurm cluster (`ClusterName`)"),
        ("job" = String, Path, description = "Job id as Slurm displays it: `123`, `123_4`, `123+1`"),
        ("at" = Option<String>, Query, description = "Returns the state and history at this time: RFC 3339, a date, or a duration before now such as `2h`. Default: now"),
    ),
    responses(
        (status = 200, description = "The job history", body = JobHistoryJson), (status = 400, response = responses::BadRequest),
        (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound),
        (status = 503, response = responses::Unavailable),
    )
)]
pub(super) async fn job<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    Path((cluster, job)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<(Extension<AuditedRead>, Response), Problem> {
    let at = at(query.as_deref())?;
    let history = api
        .job(&caller, &cluster, &job, at)
        .await
        .map_err(problem)?;
    let audited_read = audited_runs(&caller, &history.runs);
    let history = json::history(cluster, job, at, history);
    Ok((audited_read.extension(), json::response(&history)?))
}

/// Returns the current or a past state of a node, with its timeline.
#[utoipa::path(
    get, path = "/v1/nodes/{cluster}/{node}", operation_id = "getNodeTimeline", tag = "events",
    params(
        ("cluster" = String, Path, description = "Slurm cluster (`ClusterName`)"), ("node" = String, Path, description = "Node (`NodeName`)"),
        ("at" = Option<String>, Query, description = "Returns the state and history at this time: RFC 3339, a date, or a duration before now such as `2h`. Default: now"),
    ),
    responses(
        (status = 200, description = "The node", body = NodeJson), (status = 400, response = responses::BadRequest),
        (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound),
        (status = 503, response = responses::Unavailable),
    )
)]
pub(super) async fn node<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    Path((cluster, node)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<(Extension<AuditedRead>, Response), Problem> {
    let at = at(query.as_deref())?;
    let history = api
        .node(&caller, &cluster, &node, at)
        .await
        .map_err(problem)?;
    let node = json::node(cluster, node, at, history);
    Ok((AuditedRead::nothing().extension(), json::response(&node)?))
}

/// Head of the hash chain.
#[derive(Serialize, ToSchema)]
#[schema(as = Head)]
pub(super) struct HeadJson {
    /// Sequence of the last entry; 0 if the ledger is empty.
    seq: u64,
    /// Chain value of the last entry, in hexadecimal.
    chain: String,
}

/// Returns the head of the hash chain.
///
/// It contains no personal data. Any caller may store it, to check the ledger against it later.
#[utoipa::path(
    get, path = "/v1/ledger/head", operation_id = "getLedgerHead", tag = "proof",
    responses((status = 200, description = "The head", body = HeadJson), (status = 401, response = responses::Unauthorized))
)]
pub(super) async fn head<A: EventsApi>(
    State(api): State<Arc<A>>,
    _caller: Caller,
) -> Result<(Extension<AuditedRead>, Json<HeadJson>), Problem> {
    let head = api.head().await.map_err(problem)?;
    let head = HeadJson {
        seq: head.seq,
        chain: hex::encode(head.chain),
    };
    Ok((AuditedRead::nothing().extension(), Json(head)))
}

impl Params {
    /// Removes and parses `fields`.
    pub(super) fn fields(&mut self) -> Result<Option<Fields>, Problem> {
        self.take("fields")
            .map(|text| Fields::parse(&text))
            .transpose()
    }
}

/// Parses the only parameter of a history.
fn at(query: Option<&str>) -> Result<Option<DateTime<Utc>>, Problem> {
    let mut params = Params::of(query)?;
    let at = params.time("at")?;
    params.end("at")?;
    Ok(at.map(|at| at.resolve(&Utc::now())))
}

pub(super) fn problem(error: ApiError) -> Problem {
    match error {
        ApiError::Invalid(_) => Problem::bad_request(error.to_string()),
        ApiError::Forbidden(_) => Problem::new(StatusCode::FORBIDDEN, error.to_string()),
        ApiError::NoJob { .. } | ApiError::NoNode { .. } => Problem::not_found(error.to_string()),
        ApiError::Store(error) => unavailable::problem(&error),
    }
}

/// Formats a value as a line of NDJSON.
pub(super) fn line(value: &Value) -> String {
    format!("{value}\n")
}
