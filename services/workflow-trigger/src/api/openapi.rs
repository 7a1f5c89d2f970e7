//! The OpenAPI description of the REST API, generated from its handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::BearerAuth;
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use super::responses::{
    BadRequest, Conflict, Forbidden, NotFound, NotJson, TooLarge, TooMany, Unauthorized,
    Unavailable, Unprocessable, Unsigned,
};
use super::{approve, incoming, manage, rules};

/// The description of the workflow-trigger's REST API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "slurm-mesh workflow-trigger",
        description = "The Triggers API: rules that start and change jobs when events happen, their runs, and events from outside.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(super::list, super::show, rules::apply, rules::delete, manage::test, manage::fire, manage::pause, manage::resume,
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
