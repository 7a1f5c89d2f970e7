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
use mesh_runtime::api::{Caller, Problem};
use serde::Serialize;
use utoipa::ToSchema;

use super::{ReplayError, Replays, subject_of};
use crate::api::params::Params;
use crate::api::{openapi, unavailable};
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

/// A replay request.
#[derive(ToSchema)]
#[schema(as = ReplayRequest)]
#[allow(dead_code, reason = "it describes domain::replay::ReplayRequest")]
pub(in crate::api) struct WantedJson {
    /// Which events. Without `to_seq`: up to the end of the ledger as it is now. Audit entries are not replayed.
    filter: Option<FilterJson>,
    /// Only for this webhook endpoint, one of the caller's own (administrators: any); on the bus if it is left out.
    endpoint: Option<String>,
    /// Events in a second at most; as many as the configuration says (1000) if it is left out.
    #[schema(minimum = 1)]
    rate: Option<u32>,
}

/// Which events; what is left out filters nothing.
#[derive(ToSchema)]
#[schema(as = ReplayFilter)]
#[allow(dead_code, reason = "it describes domain::filter::Filter")]
pub(in crate::api) struct FilterJson {
    /// Slurm's ClusterName.
    cluster: Option<String>,
    /// Types: `job.completed`, `job.*`.
    r#type: Option<Vec<String>>,
    /// Job in Slurm's id form: `123` (with its array tasks or components), `123_4`, `123+1`.
    job: Option<String>,
    /// Entity key of a run, as in `subject` of its events.
    run: Option<String>,
    /// Job id of an array: its own record and its tasks.
    array: Option<u32>,
    /// Unix user.
    user: Option<String>,
    /// OIDC subject or e-mail address of the person.
    identity: Option<String>,
    /// Slurm account.
    account: Option<String>,
    /// Partition.
    partition: Option<String>,
    /// NodeName: events of the node itself, and of jobs that ran on it.
    node: Option<String>,
    /// Job name; a `*` at its end stands for any rest.
    name: Option<String>,
    /// Occurred at or after: RFC 3339, a day, or how long ago such as `2h`, `7days`.
    since: Option<String>,
    /// Occurred before: RFC 3339, or how long ago.
    until: Option<String>,
    /// From this sequence on.
    from_seq: Option<u64>,
    /// Up to this sequence.
    to_seq: Option<u64>,
}

/// A replay, and how it stands.
#[derive(Serialize, ToSchema)]
#[schema(as = Replay)]
pub(in crate::api) struct ReplayJson {
    /// UUID.
    id: String,
    /// `running`, `done`, `failed` or `cancelled`.
    state: &'static str,
    /// Who asked for it.
    made_by: String,
    /// When, RFC 3339.
    made_at: Option<String>,
    /// When it ended, RFC 3339; null while it runs.
    ended_at: Option<String>,
    /// Who cancelled it; null if nobody did.
    cancelled_by: Option<String>,
    /// Which events, with absolute times.
    #[schema(value_type = FilterJson)]
    filter: Filter,
    /// Webhook endpoint it is for; null for the bus.
    endpoint: Option<String>,
    /// NATS subject it can be followed on.
    subject: String,
    /// Events in a second at most.
    rate: u32,
    /// First sequence of the range.
    from_seq: u64,
    /// Last sequence of the range.
    to_seq: u64,
    /// Last published sequence.
    cursor: u64,
    /// Published events.
    sent: u64,
    /// How much of the range is behind it, 0 to 1.
    progress: f64,
    /// What it waits for, or why it failed; null if nothing is wrong.
    problem: Option<String>,
}

/// Replays.
#[derive(Serialize, ToSchema)]
#[schema(as = Replays)]
pub(in crate::api) struct ReplaysJson {
    /// The newest first.
    replays: Vec<ReplayJson>,
}

/// Starts a replay: recorded events are published again, with their ids, on `mesh.replay.<id>.>`. It resumes after a crash.
#[utoipa::path(
    post, path = "/v1/replays", operation_id = "startReplay", tag = "replays", request_body = WantedJson,
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "A text of your own, up to 200 characters: the same request with the same key begins one replay"),
    ),
    responses(
        (status = 201, description = "It was begun", body = ReplayJson, headers(("location" = String, description = "Where it is"))),
        (status = 200, description = "It was begun before, with this key", body = ReplayJson),
        (status = 400, response = openapi::BadRequest), (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden),
        (status = 409, response = openapi::Conflict), (status = 503, response = openapi::Unavailable),
    )
)]
pub(in crate::api) async fn start(
    State(replays): State<Arc<Replays>>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let requested: ReplayRequest = serde_json::from_slice(&body)
        .map_err(|error| Problem::bad_request(format!("the body is no replay: {error}")))?;
    let key = headers.get(IDEMPOTENCY_KEY).map(|key| {
        // A value that is not text is rejected as a key.
        String::from_utf8_lossy(key.as_bytes()).into_owned()
    });
    let (replay, new) = replays
        .start(&caller, requested, key)
        .await
        .map_err(problem)?;
    let location = [(LOCATION, format!("/v1/replays/{}", replay.id))];
    let replay = Json(shown(replay));
    Ok(match new {
        true => (StatusCode::CREATED, location, replay).into_response(),
        false => replay.into_response(),
    })
}

/// The caller's replays (all of them for administrators and auditors), the newest first.
#[utoipa::path(
    get, path = "/v1/replays", operation_id = "listReplays", tag = "replays",
    params(
        ("state" = Option<String>, Query, description = "Only those in this state: `running`, `done`, `failed`, `cancelled`"),
        ("limit" = Option<u32>, Query, description = "At most so many, 1 to 1000; 100 if not given", minimum = 1),
    ),
    responses(
        (status = 200, description = "The replays", body = ReplaysJson),
        (status = 400, response = openapi::BadRequest), (status = 401, response = openapi::Unauthorized),
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
        replays: found.into_iter().map(shown).collect(),
    }))
}

/// How a replay stands.
#[utoipa::path(
    get, path = "/v1/replays/{id}", operation_id = "getReplay", tag = "replays", params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "The replay", body = ReplayJson),
        (status = 401, response = openapi::Unauthorized), (status = 404, response = openapi::NotFound),
    )
)]
pub(in crate::api) async fn one(
    State(replays): State<Arc<Replays>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<ReplayJson>, Problem> {
    let replay = replays.get(&caller, &id).await.map_err(problem)?;
    Ok(Json(shown(replay)))
}

/// Cancels a replay. Delivered messages remain delivered; undelivered ones are removed from the stream.
#[utoipa::path(
    delete, path = "/v1/replays/{id}", operation_id = "cancelReplay", tag = "replays", params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "It is cancelled", body = ReplayJson),
        (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
    )
)]
pub(in crate::api) async fn cancel(
    State(replays): State<Arc<Replays>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<ReplayJson>, Problem> {
    let replay = replays.cancel(&caller, &id).await.map_err(problem)?;
    Ok(Json(shown(replay)))
}

fn shown(replay: Replay) -> ReplayJson {
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
            unavailable::log(&error);
            Problem::unavailable(text, unavailable::RETRY_AFTER_SECONDS)
        }
    }
}
