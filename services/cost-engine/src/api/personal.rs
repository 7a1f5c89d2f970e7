//! `GET /v1/costs/me`: what the caller's own jobs cost.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Api, responses, time};
use crate::spending::{self, CallerIdentities, PersonSpending, PersonalAmount};

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PersonalQuery {
    /// Start: a time, a date, or an age such as `7d`. Default: the start of the month, UTC.
    since: Option<String>,
}

/// What a person's own jobs cost since a time. A run counts with the part of its cost since then.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PersonalCosts {
    /// Names of the person's Unix users, on all clusters.
    pub users: Vec<String>,
    /// Start of the period.
    pub since: DateTime<Utc>,
    /// Time up to which running jobs are charged.
    pub as_of: DateTime<Utc>,
    /// Amounts, one for each currency.
    pub amounts: Vec<PersonalAmount>,
    /// The same by person: the person that the caller is, and Unix users of the caller whose person is not known.
    pub people: Vec<PersonSpending>,
}

/// Returns what the caller's jobs cost since the start of the month (UTC), or since another time: those of all Unix users of the person.
#[utoipa::path(get, operation_id = "getOwnCosts", path = "/v1/costs/me", tag = "costs", params(PersonalQuery), responses(
    (status = 200, description = "Costs of the caller", body = PersonalCosts), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn show(
    caller: Caller,
    State(api): State<Api>,
    query: Result<Query<PersonalQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<PersonalCosts>), Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    let now = Utc::now();
    let people = api.store.people().await?;
    let own = CallerIdentities::of(&caller, &people, &api.cluster);
    let users = own.names();
    if users.is_empty() {
        return Err(Problem::forbidden(
            "you have no Unix user and so no jobs of your own; use /v1/costs",
        ));
    }
    let month = now.format("%Y-%m-01").to_string();
    let since = time("since", Some(query.since.as_deref().unwrap_or(&month)), now)?;
    let found =
        spending::spending_of_users(&api.store, api.book().as_deref(), users.clone(), since, now)
            .await?;
    let people = own.spending(&found);
    let answer = PersonalCosts {
        users: users.into_iter().collect(),
        since: since
            .and_then(|since| DateTime::from_timestamp(since, 0))
            .unwrap_or_default(),
        as_of: now,
        amounts: spending::summed(people.iter().flat_map(|person| &person.amounts)),
        people,
    };
    Ok((AuditedRead::nothing().extension(), Json(answer)))
}
