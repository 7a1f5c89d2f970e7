//! The OpenAPI description of the REST API, generated from its handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::{BearerAuth, problem_responses};
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use super::proof::recovery;
use super::proof::rest as proof;
use super::replay::rest as replay;
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

problem_responses! {
    BadRequest: "A parameter or the body is invalid; `detail` names it and its allowed values",
    Unauthorized: "The token is missing or invalid",
    Forbidden: "The caller lacks the permission",
    Conflict: "The current state does not permit the request; `detail` gives the reason",
    Unavailable: "The query exceeded its time limit (narrow the filter), or the database is unavailable (for replays to a webhook also NATS); retry after `Retry-After` seconds",
    NotFound: "It does not exist, or the caller may not see it",
}

/// Description of `category`, which is a filter of query strings only: short for types.
pub(super) const CATEGORY: &str = "Event categories, comma-separated or repeated: `job`, `node`, `user`, `cost`, `queue`, `capture`, `audit`.";
/// Description of `fields`.
pub(super) const FIELDS: &str = "Returns only these fields of each entry: comma-separated paths such as `seq,type,data.owner.user`";
