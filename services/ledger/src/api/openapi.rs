//! The OpenAPI description of the REST API, generated from its handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::BearerAuth;
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use super::proof::recovery;
use super::proof::rest as proof;
use super::replay::rest as replay;
use super::responses::{BadRequest, Conflict, Forbidden, NotFound, Unauthorized, Unavailable};
use super::{export, kpis, rest, stats, stream};

/// The description of the ledger's REST API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "slurm-mesh ledger",
        description = "The Events API: recorded events of Slurm clusters, job and node histories, statistics, replays, and proofs of the ledger's integrity.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(rest::list, export::export, stream::follow, stats::stats, kpis::kpis, rest::job, rest::node, rest::head,
        proof::newest, proof::list, proof::inclusion, proof::consistency, proof::keys, proof::rotate, proof::export,
        recovery::resume, recovery::contradiction,
        replay::start, replay::list, replay::one, replay::cancel),
    components(responses(BadRequest, Unauthorized, Forbidden, NotFound, Conflict, Unavailable)),
    security((), ("token" = [])),
    modifiers(&BearerAuth),
    tags(
        (name = "events", description = "Recorded events, histories and statistics"),
        (name = "proof", description = "Checkpoints, proofs and signing keys"),
        (name = "replays", description = "Replays of recorded events"),
    ),
)]
struct Ledger;

/// Returns the OpenAPI description.
pub fn document() -> Document {
    Ledger::openapi()
}

pub(super) async fn serve(_caller: Caller) -> (Extension<AuditedRead>, Json<Document>) {
    (AuditedRead::nothing().extension(), Json(document()))
}
