//! REST: `/v1/replays`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use chrono::{DateTime, SecondsFormat};
use mesh_runtime::api::{Caller, Problem, log_unavailable};
use serde::Serialize;
use utoipa::ToSchema;

use super::{ReplayError, Replays, subject_of};
use crate::api::params::Params;
use crate::api::{responses, unavailable};
use crate::domain::filter::Filter;
use crate::domain::replay::{Replay, ReplayRequest};

/// Header that makes a request idempotent.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

pub(super) fn router(replays: Arc<Replays>) -> Router {
    Router::new()
        .route("/v1/replays", get(list).post(start))
        .route("/v1/replays/{id}", get(one).delete(cancel))
        .with_state(replays)
}

/// A replay and its progress. This is the service's own record, neither signed nor verified; the audit has who began and ended it.
#[derive(Serialize, ToSchema)]
#[schema(as = Replay)]
pub(in crate::api) struct ReplayJson {
    /// Id of the replay, a UUID.
    id: String,
    /// `running`, `done`, `failed` or `cancelled`.
    state: &'static str,
    /// Caller who started it.
    made_by: String,
    /// When it was started, RFC 3339.
    made_at: Option<String>,
    /// When it ended, RFC 3339; null while it runs.
    ended_at: Option<String>,
    /// Caller who cancelled it; null if it was not cancelled.
    cancelled_by: Option<String>,
    /// The filter, with absolute times.
    filter: Filter,
    /// Full name of the webhook; null if it is replayed on the bus.
    endpoint: Option<String>,
    /// NATS subject of the replayed messages.
    subject: String,
    /// Maximum events per second.
    rate: u32,
    /// First ledger sequence of the range.
    from_seq: u64,
    /// Last ledger sequence of the range.
    to_seq: u64,
    /// Last ledger sequence processed.
    cursor: u64,
    /// Number of events published.
    sent: u64,
    /// Processed part of the range, from 0 to 1.
    progress: f64,
    /// Why it waits or failed; null if there is no problem.
    problem: Option<String>,
}

/// A list of replays.
#[derive(Serialize, ToSchema)]
#[schema(as = Replays)]
pub(in crate::api) struct ReplaysJson {
    /// The replays, newest first.
    replays: Vec<ReplayJson>,
}

/// Starts a replay.
///
/// Publishes the selected events again with their original ids on `mesh.replay.<id>.>`. Continues after a crash.
#[utoipa::path(
    post, path = "/v1/replays", operation_id = "startReplay", tag = "replays", request_body = ReplayRequest,
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "Key of the request: 1 to 200 printable ASCII characters without spaces. Repeating the request with the same key returns the existing replay"),
    ),
    responses(
        (status = 201, description = "The replay was started", body = ReplayJson, headers(("location" = String, description = "Path of the replay"))),
        (status = 200, description = "The replay exists: it was started with this key before", body = ReplayJson),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
        (status = 409, response = responses::Conflict), (status = 503, response = responses::Unavailable),
    )
)]
pub(in crate::api) async fn start(
    State(replays): State<Arc<Replays>>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let requested: ReplayRequest = serde_json::from_slice(&body).map_err(|error| {
        Problem::bad_request(format!("the body is not a replay request: {error}"))
    })?;
    let key = headers.get(IDEMPOTENCY_KEY).map(|key| {
        // A value that is not text is rejected as a key.
        String::from_utf8_lossy(key.as_bytes()).into_owned()
    });
    let (replay, new) = replays
        .start(&caller, requested, key)
        .await
        .map_err(problem)?;
    let location = [(LOCATION, format!("/v1/replays/{}", replay.id))];
    let replay = Json(to_json(replay));
    Ok(match new {
        true => (StatusCode::CREATED, location, replay).into_response(),
        false => replay.into_response(),
    })
}

/// Lists replays, newest first.
///
/// Administrators and auditors see all replays, other callers their own.
#[utoipa::path(
    get, path = "/v1/replays", operation_id = "listReplays", tag = "replays",
    params(
        ("state" = Option<String>, Query, description = "Only replays in this state: `running`, `done`, `failed` or `cancelled`"),
        ("limit" = Option<u32>, Query, description = "Maximum number of replays, 1 to 1000. Default: 100", minimum = 1),
    ),
    responses(
        (status = 200, description = "The replays", body = ReplaysJson),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized),
    )
)]
pub(in crate::api) async fn list(
    State(replays): State<Arc<Replays>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<ReplaysJson>, Problem> {
    let mut params = Params::of(query.as_deref())?;
    let (state, limit) = (params.take("state"), params.number("limit")?);
    params.end("state, limit")?;
    let found = replays.list(&caller, state, limit).await.map_err(problem)?;
    Ok(Json(ReplaysJson {
        replays: found.into_iter().map(to_json).collect(),
    }))
}

/// Returns a replay with its progress.
#[utoipa::path(
    get, path = "/v1/replays/{id}", operation_id = "getReplay", tag = "replays", params(("id" = String, Path, description = "Id of the replay")),
    responses(
        (status = 200, description = "The replay", body = ReplayJson),
        (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound),
    )
)]
pub(in crate::api) async fn one(
    State(replays): State<Arc<Replays>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<ReplayJson>, Problem> {
    let replay = replays.get(&caller, &id).await.map_err(problem)?;
    Ok(Json(to_json(replay)))
}

/// Cancels a replay.
///
/// Delivered messages remain delivered; undelivered ones are removed from the stream.
#[utoipa::path(
    delete, path = "/v1/replays/{id}", operation_id = "cancelReplay", tag = "replays", params(("id" = String, Path, description = "Id of the replay")),
    responses(
        (status = 200, description = "The cancelled replay", body = ReplayJson),
        (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
        (status = 409, response = responses::Conflict),
    )
)]
pub(in crate::api) async fn cancel(
    State(replays): State<Arc<Replays>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<ReplayJson>, Problem> {
    let replay = replays.cancel(&caller, &id).await.map_err(problem)?;
    Ok(Json(to_json(replay)))
}

fn to_json(replay: Replay) -> ReplayJson {
    ReplayJson {
        state: replay.state.as_str(),
        made_by: replay.request.requester.name.clone(),
        made_at: time(replay.made_at),
        ended_at: replay.ended_at.and_then(time),
        subject: subject_of(&replay),
        rate: replay.request.rate,
        from_seq: replay.request.begin().unsigned_abs() + 1,
        to_seq: replay.to_seq.unsigned_abs(),
        cursor: replay.cursor.unsigned_abs(),
        sent: replay.sent.unsigned_abs(),
        progress: replay.progress(),
        filter: replay.request.filter,
        endpoint: replay.request.requested.endpoint,
        cancelled_by: replay.cancelled_by,
        problem: (!replay.problem.is_empty()).then_some(replay.problem),
        id: replay.id,
    }
}

fn time(micros: i64) -> Option<String> {
    DateTime::from_timestamp_micros(micros)
        .map(|time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

fn problem(error: ReplayError) -> Problem {
    let text = error.to_string();
    match &error {
        ReplayError::Invalid(_) => Problem::bad_request(text),
        ReplayError::Forbidden(_) => Problem::forbidden(text),
        ReplayError::NotFound(_) => Problem::not_found(text),
        ReplayError::Conflict(_) => Problem::new(StatusCode::CONFLICT, text),
        ReplayError::Store(error) => unavailable::problem(error),
        ReplayError::Bus(_) => {
            log_unavailable(&error);
            Problem::unavailable(text)
        }
    }
}
