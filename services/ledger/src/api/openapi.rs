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
        description = "The Events API: recorded events of Slurm clusters, job and node histories, statistics, replays, and proofs of the ledger's integrity.",
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

/// Filters of entries. All filters that are given must match.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "it describes parameters that api::params reads")]
pub(super) struct FilterParams {
    /// Slurm cluster (`ClusterName`).
    cluster: Option<String>,
    /// Event types, comma-separated or repeated: `job.completed`, `job.*`. Audit entries are included only if `audit.*` or
    /// an audit type is named.
    r#type: Option<String>,
    /// Event categories, comma-separated or repeated: `job`, `node`, `user`, `cost`, `queue`, `capture`, `audit`.
    category: Option<String>,
    /// Job id as Slurm displays it: `123` (includes its array tasks or components), `123_4`, `123+1`.
    job: Option<String>,
    /// Entity key of a run, as in `subject` of its events.
    run: Option<String>,
    /// Job id of an array; matches the array and its tasks.
    array: Option<u32>,
    /// Unix user to whom the event belongs.
    user: Option<String>,
    /// OIDC subject or e-mail address of the person to whom the event belongs.
    identity: Option<String>,
    /// Slurm account.
    account: Option<String>,
    /// Slurm partition.
    partition: Option<String>,
    /// Node (`NodeName`): events of the node, and of jobs that ran on it.
    node: Option<String>,
    /// Job name; a `*` at the end matches any suffix.
    name: Option<String>,
    /// Occurred at or after this time: RFC 3339, a date, or a duration before now such as `2h`, `7days`.
    since: Option<String>,
    /// Occurred before this time; same formats as `since`.
    until: Option<String>,
    /// First ledger sequence, inclusive.
    from_seq: Option<u64>,
    /// Last ledger sequence, inclusive.
    to_seq: Option<u64>,
}

/// Paging of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "it describes parameters that api::params reads")]
pub(super) struct PageParams {
    /// Page size, from 1 to the ledger's `max_page_size` (1000 by default). Default: 100.
    #[param(minimum = 1)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page, with the same filters. Absent for the first page.
    cursor: Option<String>,
    /// `asc` (oldest first) or `desc`. Default: `asc`.
    order: Option<String>,
    /// Returns only these fields of each entry: comma-separated paths such as `seq,type,data.owner.user`.
    fields: Option<String>,
}
