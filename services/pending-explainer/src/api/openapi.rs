//! The OpenAPI description of the REST API, generated from its handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::BearerAuth;
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use super::responses::{BadRequest, Conflict, NotFound, Unauthorized, Unavailable};
use super::{listing, what_if};

/// The description of the pending-explainer's REST API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "slurm-mesh pending-explainer",
        description = "The Queue API: why jobs are pending, who can act, when they may start, and when they might with another request.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(super::list, super::one, super::quality, listing::list, what_if::of_job, what_if::of_new_job),
    components(responses(BadRequest, Unauthorized, NotFound, Conflict, Unavailable)),
    security((), ("token" = [])),
    modifiers(&BearerAuth),
    tags(
        (name = "queue", description = "Pending jobs and their explanations"),
        (name = "what-if", description = "Estimates for changed and new requests"),
    ),
)]
struct PendingExplainer;

/// The OpenAPI document.
pub fn document() -> Document {
    PendingExplainer::openapi()
}

pub(super) async fn serve(_caller: Caller) -> (Extension<AuditedRead>, Json<Document>) {
    (AuditedRead::nothing().extension(), Json(document()))
}
