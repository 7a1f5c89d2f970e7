//! The OpenAPI description of the REST API, generated from its handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::BearerAuth;
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use super::responses::{BadRequest, Conflict, Forbidden, NotFound, Unauthorized, Unavailable};
use super::{budgets, focus, nodes, periods, personal};

/// The description of the cost-engine's REST API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "slurm-mesh cost-engine",
        description = "The Costs API: costs of running and ended jobs, of nodes and of people, closed periods, and budgets. Amounts are millionths of the currency, as text.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(super::live, super::spent, personal::show, focus::export, nodes::list, periods::list, periods::show, periods::close,
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
