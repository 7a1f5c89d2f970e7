//! The REST routes, with their requests and responses.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::form_urlencoded;
use utoipa::ToSchema;

use super::{
    ApiError, Page, Preview, PreviewRequest, Rotation, TestRequest, TestResult, Webhook,
    WebhookWithSecret, Webhooks, openapi, shown,
};
use crate::config::EndpointConfig;
use crate::store::redeliveries::{RedeliverRequest, RedeliveryJob};
use crate::store::{Attempt, Delivery};

/// Maximum body of a request: larger than any endpoint or event.
const MAX_BODY: usize = 1024 * 1024;

pub(super) fn router(api: Arc<Webhooks>) -> Router {
    Router::new()
        .route("/v1/webhooks", get(list).post(create))
        .route("/v1/webhooks/openapi.json", get(openapi::serve))
        .route("/v1/webhooks/preview", post(preview))
        .route("/v1/webhooks/{name}", get(show).patch(edit).delete(remove))
        .route("/v1/webhooks/{name}/deliveries", get(deliveries))
        .route("/v1/webhooks/{name}/deliveries/{id}", get(delivery))
        .route("/v1/webhooks/{name}/redeliver", post(redeliver))
        .route("/v1/webhooks/{name}/redeliveries", get(redeliveries))
        .route("/v1/webhooks/{name}/pause", post(pause))
        .route("/v1/webhooks/{name}/resume", post(resume))
        .route("/v1/webhooks/{name}/rotate", post(rotate))
        .route("/v1/webhooks/{name}/test", post(test))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(api)
}

/// Whose endpoint a request is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "it describes what [`Named`] reads")]
pub(super) struct OwnerQuery {
    /// Owner of the webhook: a Unix user; empty for a webhook without an owner. Default: the caller's webhook of
    /// this name, otherwise one without an owner.
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

/// A list of webhooks.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookList {
    /// The webhooks, ordered by full name.
    webhooks: Vec<Webhook>,
}

/// A page of deliveries.
#[derive(Serialize, ToSchema)]
pub(super) struct DeliveryList {
    /// The deliveries, newest first.
    deliveries: Vec<Delivery>,
    /// `cursor` of the next page, to be sent with the same filters. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists the webhooks that the caller may see.
#[utoipa::path(get, operation_id = "listWebhooks", path = "/v1/webhooks", tag = "webhooks", responses(
    (status = 200, description = "The webhooks", body = WebhookList), (status = 401, response = openapi::Unauthorized),
))]
pub(super) async fn list(State(api): State<Arc<Webhooks>>, caller: Caller) -> Answer<WebhookList> {
    let webhooks = api.list(&caller).await.map_err(problem)?;
    let shown = shown(
        &caller,
        webhooks.iter().map(|webhook| webhook.owner.as_str()),
    );
    Ok((shown.extension(), Json(WebhookList { webhooks })))
}

/// Creates a webhook.
///
/// The response contains the signing secret, which is not shown again.
#[utoipa::path(post, operation_id = "createWebhook", path = "/v1/webhooks", tag = "webhooks", request_body = NewWebhook, responses(
    (status = 201, description = "The created webhook and its secret", body = WebhookWithSecret), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
    (status = 503, response = openapi::Unprepared),
))]
pub(super) async fn create(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    bytes: Bytes,
) -> Result<(StatusCode, Extension<AuditedRead>, Json<WebhookWithSecret>), Problem> {
    let made = api.create(&caller, body(&bytes)?).await.map_err(problem)?;
    let shown = shown(&caller, [made.webhook.owner.as_str()]);
    Ok((StatusCode::CREATED, shown.extension(), Json(made)))
}

/// A webhook to create.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it describes what the API takes")]
pub(super) struct NewWebhook {
    /// Unix user who owns it. Default: the caller. Only administrators may name another user.
    owner: Option<String>,
    #[schema(inline)]
    #[serde(flatten)]
    spec: EndpointConfig,
}

/// Returns a webhook.
#[utoipa::path(get, operation_id = "getWebhook", path = "/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery), responses(
    (status = 200, description = "The webhook", body = Webhook), (status = 401, response = openapi::Unauthorized),
    (status = 404, response = openapi::NotFound),
))]
pub(super) async fn show(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
) -> Answer<Webhook> {
    answer(&caller, api.get(&caller, &name).await)
}

/// Changes a webhook by a JSON merge patch (RFC 7396).
///
/// `null` resets a field to its default. `name`, `owner` and `secret` cannot be changed.
#[utoipa::path(patch, operation_id = "updateWebhook", path = "/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery),
    request_body(content = EndpointConfig, content_type = "application/merge-patch+json"), responses(
    (status = 200, description = "The changed webhook", body = Webhook), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn edit(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    bytes: Bytes,
) -> Answer<Webhook> {
    answer(&caller, api.edit(&caller, &name, body(&bytes)?).await)
}

/// Removes a webhook.
///
/// Its waiting deliveries become dead letters. The name can be reused once the removal is complete.
#[utoipa::path(delete, operation_id = "deleteWebhook", path = "/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery), responses(
    (status = 204, description = "The removal has started"), (status = 401, response = openapi::Unauthorized),
    (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound), (status = 409, response = openapi::Conflict),
))]
pub(super) async fn remove(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
) -> Result<(StatusCode, Extension<AuditedRead>), Problem> {
    api.remove(&caller, &name).await.map_err(problem)?;
    Ok((StatusCode::NO_CONTENT, AuditedRead::nothing().extension()))
}

/// A pause of a webhook.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Pause {
    /// Free text, at most 500 characters. Default: `paused by` and the caller's name.
    #[schema(max_length = 500)]
    reason: String,
}

/// Pauses a webhook.
///
/// Its events are queued on the bus until it is resumed, at most for the retention time of the bus.
#[utoipa::path(post, operation_id = "pauseWebhook", path = "/v1/webhooks/{name}/pause", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery),
    request_body = Option<Pause>, responses(
    (status = 200, description = "The webhook", body = Webhook), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn pause(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    bytes: Bytes,
) -> Answer<Webhook> {
    let Pause { reason } = optional(&bytes)?;
    answer(&caller, api.pause(&caller, &name, &reason).await)
}

/// Resumes a paused or disabled webhook.
///
/// For an active webhook, closes its circuit breaker and ends a pause requested by the receiver.
#[utoipa::path(post, operation_id = "resumeWebhook", path = "/v1/webhooks/{name}/resume", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery), responses(
    (status = 200, description = "The webhook", body = Webhook), (status = 401, response = openapi::Unauthorized),
    (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound), (status = 409, response = openapi::Conflict),
))]
pub(super) async fn resume(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
) -> Answer<Webhook> {
    answer(&caller, api.resume(&caller, &name).await)
}

/// Replaces the signing secret.
///
/// The response contains the new secret, which is not shown again. The old secret also signs until `overlap` ends.
#[utoipa::path(post, operation_id = "rotateWebhookSecret", path = "/v1/webhooks/{name}/rotate", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery),
    request_body = Option<Rotation>, responses(
    (status = 200, description = "The webhook and its new secret", body = WebhookWithSecret), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn rotate(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    bytes: Bytes,
) -> Answer<WebhookWithSecret> {
    let rotated = api.rotate(&caller, &name, optional(&bytes)?).await;
    let rotated = rotated.map_err(problem)?;
    let shown = shown(&caller, [rotated.webhook.owner.as_str()]);
    Ok((shown.extension(), Json(rotated)))
}

/// Sends a test delivery.
///
/// Sends a sample or a given event once, immediately, and returns the result. The delivery is not stored.
#[utoipa::path(post, operation_id = "testWebhook", path = "/v1/webhooks/{name}/test", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery),
    request_body = Option<TestRequest>, responses(
    (status = 200, description = "The result", body = TestResult), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
    (status = 429, response = openapi::TooMany),
))]
pub(super) async fn test(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    bytes: Bytes,
) -> Answer<TestResult> {
    let tested = api.test(&caller, &name, optional(&bytes)?).await;
    let tested = tested.map_err(problem)?;
    Ok((AuditedRead::nothing().extension(), Json(tested)))
}

/// Renders a delivery without sending it.
///
/// Uses the format of a webhook or a given format, and a given event or a sample. Nothing is stored.
#[utoipa::path(post, operation_id = "previewWebhook", path = "/v1/webhooks/preview", tag = "webhooks", request_body = PreviewRequest, responses(
    (status = 200, description = "The rendered requests", body = Preview), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn preview(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    bytes: Bytes,
) -> Answer<Preview> {
    let draft = serde_json::from_value(body(&bytes)?)
        .map_err(|error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
    let previewed = api.preview(&caller, draft).await;
    let previewed = previewed.map_err(problem)?;
    Ok((AuditedRead::nothing().extension(), Json(previewed)))
}

/// Lists the deliveries of a webhook, newest first.
#[utoipa::path(get, operation_id = "listDeliveries", path = "/v1/webhooks/{name}/deliveries", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), Page), responses(
    (status = 200, description = "A page of deliveries", body = DeliveryList), (status = 400, description = "A parameter is invalid", content_type = "text/plain"),
    (status = 401, response = openapi::Unauthorized), (status = 404, response = openapi::NotFound), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn deliveries(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    Query(page): Query<Page>,
) -> Answer<DeliveryList> {
    let found = api.deliveries(&caller, &name, page).await;
    let listed = found.map_err(problem)?;
    let owners = listed.deliveries.iter().map(|_| listed.owner.as_str());
    let shown = shown(&caller, owners);
    let list = DeliveryList {
        deliveries: listed.deliveries,
        next_cursor: listed.next_cursor,
    };
    Ok((shown.extension(), Json(list)))
}

/// A delivery with its event and attempts.
#[derive(Serialize, ToSchema)]
#[schema(as = WebhookDeliveryInFull)]
pub(super) struct DeliveryWithAttempts {
    #[serde(flatten)]
    delivery: Delivery,
    /// The last 50 attempts, oldest first.
    tried: Vec<Attempt>,
    /// The event as CloudEvents JSON, while the delivery is `waiting` or `dead`; otherwise null.
    #[schema(value_type = Option<Object>)]
    event: Option<Value>,
}

/// Returns a delivery with its event and attempts.
#[utoipa::path(get, operation_id = "getDelivery", path = "/v1/webhooks/{name}/deliveries/{id}", tag = "webhooks", params(
    ("name" = String, Path, description = "Name of the webhook"), ("id" = String, Path, description = "Id of the event"), OwnerQuery), responses(
    (status = 200, description = "The delivery", body = DeliveryWithAttempts), (status = 401, response = openapi::Unauthorized),
    (status = 404, response = openapi::NotFound),
))]
pub(super) async fn delivery(
    State(api): State<Arc<Webhooks>>,
    caller: Caller,
    WebhookPath(name): WebhookPath,
    Path((_, id)): Path<(String, String)>,
) -> Answer<DeliveryWithAttempts> {
    let found = api.delivery(&caller, &name, &id).await;
    let (owner, delivery, attempts) = found.map_err(problem)?;
    let shown = shown(&caller, [owner.as_str()]);
    let full = DeliveryWithAttempts {
        event: delivery.cloud_event(),
        delivery,
        tried: attempts,
    };
    Ok((shown.extension(), Json(full)))
}

/// A list of redelivery jobs.
#[derive(Serialize, ToSchema)]
pub(super) struct RedeliveryList {
    /// The newest 100 jobs, newest first.
    redeliveries: Vec<RedeliveryJob>,
}

/// Starts a redelivery of dead letters.
///
/// Selects them by id or by filter and sends them with the same `webhook-id`. The job continues after a restart.
#[utoipa::path(post, operation_id = "redeliverDeliveries", path = "/v1/webhooks/{name}/redeliver", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery),
    request_body = RedeliverRequest, responses(
    (status = 202, description = "The started job", body = RedeliveryJob), (status = 400, response = openapi::BadRequest),
    (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden), (status = 404, response = openapi::NotFound),
    (status = 409, response = openapi::Conflict), (status = 422, response = openapi::Unprocessable),
))]
pub(super) async fn redeliver(
    State(api): State<Arc<Webhooks>>,
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

/// Lists the redelivery jobs of a webhook with their progress.
#[utoipa::path(get, operation_id = "listRedeliveries", path = "/v1/webhooks/{name}/redeliveries", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery), responses(
    (status = 200, description = "The redelivery jobs", body = RedeliveryList), (status = 401, response = openapi::Unauthorized),
    (status = 404, response = openapi::NotFound),
))]
pub(super) async fn redeliveries(
    State(api): State<Arc<Webhooks>>,
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
        .map_err(|error| Problem::bad_request(format!("the body is not JSON: {error}")))
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
