//! The REST routes, with their requests and responses.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use chrono::{DateTime, Utc};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::form_urlencoded;
use utoipa::ToSchema;

use super::{
    ApiError, Page, Preview, PreviewRequest, Rotation, TestRequest, TestResult, Webhook,
    WebhookWithSecret, WebhooksApi, openapi, shown,
};
use crate::adapters::redeliveries::{RedeliverRequest, RedeliveryJob};
use crate::adapters::store::{Attempt, Delivery};
use crate::config::EndpointConfig;
use crate::domain::cause::Cause;

/// Maximum body of a request: larger than any endpoint or event.
const MOST_BODY: usize = 1024 * 1024;

pub(super) fn router<A: WebhooksApi>(api: Arc<A>) -> Router {
    Router::new()
        .route("/v1/webhooks", get(list::<A>).post(create::<A>))
        .route("/v1/webhooks/openapi.json", get(openapi::serve))
        .route("/v1/webhooks/preview", post(preview::<A>))
        .route(
            "/v1/webhooks/{name}",
            get(show::<A>).patch(edit::<A>).delete(remove::<A>),
        )
        .route("/v1/webhooks/{name}/deliveries", get(deliveries::<A>))
        .route("/v1/webhooks/{name}/deliveries/{id}", get(delivery::<A>))
        .route("/v1/webhooks/{name}/redeliver", post(redeliver::<A>))
        .route("/v1/webhooks/{name}/redeliveries", get(redeliveries::<A>))
        .route("/v1/webhooks/{name}/pause", post(pause::<A>))
        .route("/v1/webhooks/{name}/resume", post(resume::<A>))
        .route("/v1/webhooks/{name}/rotate", post(rotate::<A>))
        .route("/v1/webhooks/{name}/test", post(test::<A>))
        .layer(DefaultBodyLimit::max(MOST_BODY))
        .with_state(api)
}

/// Whose endpoint a request is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "it describes what [`Named`] reads")]
pub(super) struct OwnerQuery {
    /// Whose webhook it is; empty for one of no user. The caller's, or else of no user, if not given.
    owner: Option<String>,
}

/// The endpoint named by the path, with the owner from the query.
pub(super) struct WebhookPath(String);

impl<S: Send + Sync> FromRequestParts<S> for WebhookPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<BTreeMap<String, String>>::from_request_parts(parts, state).await;
        let Path(mut path) = path.map_err(|error| Problem::bad_request(error.to_string()))?;
        let name = path.remove("name").unwrap_or_default();
        let query = parts.uri.query().unwrap_or_default();
        let owners = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "owner");
        // Repeated owners form a name that does not exist.
        let owners: Vec<_> = owners.map(|(_, owner)| owner).collect();
        Ok(Self(match owners.as_slice() {
            [] => name,
            owners => format!("{}/{name}", owners.join("/")),
        }))
    }
}

type Answer<T> = Result<(Extension<AuditedRead>, Json<T>), Problem>;

/// Endpoints.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookList {
    /// By full name.
    webhooks: Vec<Webhook>,
}

/// Deliveries.
#[derive(Serialize, ToSchema)]
pub(super) struct DeliveryList {
    /// The newest first.
    deliveries: Vec<DeliveryJson>,
    /// Where the next page begins: `cursor` of the next request, with all else as in this one. Absent behind the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// One event on its way to an endpoint.
#[derive(Serialize, ToSchema)]
#[schema(as = WebhookDelivery)]
struct DeliveryJson {
    /// Id of the event.
    event_id: String,
    /// Its type; empty for a message of the dispatcher's own.
    event_type: String,
    /// `waiting`, `delivered`, `dead` or `expired`.
    state: &'static str,
    /// Attempts so far.
    attempts: u32,
    /// HTTP status of the last attempt; 0 without an answer.
    status: u16,
    /// Error of the last attempt; empty on success.
    error: String,
    /// Why the last attempt failed, in one word; empty on success.
    cause: &'static str,
    /// How often it was begun again.
    round: u32,
    /// When it came.
    created_at: DateTime<Utc>,
    /// When it changed.
    updated_at: DateTime<Utc>,
    /// When it is tried next.
    next_at: Option<DateTime<Utc>>,
}

impl From<Delivery> for DeliveryJson {
    fn from(delivery: Delivery) -> Self {
        Self {
            event_id: delivery.event_id,
            event_type: delivery.event_type,
            state: delivery.state.as_str(),
            attempts: delivery.attempts,
            status: delivery.status,
            error: delivery.error,
            cause: delivery.cause.map_or("", Cause::as_str),
            round: delivery.round,
            created_at: delivery.created_at,
            updated_at: delivery.updated_at,
            next_at: delivery.next_at,
        }
    }
}

/// The endpoints that the caller may see.
#[utoipa::path(get, operation_id = "listWebhooks", path = "/v1/webhooks", tag = "webhooks", responses(
    (status = 200, description = "Endpoints by name", body = WebhookList), (status = 401, response = openapi::Unauthorized),
))]
pub(super) async fn list<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
) -> Answer<WebhookList> {
    let webhooks = api.list(&caller).await.map_err(problem)?;
    let shown = shown(
        &caller,
        webhooks.iter().map(|webhook| webhook.owner.as_str()),
    );
    Ok((shown.extension(), Json(WebhookList { webhooks })))
}

/// Makes an endpoint. Its signing secret is in the answer, and never again.
#[utoipa::path(post, operation_id = "createWebhook", path = "/v1/webhooks", tag = "webhooks", request_body = NewWebhook, responses(
    (status = 201, description = "The endpoint and its secret", body = WebhookWithSecret), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
    (status = 503, response = openapi::Unprepared),
))]
pub(super) async fn create<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    bytes: Bytes,
) -> Result<(StatusCode, Extension<AuditedRead>, Json<WebhookWithSecret>), Problem> {
    let made = api.create(&caller, body(&bytes)?).await.map_err(problem)?;
    let shown = shown(&caller, [made.webhook.owner.as_str()]);
    Ok((StatusCode::CREATED, shown.extension(), Json(made)))
}

/// An endpoint to be made.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it describes what the API takes")]
pub(super) struct NewWebhook {
    /// Unix user it belongs to: the caller if not given; only administrators name another.
    owner: Option<String>,
    #[schema(inline)]
    #[serde(flatten)]
    spec: EndpointConfig,
}

/// An endpoint.
#[utoipa::path(get, operation_id = "getWebhook", path = "/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path, description = "Its name"), OwnerQuery), responses(
    (status = 200, description = "The endpoint", body = Webhook), (status = 401, response = openapi::Unauthorized),
    (status = 404, response = openapi::NotFound),
))]
pub(super) async fn show<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
) -> Answer<Webhook> {
    answer(&caller, api.get(&caller, &name).await)
}

/// Changes an endpoint: a JSON merge patch (RFC 7396), `null` takes a value back to its default.
#[utoipa::path(patch, operation_id = "updateWebhook", path = "/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path, description = "Its name"), OwnerQuery),
    request_body(content = EndpointConfig, content_type = "application/merge-patch+json"), responses(
    (status = 200, description = "The changed endpoint", body = Webhook), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn edit<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    bytes: Bytes,
) -> Answer<Webhook> {
    answer(&caller, api.edit(&caller, &name, body(&bytes)?).await)
}

/// Removes an endpoint. What waits for it ends as dead letters; the name is free again a moment later.
#[utoipa::path(delete, operation_id = "deleteWebhook", path = "/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path, description = "Its name"), OwnerQuery), responses(
    (status = 204, description = "It is being removed"), (status = 401, response = openapi::Unauthorized),
    (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound), (status = 409, response = openapi::Conflict),
))]
pub(super) async fn remove<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
) -> Result<(StatusCode, Extension<AuditedRead>), Problem> {
    api.remove(&caller, &name).await.map_err(problem)?;
    Ok((StatusCode::NO_CONTENT, AuditedRead::nothing().extension()))
}

/// Why an endpoint is to wait.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Pause {
    /// For people.
    #[schema(max_length = 500)]
    reason: String,
}

/// Lets an endpoint wait. Its events are queued on the bus, as long as the bus keeps them.
#[utoipa::path(post, operation_id = "pauseWebhook", path = "/v1/webhooks/{name}/pause", tag = "webhooks", params(("name" = String, Path, description = "Its name"), OwnerQuery),
    request_body = Option<Pause>, responses(
    (status = 200, description = "The endpoint", body = Webhook), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn pause<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    bytes: Bytes,
) -> Answer<Webhook> {
    let Pause { reason } = optional(&bytes)?;
    answer(&caller, api.pause(&caller, &name, &reason).await)
}

/// Lets an endpoint go on.
#[utoipa::path(post, operation_id = "resumeWebhook", path = "/v1/webhooks/{name}/resume", tag = "webhooks", params(("name" = String, Path, description = "Its name"), OwnerQuery), responses(
    (status = 200, description = "The endpoint", body = Webhook), (status = 401, response = openapi::Unauthorized),
    (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound), (status = 409, response = openapi::Conflict),
))]
pub(super) async fn resume<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
) -> Answer<Webhook> {
    answer(&caller, api.resume(&caller, &name).await)
}

/// Makes a new signing secret, which is in the answer and never again; the old one signs beside it for a while.
#[utoipa::path(post, operation_id = "rotateWebhookSecret", path = "/v1/webhooks/{name}/rotate", tag = "webhooks", params(("name" = String, Path, description = "Its name"), OwnerQuery),
    request_body = Option<Rotation>, responses(
    (status = 200, description = "The endpoint and its new secret", body = WebhookWithSecret), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn rotate<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    bytes: Bytes,
) -> Answer<WebhookWithSecret> {
    let rotated = api.rotate(&caller, &name, optional(&bytes)?).await;
    let rotated = rotated.map_err(problem)?;
    let shown = shown(&caller, [rotated.webhook.owner.as_str()]);
    Ok((shown.extension(), Json(rotated)))
}

/// Sends a sample, or an event that is given, once and now, and says what came of it. Nothing is stored.
#[utoipa::path(post, operation_id = "testWebhook", path = "/v1/webhooks/{name}/test", tag = "webhooks", params(("name" = String, Path, description = "Its name"), OwnerQuery),
    request_body = Option<TestRequest>, responses(
    (status = 200, description = "What came of it", body = TestResult), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
    (status = 429, response = openapi::TooMany),
))]
pub(super) async fn test<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    bytes: Bytes,
) -> Answer<TestResult> {
    let tested = api.test(&caller, &name, optional(&bytes)?).await;
    let tested = tested.map_err(problem)?;
    Ok((AuditedRead::nothing().extension(), Json(tested)))
}

/// Shows what an endpoint would be sent, or what a format makes, of an event or a sample. Nothing is sent or stored.
#[utoipa::path(post, operation_id = "previewWebhook", path = "/v1/webhooks/preview", tag = "webhooks", request_body = PreviewRequest, responses(
    (status = 200, description = "What would be sent", body = Preview), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn preview<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    bytes: Bytes,
) -> Answer<Preview> {
    let draft = serde_json::from_value(body(&bytes)?)
        .map_err(|error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
    let previewed = api.preview(&caller, draft).await;
    let previewed = previewed.map_err(problem)?;
    Ok((AuditedRead::nothing().extension(), Json(previewed)))
}

/// The newest deliveries of an endpoint.
#[utoipa::path(get, operation_id = "listDeliveries", path = "/v1/webhooks/{name}/deliveries", tag = "webhooks", params(("name" = String, Path, description = "Its name"), Page), responses(
    (status = 200, description = "The newest first", body = DeliveryList), (status = 400, description = "A parameter is wrong", content_type = "text/plain"),
    (status = 401, response = openapi::Unauthorized), (status = 404, response = openapi::NotFound), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn deliveries<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    Query(page): Query<Page>,
) -> Answer<DeliveryList> {
    let found = api.deliveries(&caller, &name, page).await;
    let listed = found.map_err(problem)?;
    let owners = listed.deliveries.iter().map(|_| listed.owner.as_str());
    let shown = shown(&caller, owners);
    let list = DeliveryList {
        deliveries: listed.deliveries.into_iter().map(Into::into).collect(),
        next_cursor: listed.next_cursor,
    };
    Ok((shown.extension(), Json(list)))
}

/// A delivery with its attempts.
#[derive(Serialize, ToSchema)]
#[schema(as = WebhookDeliveryInFull)]
pub(super) struct DeliveryWithAttempts {
    #[serde(flatten)]
    delivery: DeliveryJson,
    /// Requests that were made, the first one first; the last 50 are kept.
    tried: Vec<AttemptJson>,
    /// The event (CloudEvents JSON), while it waits or is a dead letter.
    #[schema(value_type = Option<Object>)]
    event: Option<Value>,
}

/// A request that was made for a delivery.
#[derive(Serialize, ToSchema)]
#[schema(as = WebhookAttempt)]
struct AttemptJson {
    /// Its number, from 1.
    number: u32,
    /// When it began.
    at: DateTime<Utc>,
    /// HTTP status; 0 without an answer.
    status: u16,
    /// How long it took.
    latency_ms: u64,
    /// Why it failed, in one word; empty on success.
    cause: &'static str,
    /// What went wrong; empty if nothing did.
    error: String,
    /// Beginning of the answer's body, at most 1 KiB.
    snippet: String,
    /// When the next one was planned.
    next_at: Option<DateTime<Utc>>,
}

impl From<Attempt> for AttemptJson {
    fn from(attempt: Attempt) -> Self {
        Self {
            number: attempt.n,
            at: attempt.at,
            status: attempt.status,
            latency_ms: attempt.latency_ms,
            cause: attempt.cause.map_or("", Cause::as_str),
            error: attempt.error,
            snippet: attempt.snippet,
            next_at: attempt.next_at,
        }
    }
}

/// A delivery: its event, and what came of each attempt.
#[utoipa::path(get, operation_id = "getDelivery", path = "/v1/webhooks/{name}/deliveries/{id}", tag = "webhooks", params(
    ("name" = String, Path, description = "Name of the endpoint"), ("id" = String, Path, description = "Id of the event"), OwnerQuery), responses(
    (status = 200, description = "The delivery", body = DeliveryWithAttempts), (status = 401, response = openapi::Unauthorized),
    (status = 404, response = openapi::NotFound),
))]
pub(super) async fn delivery<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    Path((_, id)): Path<(String, String)>,
) -> Answer<DeliveryWithAttempts> {
    let found = api.delivery(&caller, &name, &id).await;
    let (owner, delivery, attempts) = found.map_err(problem)?;
    let shown = shown(&caller, [owner.as_str()]);
    let full = DeliveryWithAttempts {
        event: delivery.cloud_event(),
        delivery: delivery.into(),
        tried: attempts.into_iter().map(Into::into).collect(),
    };
    Ok((shown.extension(), Json(full)))
}

/// Redeliveries.
#[derive(Serialize, ToSchema)]
pub(super) struct RedeliveryList {
    /// The newest first.
    redeliveries: Vec<RedeliveryJob>,
}

/// Has dead letters delivered again, with the same `webhook-id`: those that are named, or those that a filter fits. It goes on over restarts.
#[utoipa::path(post, operation_id = "redeliverDeliveries", path = "/v1/webhooks/{name}/redeliver", tag = "webhooks", params(("name" = String, Path, description = "Name of the endpoint"), OwnerQuery),
    request_body = RedeliverRequest, responses(
    (status = 202, description = "What was asked for", body = RedeliveryJob), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn redeliver<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    bytes: Bytes,
) -> Result<(StatusCode, Extension<AuditedRead>, Json<RedeliveryJob>), Problem> {
    let job = api.redeliver(&caller, &name, optional(&bytes)?).await;
    let job = job.map_err(problem)?;
    Ok((
        StatusCode::ACCEPTED,
        AuditedRead::nothing().extension(),
        Json(job),
    ))
}

/// What was asked to be delivered again, and how far that is.
#[utoipa::path(get, operation_id = "listRedeliveries", path = "/v1/webhooks/{name}/redeliveries", tag = "webhooks", params(("name" = String, Path, description = "Name of the endpoint"), OwnerQuery), responses(
    (status = 200, description = "The newest first", body = RedeliveryList), (status = 401, response = openapi::Unauthorized),
    (status = 404, response = openapi::NotFound),
))]
pub(super) async fn redeliveries<A: WebhooksApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
) -> Answer<RedeliveryList> {
    let found = api.redeliveries(&caller, &name).await;
    let (owner, redeliveries) = found.map_err(problem)?;
    let shown = shown(&caller, redeliveries.iter().map(|_| owner.as_str()));
    Ok((shown.extension(), Json(RedeliveryList { redeliveries })))
}

fn answer(caller: &Caller, webhook: Result<Webhook, ApiError>) -> Answer<Webhook> {
    let webhook = webhook.map_err(problem)?;
    let shown = shown(caller, [webhook.owner.as_str()]);
    Ok((shown.extension(), Json(webhook)))
}

/// Parses the body as JSON, whatever its content type.
fn body(bytes: &[u8]) -> Result<Value, Problem> {
    serde_json::from_slice(bytes)
        .map_err(|error| Problem::bad_request(format!("the body is no JSON: {error}")))
}

/// Parses a body that may be absent.
fn optional<T: DeserializeOwned + Default>(bytes: &[u8]) -> Result<T, Problem> {
    if bytes.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_value(body(bytes)?)
        .map_err(|error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))
}

fn problem(error: ApiError) -> Problem {
    let text = error.to_string();
    match &error {
        ApiError::NotFound(_) | ApiError::NoDelivery(_) => Problem::not_found(text),
        ApiError::Forbidden(_) => Problem::forbidden(text),
        ApiError::Conflict(_) => Problem::new(StatusCode::CONFLICT, text),
        ApiError::Invalid(_) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, text),
        ApiError::TooMany { after, .. } => Problem::too_many(text, *after),
        ApiError::Unprepared(_) => Problem::unavailable(text, 3600),
        ApiError::Internal(error) => Problem::internal(error),
    }
}
