//! The OpenAPI description of the REST API, generated from its handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::{BearerAuth, problem_responses};
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::openapi::OpenApi as Document;
use utoipa::{IntoParams, OpenApi};

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

/// Names a cluster.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "it describes a path")]
pub(super) struct ClusterPath {
    /// Name of the cluster.
    cluster: String,
}

/// Names a job.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "it describes a path")]
pub(super) struct JobPath {
    /// Name of the cluster.
    cluster: String,
    /// Job id in Slurm's form: `123`, `123_4`, `123+1`.
    job: String,
}

problem_responses! {
    BadRequest: "A parameter or the body is invalid; `detail` names it",
    Unauthorized: "The token is missing or invalid",
    NotFound: "It does not exist, or the caller may not see it",
    Conflict: "The current state does not permit the request; `detail` gives the reason",
    Unavailable: "The state is not loaded yet, too little is known for an estimate, or NATS does not store the audit entry of the read; retry later",
}
