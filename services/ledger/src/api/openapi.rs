//! The OpenAPI description of the REST API, generated from its handlers.

use axum::{Extension, Json};
use mesh_runtime::api::openapi::{BearerAuth, problem_responses};
use mesh_runtime::api::{AuditedRead, Caller};
use utoipa::openapi::OpenApi as Document;
use utoipa::{IntoParams, OpenApi};

use super::proof::recovery;
use super::proof::rest as proof;
use super::replay::rest as replay;
use super::{export, rest, stats, stream};

/// The description of the ledger's REST API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "slurm-mesh ledger",
        description = "The Events API: history, states and statistics of a Slurm cluster, as the ledger recorded them.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(rest::list, export::export, stream::follow, stats::stats, rest::job, rest::node, rest::head,
        proof::newest, proof::list, proof::inclusion, proof::consistency, proof::keys, proof::rotate, proof::export,
        recovery::resume, recovery::contradiction,
        replay::start, replay::list, replay::one, replay::cancel),
    components(responses(BadRequest, Unauthorized, Forbidden, NotFound, Conflict, Unavailable)),
    security((), ("token" = [])),
    modifiers(&BearerAuth),
    tags(
        (name = "events", description = "What happened"),
        (name = "proof", description = "That nothing was changed"),
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
    BadRequest: "A parameter is wrong; the answer names it and what is allowed",
    Unauthorized: "No token, or one that is not valid",
    Forbidden: "The caller may not ask this",
    Conflict: "Something stands in the way; the answer says what",
    Unavailable: "It takes longer than a query may (ask for less), or the ledger's database (for replays to a webhook endpoint, NATS) is away (`Retry-After` says when to ask again)",
    NotFound: "There is no such thing, or it is another's",
}

/// Which entries; everything may be combined.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "it describes parameters that api::params reads")]
pub(super) struct FilterParams {
    /// Slurm's ClusterName.
    cluster: Option<String>,
    /// Types with commas, or given several times: `job.completed`, `job.*`. Audit entries only for `audit.*` or one of its kinds.
    r#type: Option<String>,
    /// Categories with commas: `job`, `node`, `user`, `cost`, `queue`, `capture`, `audit`.
    category: Option<String>,
    /// Job in Slurm's id form: `123` (with its array tasks or components), `123_4`, `123+1`.
    job: Option<String>,
    /// Entity key of a run, as in `subject` of its events.
    run: Option<String>,
    /// Job id of an array: its own record and its tasks.
    array: Option<u32>,
    /// Unix user.
    user: Option<String>,
    /// OIDC subject or e-mail address of the person.
    identity: Option<String>,
    /// Slurm account.
    account: Option<String>,
    /// Partition.
    partition: Option<String>,
    /// NodeName: events of the node itself, and of jobs that ran on it.
    node: Option<String>,
    /// Job name; a `*` at its end stands for any rest.
    name: Option<String>,
    /// Occurred at or after: RFC 3339, a day, or how long ago such as `2h`, `7days`.
    since: Option<String>,
    /// Occurred before: RFC 3339, or how long ago.
    until: Option<String>,
    /// From this sequence on.
    from_seq: Option<u64>,
    /// Up to this sequence.
    to_seq: Option<u64>,
}

/// Which page.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "it describes parameters that api::params reads")]
pub(super) struct PageParams {
    /// Page size, 1 to `max_page_size` of the configuration (1000); 100 if not given.
    #[param(minimum = 1)]
    limit: Option<u32>,
    /// `next_cursor` of the page before, with the same filters.
    cursor: Option<String>,
    /// `asc` (oldest first, default) or `desc`.
    order: Option<String>,
    /// Only these parts of each entry, by paths with commas: `seq,type,data.owner.user`.
    fields: Option<String>,
}
