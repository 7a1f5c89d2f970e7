//! Approving and rejecting runs that wait for it. Who may is what the rule says now.

use std::collections::BTreeSet;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use chrono::Utc;
use mesh_runtime::api::{AuditedRead, Caller, Problem, Role};
use serde::Deserialize;
use utoipa::ToSchema;

use super::view::RunView;
use super::{Api, body, path_params, responses, uses};
use crate::domain::approval::{Decider, NoRight};
use crate::domain::intent::{Intent, IntentState};
use crate::domain::rule::RuleId;
use crate::metrics;

/// Longest reason, in characters.
const MAX_REASON_CHARS: usize = 500;

/// A rejection.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = TriggerRejection)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RejectRequest {
    /// Free text, of which 500 characters are stored.
    reason: String,
}

type Decided = (StatusCode, Extension<AuditedRead>, Json<RunView>);

/// Approves a run that waits for it.
#[utoipa::path(post, operation_id = "approveTriggerRun", path = "/v1/trigger-runs/{key}/approve", tag = "runs", params(path_params::RunPath), responses(
    (status = 202, description = "The run", body = RunView), (status = 401, response = responses::Unauthorized),
    (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound), (status = 409, response = responses::Conflict),
    (status = 503, response = responses::Unavailable),
))]
pub(super) async fn approve(
    caller: Caller,
    State(api): State<Api>,
    Path(key): Path<String>,
) -> Result<Decided, Problem> {
    let run = api.run(&caller, &key, None).await?;
    api.may_approve(&caller, &run)?;
    let approved = api.store.approve(&run, &caller.name, Utc::now()).await;
    if !approved? {
        return Err(not_waiting());
    }
    tracing::info!(run.key = key, rule = %run.rule, by = caller.name, "run approved");
    api.decided(&caller, &key).await
}

/// Rejects a run that waits for approval. Its owner may, too.
#[utoipa::path(post, operation_id = "rejectTriggerRun", path = "/v1/trigger-runs/{key}/reject", tag = "runs", params(path_params::RunPath), request_body = RejectRequest, responses(
    (status = 202, description = "The run", body = RunView), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 409, response = responses::Conflict), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn reject(
    caller: Caller,
    State(api): State<Api>,
    Path(key): Path<String>,
    request: Result<Json<RejectRequest>, JsonRejection>,
) -> Result<Decided, Problem> {
    let run = api.run(&caller, &key, None).await?;
    if !(caller.role == Role::User && api.approves(&caller, &run.rule)) {
        uses(&caller, &run.rule)?;
    }
    let reason: String = body(request)?
        .reason
        .chars()
        .take(MAX_REASON_CHARS)
        .collect();
    let words = match reason.as_str() {
        "" => format!("rejected by {}", caller.name),
        reason => format!("rejected by {}: {reason}", caller.name),
    };
    let rejected = api.store.reject(&run, &caller.name, &words, Utc::now());
    if !rejected.await? {
        return Err(not_waiting());
    }
    metrics::run(IntentState::Refused.as_str());
    tracing::info!(run.key = key, rule = %run.rule, by = caller.name, "run rejected");
    api.decided(&caller, &key).await
}

impl Api {
    async fn decided(&self, caller: &Caller, key: &str) -> Result<Decided, Problem> {
        self.due_runs.notify();
        self.recorded.notify_one();
        let run = self.run(caller, key, None).await?;
        let mut audited_read = AuditedRead::to(caller);
        audited_read.row(&run.user);
        let view = Json(RunView::new(&run));
        Ok((StatusCode::ACCEPTED, audited_read.extension(), view))
    }

    /// Checks whether the caller may approve a run, by its rule as it is now.
    fn may_approve(&self, caller: &Caller, run: &Intent) -> Result<(), Problem> {
        let rules = self.rules.borrow();
        let rule = rules.get(&run.rule.owner, &run.rule.name);
        let rule = rule.filter(|rule| !rule.dry_run);
        let approval = rule.and_then(|rule| rule.approval.as_ref());
        let nobody = BTreeSet::new();
        let decider = Decider {
            names: caller
                .users
                .iter()
                .chain([&caller.name])
                .map(String::as_str)
                .collect(),
            users: match caller.role {
                Role::User => &caller.users,
                Role::Metrics | Role::Auditor | Role::Admin => &nobody,
            },
            is_admin: caller.may_write(),
        };
        let Some(approval) = approval else {
            return Err(match decider.is_admin {
                true => Problem::new(
                    StatusCode::CONFLICT,
                    "the rule does not exist any more, is a dry run, or has no approval",
                ),
                false => Problem::forbidden(NoRight::NoApprover.to_string()),
            });
        };
        let right = approval.check(&decider, &run.cause.requesters);
        right.map_err(|no_right| Problem::forbidden(no_right.to_string()))
    }

    /// True if the caller is an approver of a rule.
    pub(super) fn approves(&self, caller: &Caller, rule: &RuleId) -> bool {
        let rules = self.rules.borrow();
        let rule = rules.get(&rule.owner, &rule.name);
        let approval = rule.and_then(|rule| rule.approval.as_ref());
        caller.role == Role::User && approval.is_some_and(|it| it.is_by(&caller.users))
    }

    /// The rules of which the caller is an approver, by full names.
    pub(super) fn rules_to_approve(&self, caller: &Caller) -> Vec<String> {
        if caller.role != Role::User {
            return Vec::new();
        }
        let rules = self.rules.borrow();
        let is_by = |approval: &crate::domain::approval::Approval| approval.is_by(&caller.users);
        let approved = rules
            .all()
            .filter(|rule| rule.approval.as_ref().is_some_and(is_by));
        approved.map(|rule| rule.id.to_string()).collect()
    }
}

fn not_waiting() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "the run does not wait for approval any more, or its rule is paused",
    )
}
