//! The OpenAPI description of the REST API, generated from its handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::{BearerAuth, problem_responses};
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use super::{budgets, focus, nodes, periods};

/// The description of the cost-engine's REST API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "slurm-mesh cost-engine",
        description = "The Costs API: costs of running and ended jobs, of nodes and of people, closed periods, and budgets. Amounts are millionths of the currency, as text.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(super::live, super::spent, super::personal, focus::export, nodes::list, periods::list, periods::show, periods::close,
        budgets::list, budgets::show, budgets::set, budgets::delete),
    components(responses(BadRequest, Unauthorized, Forbidden, NotFound, Conflict, Unavailable)),
    security((), ("token" = [])),
    modifiers(&BearerAuth),
    tags(
        (name = "costs", description = "Costs of jobs, people and nodes"),
        (name = "periods", description = "Closed periods and their reports"),
        (name = "budgets", description = "Budgets and their use"),
    ),
)]
struct CostEngine;

/// The OpenAPI document.
pub fn document() -> Document {
    CostEngine::openapi()
}

pub(super) async fn serve(_caller: Caller) -> (Extension<AuditedRead>, Json<Document>) {
    (AuditedRead::nothing().extension(), Json(document()))
}

problem_responses! {
    BadRequest: "A parameter or the body is invalid; `detail` names it",
    Unauthorized: "The token is missing or invalid",
    Forbidden: "The caller lacks the permission",
    NotFound: "It does not exist, or the caller may not see it",
    Conflict: "The current state does not permit the request; `detail` gives the reason",
    Unavailable: "NATS does not store the audit entry of the read now; retry after `Retry-After` seconds",
}
