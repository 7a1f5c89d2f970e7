//! `GET /v1/queue/{cluster}/listing`: the jobs of the caller as squeue prints them, for answers in its place.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Loaded, explainer, path_params, responses, valid};

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct SqueueQuery {
    /// Only jobs of these users, separated by commas.
    user: Option<String>,
}

/// Jobs as squeue prints them.
#[derive(Serialize, ToSchema)]
pub(super) struct SqueueListing {
    /// When squeue was asked.
    taken_at: DateTime<Utc>,
    /// Age of the list in seconds.
    age_seconds: i64,
    /// True if the caller may see all jobs: then none is missing.
    is_complete: bool,
    /// Unix users whose jobs the caller sees, all of them.
    users: Vec<String>,
    /// Letters of squeue's format, one per column.
    letters: String,
    /// Titles of the columns.
    titles: Vec<String>,
    /// The jobs in squeue's order.
    jobs: Vec<Vec<String>>,
}

/// Lists the jobs of a cluster that the caller may see, as squeue prints them.
#[utoipa::path(get, operation_id = "listSqueueRows", path = "/v1/queue/{cluster}/listing", tag = "queue", params(path_params::ClusterPath, SqueueQuery), responses(
    (status = 200, description = "The jobs", body = SqueueListing), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn list(
    State(loaded): State<Loaded>,
    caller: Caller,
    Path(cluster): Path<String>,
    query: Result<Query<SqueueQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<SqueueListing>), Problem> {
    let filter = valid(query)?;
    let listing = explainer(&loaded)?.snapshot(&cluster).listing;
    let listing = listing.ok_or_else(|| {
        Problem::not_found(format!(
            "the jobs of cluster {cluster} are not listed (ingest.list_interval)"
        ))
    })?;
    let users: Option<Vec<&str>> = filter
        .user
        .as_deref()
        .map(|users| users.split(',').collect());
    let mut audited_read = AuditedRead::to(&caller);
    let jobs = listing.jobs.iter().filter(|job| {
        let user = listing.column(job, 'u');
        let is_asked = users.as_ref().is_none_or(|users| users.contains(&user));
        let is_shown = is_asked && caller.may_see(&cluster, user, listing.column(job, 'a'));
        if is_shown {
            audited_read.row(user);
        }
        is_shown
    });
    let listing = SqueueListing {
        jobs: jobs.cloned().collect(),
        taken_at: listing.taken_at,
        age_seconds: (Utc::now() - listing.taken_at).num_seconds(),
        is_complete: caller.sees_everything(),
        users: caller.users.iter().cloned().collect(),
        letters: listing.letters.clone(),
        titles: listing.titles.clone(),
    };
    Ok((audited_read.extension(), Json(listing)))
}
