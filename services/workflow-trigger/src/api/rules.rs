//! Rules by API: applied and deleted by their owners, and by administrators for others.

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use chrono::Utc;
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slurm_submit::SubmitError;
use utoipa::ToSchema;

use super::view::RuleView;
use super::{Api, path_params, responses, sees, uses};
use crate::adapters::api_rules::{PutRule, StoredRule};
use crate::domain::rule::{RuleAuthor, RuleId};
use crate::metrics;

/// How a rule is applied.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ApplyQuery {
    /// True to check the rule and to store nothing.
    #[serde(default)]
    dry_run: bool,
}

/// A rule that was applied.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = AppliedTrigger)]
pub(crate) struct AppliedRule {
    /// `created`, `changed` or `unchanged`.
    result: &'static str,
    /// The rule.
    rule: RuleView,
}

type Applied = (StatusCode, Extension<AuditedRead>, Json<AppliedRule>);

/// Makes or changes a rule.
///
/// The body has the keys of a rule in mesh.toml, and the text of its script in `action.script`. A rule of somebody who is no administrator
/// fires on the owner's own events only. `mesh.toml` goes before the API: a rule of a name that it has is refused.
#[utoipa::path(put, operation_id = "applyTrigger", path = "/v1/triggers/{owner}/{name}", tag = "triggers", params(path_params::RulePath, ApplyQuery),
    request_body(content = Value, description = "The rule: `description`, `generation`, `dry_run`, `allow_self`, `on`, `action`, `limits`"), responses(
    (status = 200, description = "The rule, which was there or is not stored", body = AppliedRule), (status = 201, description = "The new rule", body = AppliedRule),
    (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
    (status = 409, response = responses::Conflict), (status = 413, response = responses::TooLarge), (status = 415, response = responses::NotJson),
    (status = 503, response = responses::Unavailable),
))]
pub(super) async fn apply(
    caller: Caller,
    State(api): State<Api>,
    Path((owner, name)): Path<(String, String)>,
    query: Result<Query<ApplyQuery>, QueryRejection>,
    body: Result<Json<Value>, JsonRejection>,
) -> Result<Applied, Problem> {
    let id = RuleId { owner, name };
    let applied = api.apply(&caller, &id, query, body).await;
    let (status, applied) = applied.inspect_err(|_| metrics::rule_change("refused"))?;
    let mut audited_read = AuditedRead::to(&caller);
    audited_read.row(&id.owner);
    Ok((status, audited_read.extension(), Json(applied)))
}

/// Deletes a rule by API.
///
/// Its runs go on. If it was paused, a rule of the same name is paused, too.
#[utoipa::path(delete, operation_id = "deleteTrigger", path = "/v1/triggers/{owner}/{name}", tag = "triggers", params(path_params::RulePath), responses(
    (status = 204, description = "The rule is deleted"), (status = 401, response = responses::Unauthorized),
    (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound), (status = 409, response = responses::Conflict),
    (status = 503, response = responses::Unavailable),
))]
pub(super) async fn delete(
    caller: Caller,
    State(api): State<Api>,
    Path((owner, name)): Path<(String, String)>,
) -> Result<(Extension<AuditedRead>, StatusCode), Problem> {
    let id = RuleId { owner, name };
    let missing = || Problem::not_found(format!("no rule \"{id}\""));
    if !sees(&caller, &id) {
        return Err(missing());
    }
    uses(&caller, &id)?;
    let deleted = api
        .store
        .delete_rule(&id, &caller.name, &api.cluster, Utc::now());
    if !deleted.await? {
        return Err(match api.active.is_configured(&id).await {
            true => configured(&id),
            false => missing(),
        });
    }
    metrics::rule_change("deleted");
    tracing::info!(rule = %id, by = caller.name, "rule deleted");
    api.changed().await;
    Ok((AuditedRead::nothing().extension(), StatusCode::NO_CONTENT))
}

impl Api {
    async fn apply(
        &self,
        caller: &Caller,
        id: &RuleId,
        query: Result<Query<ApplyQuery>, QueryRejection>,
        body: Result<Json<Value>, JsonRejection>,
    ) -> Result<(StatusCode, AppliedRule), Problem> {
        uses(caller, id)?;
        let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
        let Json(body) = body.map_err(|error| Problem::new(error.status(), error.body_text()))?;
        if !self.active.has_api_rules() {
            return Err(conflict(
                "rules by API are off: an administrator sets workflow-trigger.api_rules in mesh.toml",
            ));
        }
        if self.active.is_configured(id).await {
            return Err(configured(id));
        }
        let stored = StoredRule {
            id: id.clone(),
            definition: named(body, id)?,
            author: match caller.may_write() {
                true => RuleAuthor::Administrator,
                false => RuleAuthor::Owner,
            },
            changed_by: caller.name.clone(),
            changed_at: Utc::now(),
        };
        let rule = self
            .active
            .check(&stored.definition, stored.author, stored.origin())
            .await
            .map_err(|faults| Problem::bad_request(faults.join("; ")))?;
        self.permits(&id.owner).await?;
        let max = match stored.author {
            RuleAuthor::Owner => Some(self.rules_per_user),
            RuleAuthor::Administrator => None,
        };
        let put = self
            .store
            .put_rule(&stored, max, &self.cluster, query.dry_run);
        let put = put.await?;
        if let PutRule::TooMany(max) = put {
            return Err(conflict(format!(
                "there are {max} rules by API, and more are not allowed (workflow-trigger.limits.rules_per_user for one user): delete one, or ask an administrator"
            )));
        }
        let result = put.as_str();
        if !query.dry_run {
            metrics::rule_change(result);
            tracing::info!(rule = %id, by = caller.name, result, "rule applied");
            self.changed().await;
        }
        let states = self.store.rule_states().await?;
        let rule = RuleView::new(&rule, states.get(id), Utc::now());
        let status = match put {
            PutRule::Created if !query.dry_run => StatusCode::CREATED,
            _ => StatusCode::OK,
        };
        Ok((status, AppliedRule { result, rule }))
    }

    /// Checks that `trigger-submitter` acts for this user.
    async fn permits(&self, owner: &str) -> Result<(), Problem> {
        let permitted = self.submitter.permits(owner).await;
        permitted.map_err(|error| match error {
            SubmitError::Refused { words, .. } => {
                Problem::forbidden(format!("owner: no rules act for this user: {words}"))
            }
            SubmitError::Transient { words } | SubmitError::Unknown { words } => {
                tracing::warn!(error = words, "trigger-submitter did not answer");
                Problem::unavailable("trigger-submitter cannot be asked now for whom rules may act")
            }
        })
    }

    /// Lets a changed rule take effect in this process before the answer. Others find it by themselves.
    async fn changed(&self) {
        if let Err(error) = self.active.refresh().await {
            let error = mesh_runtime::error_chain(&error);
            tracing::warn!(error, "rules by API not read, retrying");
        }
        self.recorded.notify_one();
    }
}

/// The rule with owner and name, which may be in the body, too.
fn named(body: Value, id: &RuleId) -> Result<Value, Problem> {
    let Value::Object(mut definition) = body else {
        return Err(Problem::bad_request("the body is not a JSON object"));
    };
    for (key, of_path) in [("owner", &id.owner), ("name", &id.name)] {
        let written = definition.insert(key.to_owned(), of_path.as_str().into());
        if let Some(written) = written
            && written != of_path.as_str()
        {
            return Err(Problem::bad_request(format!(
                "{key}: {written} is not that of the path, {of_path:?}"
            )));
        }
    }
    Ok(Value::Object(definition))
}

fn conflict(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::CONFLICT, detail)
}

fn configured(id: &RuleId) -> Problem {
    conflict(format!(
        "rule \"{id}\" is defined in mesh.toml, which goes before the API: an administrator changes it there; choose another name"
    ))
}
