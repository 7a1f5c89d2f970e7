//! The OpenAPI description of the REST API, generated from the handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::BearerAuth;
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use super::responses::{
    BadRequest, Conflict, Forbidden, NotFound, TooMany, Unauthorized, Unprepared, Unprocessable,
};
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
