//! `/v1/triggers` and `/v1/trigger-runs`: rules, what became of their events, and what people may do about them.
//!
//! Owners see, use, make and delete their own rules; auditors see all; administrators see and use all. A rule that a caller may not see does not exist for
//! them. The approvers of a rule see its runs, and so does the user as whom a run acts.

mod allowance;
mod approve;
mod incoming;
mod manage;
pub mod openapi;
mod path_params;
mod responses;
mod rules;
mod view;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use chrono::Utc;
use mesh_bus::Bus;
use mesh_runtime::api::{AuditedRead, Caller, Problem, Role};
use serde::Deserialize;
use slurm_submit::Submitter;
use tokio::sync::{Notify, watch};

use crate::active_rules::ActiveRules;
use crate::adapters::intents::RunQuery;
use crate::adapters::store::Store;
use crate::domain::guards::SiteLimits;
use crate::domain::index::Rules;
use crate::domain::intent::{Intent, IntentState, RunPosition};
use crate::domain::rule::{Rule, RuleId};
use crate::driver;
pub(crate) use allowance::{AllowanceLimits, Allowances};
use view::{RuleList, RuleView, RunList, RunView, UnusableRule};

/// Runs of a page.
const DEFAULT_RUNS: u32 = 50;
const MAX_RUNS: u32 = 1_000;

/// State of the API.
#[derive(Clone)]
pub(crate) struct Api {
    pub store: Store,
    pub bus: Bus,
    pub rules: watch::Receiver<Arc<Rules>>,
    /// Where rules by API are checked and take effect.
    pub active: ActiveRules,
    pub submitter: Submitter,
    pub limits: SiteLimits,
    /// Maximum number of rules that a user has by API.
    pub rules_per_user: u32,
    /// What senders of events have left.
    pub allowances: Arc<Allowances>,
    /// Cluster of this process.
    pub cluster: Arc<str>,
    /// Notify the driver and the outbox.
    pub due_runs: Arc<driver::DueRuns>,
    pub recorded: Arc<Notify>,
}

pub(crate) fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/triggers", get(list))
        .route("/v1/triggers/openapi.json", get(openapi::serve))
        .route(
            "/v1/triggers/{owner}/{name}",
            get(show).put(rules::apply).delete(rules::delete),
        )
        .route("/v1/triggers/{owner}/{name}/test", post(manage::test))
        .route("/v1/triggers/{owner}/{name}/fire", post(manage::fire))
        .route("/v1/triggers/{owner}/{name}/pause", post(manage::pause))
        .route("/v1/triggers/{owner}/{name}/resume", post(manage::resume))
        .route("/v1/trigger-runs", get(runs))
        .route("/v1/trigger-runs/{key}", get(run))
        .route("/v1/trigger-runs/{key}/redrive", post(manage::redrive))
        .route("/v1/trigger-runs/{key}/approve", post(approve::approve))
        .route("/v1/trigger-runs/{key}/reject", post(approve::reject))
        .route("/v1/in", post(incoming::publish))
        .route("/v1/in/{name}", post(incoming::receive))
        .layer(DefaultBodyLimit::max(incoming::MAX_BODY_BYTES))
        .with_state(api)
}

/// Which runs are listed.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct RunsQuery {
    /// Only runs of this rule: `owner/name`.
    rule: Option<String>,
    /// Only runs in these states, separated by commas: `approval`, `planned`, `submitting`, `accepted`, `confirmed`, `released`, `done`,
    /// `refused`, `given_up`, `dry_run`; `dead` for dead letters (`refused` and `given_up`).
    state: Option<String>,
    /// Only runs whose event is about this job, and the run that submitted or acted on it.
    job: Option<u32>,
    /// Only runs of the chain that began with this event.
    root: Option<String>,
    /// `next_cursor` of the previous page. Absent for the first page.
    cursor: Option<String>,
    /// Number of runs, 1 to 1000; a larger number counts as 1000. Default: 50.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Which tasks are shown of a run that retries an array.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TasksQuery {
    /// Only tasks after this one: `next_tasks_after` of the previous response. Absent for the first tasks.
    tasks_after: Option<u32>,
}

/// Lists the rules that the caller may see.
#[utoipa::path(get, operation_id = "listTriggers", path = "/v1/triggers", tag = "triggers", responses(
    (status = 200, description = "The rules, by owner and name", body = RuleList), (status = 401, response = responses::Unauthorized),
    (status = 503, response = responses::Unavailable),
))]
async fn list(
    caller: Caller,
    State(api): State<Api>,
) -> Result<(Extension<AuditedRead>, Json<RuleList>), Problem> {
    let rules = Arc::clone(&api.rules.borrow());
    let states = api.store.rule_states().await?;
    let mut audited_read = AuditedRead::to(&caller);
    let (mut list, now) = (Vec::new(), Utc::now());
    for rule in rules.all().filter(|rule| sees(&caller, &rule.id)) {
        audited_read.row(&rule.id.owner);
        list.push(RuleView::new(rule, states.get(&rule.id), now));
    }
    let unusable = rules.unusable().iter();
    let unusable = unusable.filter(|(id, _)| sees(&caller, id));
    let unusable: Vec<UnusableRule> = unusable
        .map(|(id, reason)| {
            audited_read.row(&id.owner);
            UnusableRule::new(id, reason)
        })
        .collect();
    let list = RuleList {
        rules: list,
        unusable,
    };
    Ok((audited_read.extension(), Json(list)))
}

/// Returns a rule.
#[utoipa::path(get, operation_id = "getTrigger", path = "/v1/triggers/{owner}/{name}", tag = "triggers", params(path_params::RulePath), responses(
    (status = 200, description = "The rule", body = RuleView), (status = 401, response = responses::Unauthorized),
    (status = 404, response = responses::NotFound), (status = 409, response = responses::Conflict), (status = 503, response = responses::Unavailable),
))]
async fn show(
    caller: Caller,
    State(api): State<Api>,
    Path((owner, name)): Path<(String, String)>,
) -> Result<(Extension<AuditedRead>, Json<RuleView>), Problem> {
    let rule = api.rule(&caller, &owner, &name)?;
    let states = api.store.rule_states().await?;
    let mut audited_read = AuditedRead::to(&caller);
    audited_read.row(&rule.id.owner);
    let view = RuleView::detailed(&rule, states.get(&rule.id), Utc::now());
    Ok((audited_read.extension(), Json(view)))
}

/// Lists runs, newest first: of the caller's rules, and of the rules that the caller approves.
#[utoipa::path(get, operation_id = "listTriggerRuns", path = "/v1/trigger-runs", tag = "runs", params(RunsQuery), responses(
    (status = 200, description = "The runs", body = RunList), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 503, response = responses::Unavailable),
))]
async fn runs(
    caller: Caller,
    State(api): State<Api>,
    query: Result<Query<RunsQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<RunList>), Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    let rule = query.rule.as_deref().map(rule_id).transpose()?;
    let after = query.cursor.as_deref().map(position).transpose()?;
    let limit = query.limit.unwrap_or(DEFAULT_RUNS).clamp(1, MAX_RUNS);
    let runs = RunQuery {
        rule,
        owners: (!caller.sees_everything()).then(|| users(&caller)),
        or_of_rules: api.rules_to_approve(&caller),
        states: states(query.state.as_deref())?,
        job: query.job,
        root: query.root,
        after,
        // One more than requested, to know whether another page follows.
        limit: limit + 1,
    };
    let mut found = api.store.runs(&runs).await?;
    let has_more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let last = found.last().filter(|_| has_more);
    let next_cursor = last.map(|run| RunPosition::of(run).cursor());
    let mut audited_read = AuditedRead::to(&caller);
    for run in &found {
        audited_read.row(&run.user);
    }
    let runs = found.iter().map(RunView::new).collect();
    Ok((
        audited_read.extension(),
        Json(RunList { runs, next_cursor }),
    ))
}

/// Returns a run with its action.
#[utoipa::path(get, operation_id = "getTriggerRun", path = "/v1/trigger-runs/{key}", tag = "runs", params(path_params::RunPath, TasksQuery), responses(
    (status = 200, description = "The run", body = RunView), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized),
    (status = 404, response = responses::NotFound), (status = 503, response = responses::Unavailable),
))]
async fn run(
    caller: Caller,
    State(api): State<Api>,
    Path(key): Path<String>,
    query: Result<Query<TasksQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<RunView>), Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    let run = api.run(&caller, &key, query.tasks_after).await?;
    let mut audited_read = AuditedRead::to(&caller);
    audited_read.row(&run.user);
    Ok((audited_read.extension(), Json(RunView::detailed(&run))))
}

impl Api {
    /// A rule that the caller may see.
    fn rule(&self, caller: &Caller, owner: &str, name: &str) -> Result<Arc<Rule>, Problem> {
        let rules = self.rules.borrow();
        let rule = rules.get(owner, name).filter(|rule| sees(caller, &rule.id));
        if let Some(rule) = rule {
            return Ok(Arc::clone(rule));
        }
        let mut unusable = rules.unusable().iter();
        let unusable = unusable.find(|(id, _)| id.owner == owner && id.name == name);
        Err(match unusable.filter(|(id, _)| sees(caller, id)) {
            Some((id, reason)) => Problem::new(
                StatusCode::CONFLICT,
                format!("rule \"{id}\" cannot be used: {reason}; apply it again, or delete it"),
            ),
            None => Problem::not_found(format!("no rule \"{owner}/{name}\"")),
        })
    }

    /// A rule that the caller may use.
    fn own_rule(&self, caller: &Caller, owner: &str, name: &str) -> Result<Arc<Rule>, Problem> {
        let rule = self.rule(caller, owner, name)?;
        uses(caller, &rule.id).map(|()| rule)
    }

    /// A run that the caller may see, with its tasks after one.
    async fn run(
        &self,
        caller: &Caller,
        key: &str,
        tasks_after: Option<u32>,
    ) -> Result<Intent, Problem> {
        let run = self.store.run_with_tasks_after(key, tasks_after);
        let run = run.await?;
        let sees = |run: &Intent| sees(caller, &run.rule) || caller.is(&run.user);
        run.filter(|run| sees(run) || self.approves(caller, &run.rule))
            .ok_or_else(|| Problem::not_found(format!("no run {key:?}")))
    }
}

/// Reads the body of a request.
fn body<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, Problem> {
    body.map(|Json(body)| body)
        .map_err(|error| Problem::bad_request(error.body_text()))
}

fn sees(caller: &Caller, rule: &RuleId) -> bool {
    caller.sees_everything() || caller.is(&rule.owner)
}

fn uses(caller: &Caller, rule: &RuleId) -> Result<(), Problem> {
    if caller.may_write() || (caller.role == Role::User && caller.is(&rule.owner)) {
        return Ok(());
    }
    Err(Problem::forbidden(format!(
        "only {} and administrators may do that with the rules of {}",
        rule.owner, rule.owner
    )))
}

fn users(caller: &Caller) -> BTreeSet<String> {
    match caller.role {
        Role::User => caller.users.clone(),
        Role::Metrics | Role::Auditor | Role::Admin => BTreeSet::new(),
    }
}

fn rule_id(text: &str) -> Result<RuleId, Problem> {
    match text.split_once('/') {
        Some((owner, name)) => Ok(RuleId {
            owner: owner.to_owned(),
            name: name.to_owned(),
        }),
        None => Err(Problem::bad_request(
            "rule: the owner, a slash and the name: alice/align",
        )),
    }
}

fn position(cursor: &str) -> Result<RunPosition, Problem> {
    RunPosition::parse(cursor)
        .ok_or_else(|| Problem::bad_request("cursor: next_cursor of the page before, unchanged"))
}

fn states(text: Option<&str>) -> Result<Vec<IntentState>, Problem> {
    let mut states = Vec::new();
    for word in text.unwrap_or_default().split(',') {
        match word {
            "" => {}
            "dead" => states.extend(IntentState::ALL.into_iter().filter(|state| state.is_dead())),
            word => {
                let state = word.parse::<IntentState>();
                states
                    .push(state.map_err(|error| Problem::bad_request(format!("state: {error}")))?);
            }
        }
    }
    Ok(states)
}
