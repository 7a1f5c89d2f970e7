//! The OpenAPI description of the REST API, generated from its handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::{BearerAuth, problem_responses};
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::openapi::OpenApi as Document;
use utoipa::{IntoParams, OpenApi};

use super::{approve, incoming, manage};

/// The description of the workflow-trigger's REST API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "slurm-mesh workflow-trigger",
        description = "The Triggers API: rules that start and change jobs when events happen, their runs, and events from outside.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(super::list, super::show, manage::test, manage::fire, manage::pause, manage::resume,
        super::runs, super::run, manage::redrive, approve::approve, approve::reject,
        incoming::publish, incoming::receive),
    components(responses(BadRequest, Unauthorized, Unsigned, Forbidden, NotFound, Conflict, TooLarge, NotJson, Unprocessable, TooMany, Unavailable)),
    security((), ("token" = [])),
    modifiers(&BearerAuth),
    tags(
        (name = "triggers", description = "Rules"),
        (name = "runs", description = "What rules did because of events"),
        (name = "events", description = "Events from outside"),
    ),
)]
struct WorkflowTrigger;

/// The OpenAPI document.
pub fn document() -> Document {
    WorkflowTrigger::openapi()
}

pub(super) async fn serve(_caller: Caller) -> (Extension<AuditedRead>, Json<Document>) {
    (AuditedRead::nothing().extension(), Json(document()))
}

/// Names a rule.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "it describes a path")]
pub(super) struct RulePath {
    /// Unix user who owns the rule.
    owner: String,
    /// Name of the rule.
    name: String,
}

/// Names a run.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "it describes a path")]
pub(super) struct RunPath {
    /// Key of the run.
    key: String,
}

problem_responses! {
    BadRequest: "A parameter or the body is invalid; `detail` names it",
    Unauthorized: "The token is missing or invalid",
    Unsigned: "The signature of the source is missing or wrong, or its time is too far from ours",
    Forbidden: "The caller lacks the permission",
    NotFound: "The rule, run or source does not exist, or the caller may not see it",
    Conflict: "The current state does not permit the request; `detail` gives the reason",
    TooLarge: "The body, or `data` in it, is too large",
    NotJson: "The content type is not JSON",
    Unprocessable: "The body has a wrong field, the data does not meet the rule's condition, or a guard refuses the firing; `detail` gives the reason",
    TooMany: "A limit of the sender is reached, or the bus has no room; retry after `Retry-After` seconds",
    Unavailable: "NATS stores neither events nor audit entries now, or the source's secret is not readable; retry after `Retry-After` seconds",
}
