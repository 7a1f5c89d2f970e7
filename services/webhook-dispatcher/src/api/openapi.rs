//! The OpenAPI description of the REST API, generated from the handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::{BearerAuth, problem_responses};
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use super::rest;

/// The description of the dispatcher's REST API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "slurm-mesh webhook-dispatcher",
        description = "The Webhooks API: manages the endpoints that receive events, and shows their deliveries.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(rest::list, rest::create, rest::show, rest::edit, rest::remove, rest::pause, rest::resume, rest::rotate, rest::test, rest::preview, rest::deliveries, rest::delivery,
        rest::redeliver, rest::redeliveries),
    components(responses(BadRequest, Unauthorized, Forbidden, NotFound, Conflict, Unprocessable, TooMany, Unprepared)),
    security((), ("token" = [])),
    modifiers(&BearerAuth),
    tags((name = "webhooks", description = "Webhook endpoints and their deliveries")),
)]
struct Dispatcher;

/// The OpenAPI document.
pub fn document() -> Document {
    Dispatcher::openapi()
}

pub(super) async fn serve(_caller: Caller) -> (Extension<AuditedRead>, Json<Document>) {
    (AuditedRead::nothing().extension(), Json(document()))
}

problem_responses! {
    BadRequest: "The body is not valid JSON",
    Unauthorized: "The token is missing or invalid",
    Forbidden: "The caller lacks the permission",
    NotFound: "The webhook or delivery does not exist, or the caller may not see it",
    Conflict: "The current state does not permit the request; `detail` gives the reason. Webhooks of mesh.toml are changed there",
    Unprocessable: "A field is invalid; `detail` names each invalid field and its allowed values",
    TooMany: "A test of this webhook is running, its rate limit is exhausted, or the dispatcher's limit of concurrent requests is reached; retry after `Retry-After` seconds",
    Unprepared: "No key to encrypt secrets is configured, or a dependency is unavailable",
}
