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
        description = "The Webhooks API: endpoints that are told of events, and what was delivered to them.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(rest::list, rest::create, rest::show, rest::edit, rest::remove, rest::pause, rest::resume, rest::rotate, rest::test, rest::preview, rest::deliveries, rest::delivery,
        rest::redeliver, rest::redeliveries),
    components(responses(BadRequest, Unauthorized, Forbidden, NotFound, Conflict, Unprocessable, TooMany, Unprepared)),
    security((), ("token" = [])),
    modifiers(&BearerAuth),
    tags((name = "webhooks", description = "Who is told of what")),
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
    BadRequest: "The body is no JSON",
    Unauthorized: "No token, or one that is not valid",
    Forbidden: "The caller may not do this",
    NotFound: "There is no such webhook, or it is another's",
    Conflict: "It cannot be done as things stand; the answer says why, and where endpoints of mesh.toml are written",
    Unprocessable: "A field is wrong; the answer names each and what is allowed",
    TooMany: "A test of this webhook is under way, or its rate or the places of all requests are used up (`Retry-After` says when to come again)",
    Unprepared: "There is no key to encrypt secrets with, or what is needed is away",
}
