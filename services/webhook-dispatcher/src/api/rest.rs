//! The REST routes, with their requests and responses.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::form_urlencoded;
use utoipa::ToSchema;

use super::{
    ApiError, DeliveryList, DeliveryWithAttempts, HasOwners, Page, Preview, PreviewRequest,
    RedeliveryList, Rotation, TestRequest, TestResult, Webhook, WebhookList, WebhookWithSecret,
    Webhooks, responses,
};
use crate::config::EndpointConfig;
use crate::store::redeliveries::{RedeliverRequest, RedeliveryJob};

/// Maximum body of a request: larger than any endpoint or event.
const MAX_BODY: usize = 1024 * 1024;

pub(super) fn router(api: Arc<Webhooks>) -> Router {
    Router::new()
        .route("/v1/webhooks", get(list).post(create))
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

/// A request: who asks, and the endpoint named by the path, with the owner from the query.
pub(super) struct Call {
    api: Arc<Webhooks>,
    caller: Caller,
    name: String,
}

impl FromRequestParts<Arc<Webhooks>> for Call {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Webhooks>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, api).await?;
        let path = Path::<BTreeMap<String, String>>::from_request_parts(parts, api).await;
        let Path(mut path) = path.map_err(|error| Problem::bad_request(error.to_string()))?;
        let name = path.remove("name").unwrap_or_default();
        let query = parts.uri.query().unwrap_or_default();
        let owners = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "owner");
        // Repeated owners form a name that does not exist.
        let owners: Vec<_> = owners.map(|(_, owner)| owner).collect();
        let name = match owners.as_slice() {
            [] => name,
            owners => format!("{}/{name}", owners.join("/")),
        };
        let api = Arc::clone(api);
        Ok(Self { api, caller, name })
    }
}

type Answer<T> = Result<(Extension<AuditedRead>, Json<T>), Problem>;
type AnswerWithStatus<T> = Result<(StatusCode, Extension<AuditedRead>, Json<T>), Problem>;

impl Call {
    fn answer<T: HasOwners>(&self, body: Result<T, ApiError>) -> Answer<T> {
        let body = body.map_err(problem)?;
        Ok((body.read_by(&self.caller).extension(), Json(body)))
    }

    fn answer_with<T: HasOwners>(
        &self,
        status: StatusCode,
        body: Result<T, ApiError>,
    ) -> AnswerWithStatus<T> {
        let (read, body) = self.answer(body)?;
        Ok((status, read, body))
    }
}

/// Lists the webhooks that the caller may see.
#[utoipa::path(get, operation_id = "listWebhooks", path = "/v1/webhooks", tag = "webhooks", responses(
    (status = 200, description = "The webhooks", body = WebhookList), (status = 401, response = responses::Unauthorized),
))]
pub(super) async fn list(call: Call) -> Answer<WebhookList> {
    call.answer(call.api.list(&call.caller).await)
}

/// Creates a webhook.
///
/// The response contains the signing secret, which is not shown again.
#[utoipa::path(post, operation_id = "createWebhook", path = "/v1/webhooks", tag = "webhooks", request_body = NewWebhook, responses(
    (status = 201, description = "The created webhook and its secret", body = WebhookWithSecret), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
    (status = 409, response = responses::Conflict), (status = 422, response = responses::Unprocessable),
    (status = 503, response = responses::Unprepared),
))]
pub(super) async fn create(call: Call, bytes: Bytes) -> AnswerWithStatus<WebhookWithSecret> {
    let made = call.api.create(&call.caller, body(&bytes)?).await;
    call.answer_with(StatusCode::CREATED, made)
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
    (status = 200, description = "The webhook", body = Webhook), (status = 401, response = responses::Unauthorized),
    (status = 404, response = responses::NotFound),
))]
pub(super) async fn show(call: Call) -> Answer<Webhook> {
    call.answer(call.api.get(&call.caller, &call.name).await)
}

/// Changes a webhook by a JSON merge patch (RFC 7396).
///
/// `null` resets a field to its default. `name`, `owner` and `secret` cannot be changed.
#[utoipa::path(patch, operation_id = "updateWebhook", path = "/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery),
    request_body(content = EndpointConfig, content_type = "application/merge-patch+json"), responses(
    (status = 200, description = "The changed webhook", body = Webhook), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 409, response = responses::Conflict), (status = 422, response = responses::Unprocessable),
))]
pub(super) async fn edit(call: Call, bytes: Bytes) -> Answer<Webhook> {
    call.answer(call.api.edit(&call.caller, &call.name, body(&bytes)?).await)
}

/// Removes a webhook.
///
/// Its waiting deliveries become dead letters. The name can be reused once the removal is complete.
#[utoipa::path(delete, operation_id = "deleteWebhook", path = "/v1/webhooks/{name}", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery), responses(
    (status = 204, description = "The removal has started"), (status = 401, response = responses::Unauthorized),
    (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound), (status = 409, response = responses::Conflict),
))]
pub(super) async fn remove(call: Call) -> Result<(StatusCode, Extension<AuditedRead>), Problem> {
    let removed = call.api.remove(&call.caller, &call.name).await;
    removed.map_err(problem)?;
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
    (status = 200, description = "The webhook", body = Webhook), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 409, response = responses::Conflict), (status = 422, response = responses::Unprocessable),
))]
pub(super) async fn pause(call: Call, bytes: Bytes) -> Answer<Webhook> {
    let Pause { reason } = optional(&bytes)?;
    call.answer(call.api.pause(&call.caller, &call.name, &reason).await)
}

/// Resumes a paused or disabled webhook.
///
/// For an active webhook, closes its circuit breaker and ends a pause requested by the receiver.
#[utoipa::path(post, operation_id = "resumeWebhook", path = "/v1/webhooks/{name}/resume", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery), responses(
    (status = 200, description = "The webhook", body = Webhook), (status = 401, response = responses::Unauthorized),
    (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound), (status = 409, response = responses::Conflict),
))]
pub(super) async fn resume(call: Call) -> Answer<Webhook> {
    call.answer(call.api.resume(&call.caller, &call.name).await)
}

/// Replaces the signing secret.
///
/// The response contains the new secret, which is not shown again. The old secret also signs until `overlap` ends.
#[utoipa::path(post, operation_id = "rotateWebhookSecret", path = "/v1/webhooks/{name}/rotate", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery),
    request_body = Option<Rotation>, responses(
    (status = 200, description = "The webhook and its new secret", body = WebhookWithSecret), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 409, response = responses::Conflict), (status = 422, response = responses::Unprocessable),
))]
pub(super) async fn rotate(call: Call, bytes: Bytes) -> Answer<WebhookWithSecret> {
    let rotation = optional(&bytes)?;
    call.answer(call.api.rotate(&call.caller, &call.name, rotation).await)
}

/// Sends a test delivery.
///
/// Sends a sample or a given event once, immediately, and returns the result. The delivery is not stored.
#[utoipa::path(post, operation_id = "testWebhook", path = "/v1/webhooks/{name}/test", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery),
    request_body = Option<TestRequest>, responses(
    (status = 200, description = "The result", body = TestResult), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 409, response = responses::Conflict), (status = 422, response = responses::Unprocessable),
    (status = 429, response = responses::TooMany),
))]
pub(super) async fn test(call: Call, bytes: Bytes) -> Answer<TestResult> {
    let test_request = optional(&bytes)?;
    call.answer(call.api.test(&call.caller, &call.name, test_request).await)
}

/// Renders a delivery without sending it.
///
/// Uses the format of a webhook or a given format, and a given event or a sample. Nothing is stored.
#[utoipa::path(post, operation_id = "previewWebhook", path = "/v1/webhooks/preview", tag = "webhooks", request_body = PreviewRequest, responses(
    (status = 200, description = "The rendered requests", body = Preview), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 409, response = responses::Conflict), (status = 422, response = responses::Unprocessable),
))]
pub(super) async fn preview(call: Call, bytes: Bytes) -> Answer<Preview> {
    let draft = serde_json::from_value(body(&bytes)?)
        .map_err(|error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
    call.answer(call.api.preview(&call.caller, draft).await)
}

/// Lists the deliveries of a webhook, newest first.
#[utoipa::path(get, operation_id = "listDeliveries", path = "/v1/webhooks/{name}/deliveries", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), Page), responses(
    (status = 200, description = "A page of deliveries", body = DeliveryList), (status = 400, description = "A parameter is invalid", content_type = "text/plain"),
    (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound), (status = 422, response = responses::Unprocessable),
))]
pub(super) async fn deliveries(call: Call, Query(page): Query<Page>) -> Answer<DeliveryList> {
    call.answer(call.api.deliveries(&call.caller, &call.name, page).await)
}

/// Returns a delivery with its event and attempts.
#[utoipa::path(get, operation_id = "getDelivery", path = "/v1/webhooks/{name}/deliveries/{id}", tag = "webhooks", params(
    ("name" = String, Path, description = "Name of the webhook"), ("id" = String, Path, description = "Id of the event"), OwnerQuery), responses(
    (status = 200, description = "The delivery", body = DeliveryWithAttempts), (status = 401, response = responses::Unauthorized),
    (status = 404, response = responses::NotFound),
))]
pub(super) async fn delivery(
    call: Call,
    Path((_, id)): Path<(String, String)>,
) -> Answer<DeliveryWithAttempts> {
    call.answer(call.api.delivery(&call.caller, &call.name, &id).await)
}

/// Starts a redelivery of dead letters.
///
/// Selects them by id or by filter and sends them with the same `webhook-id`. The job continues after a restart.
#[utoipa::path(post, operation_id = "redeliverDeliveries", path = "/v1/webhooks/{name}/redeliver", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery),
    request_body = RedeliverRequest, responses(
    (status = 202, description = "The started job", body = RedeliveryJob), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 409, response = responses::Conflict), (status = 422, response = responses::Unprocessable),
))]
pub(super) async fn redeliver(call: Call, bytes: Bytes) -> AnswerWithStatus<RedeliveryJob> {
    let job = call
        .api
        .redeliver(&call.caller, &call.name, optional(&bytes)?)
        .await;
    call.answer_with(StatusCode::ACCEPTED, job)
}

/// Lists the redelivery jobs of a webhook with their progress.
#[utoipa::path(get, operation_id = "listRedeliveries", path = "/v1/webhooks/{name}/redeliveries", tag = "webhooks", params(("name" = String, Path, description = "Name of the webhook"), OwnerQuery), responses(
    (status = 200, description = "The redelivery jobs", body = RedeliveryList), (status = 401, response = responses::Unauthorized),
    (status = 404, response = responses::NotFound),
))]
pub(super) async fn redeliveries(call: Call) -> Answer<RedeliveryList> {
    call.answer(call.api.redeliveries(&call.caller, &call.name).await)
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
        ApiError::Unprepared(_) => Problem::unavailable_for(text, 3600),
        ApiError::Internal(error) => Problem::of_failure(error, error.is_unavailable()),
    }
}
