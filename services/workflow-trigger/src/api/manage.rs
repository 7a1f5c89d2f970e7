//! What people do with rules: test, fire, pause, resume, redrive.

use std::collections::BTreeSet;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use chrono::Utc;
use event_filter::DecodedEvent;
use mesh_events::{cloudevents, from_timestamp};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::view::{self, FiredView, RunView, ScheduleView, TestView};
use super::{Api, body, path_params, responses, uses};
use crate::domain::budget::Spender;
use crate::domain::firing::{self, FIRED_BY_PERSON, Firing};
use crate::domain::guards::{self, Refusal};
use crate::domain::intent::{Cause, IntentState};
use crate::domain::rule::{EventSelector, Rule};
use crate::handlers;

const MAX_ID_BYTES: usize = 200;

/// A firing.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = TriggerFireRequest)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FireRequest {
    /// Data for the rule's templates, in the group `data`.
    data: Value,
    /// Id of the firing, 1 to 200 bytes. The same id fires a rule once. Default: a new id.
    id: Option<String>,
}

/// What to test a rule with: at most one of `event` and `data`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = TriggerTestRequest)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TestRequest {
    /// An event, as CloudEvents JSON from a webhook or `/v1/events`.
    #[schema(value_type = Option<Object>)]
    event: Option<Value>,
    /// Data, as for a firing. Default: of a rule with a schedule, its next instant; otherwise null.
    data: Option<Value>,
}

/// A pause of a rule.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = TriggerPause)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PauseRequest {
    /// Free text.
    reason: String,
}

type Body<T> = Result<Json<T>, JsonRejection>;

/// Shows what a rule would do. Submits nothing and stores nothing.
#[utoipa::path(post, operation_id = "testTrigger", path = "/v1/triggers/{owner}/{name}/test", tag = "triggers", params(path_params::RulePath), request_body = TestRequest, responses(
    (status = 200, description = "What the rule would do", body = TestView), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 503, response = responses::Unavailable),
))]
pub(super) async fn test(
    caller: Caller,
    State(api): State<Api>,
    Path((owner, name)): Path<(String, String)>,
    request: Body<TestRequest>,
) -> Result<(Extension<AuditedRead>, Json<TestView>), Problem> {
    let rule = api.own_rule(&caller, &owner, &name)?;
    let request = body(request)?;
    let mut audited_read = AuditedRead::to(&caller);
    audited_read.row(&rule.id.owner);
    let view = match (request.event, request.data) {
        (Some(event), None) => tested_event(&rule, event)?,
        (None, None) if let EventSelector::Cron(schedule) = &rule.on => {
            let now = Utc::now();
            let at = schedule.next(now).unwrap_or(now);
            let firing = firing::of_instant(&rule, schedule, &api.cluster, at);
            tested(Some(firing), true, None)
        }
        (None, data) => {
            let data = data.unwrap_or_default();
            let cause = api.cause(&caller, "test".to_owned());
            let matches = rule.accepts(&firing::fired_fields(&cause, &data));
            tested(Some(firing::of_data(&rule, cause, &data)), matches, None)
        }
        (Some(_), Some(_)) => {
            return Err(Problem::bad_request("either an event or data"));
        }
    };
    let (mut view, spender) = view;
    if let Some(spender) = spender
        && let Some(budget) = api.store.exceeded_budget(&spender, Utc::now()).await?
    {
        view.refusals.push(Refusal::Budget(budget).to_string());
    }
    let schedule = ScheduleView::of(&rule, Utc::now());
    let approvers = view::approvers(&rule);
    let view = TestView {
        schedule,
        approvers,
        ..view
    };
    Ok((audited_read.extension(), Json(view)))
}

fn tested_event(rule: &std::sync::Arc<Rule>, event: Value) -> Result<Tested, Problem> {
    let event = cloudevents::from_json(&event)
        .map_err(|error| Problem::bad_request(format!("event: {error}")))?;
    let event = DecodedEvent::from(event);
    let kind = event
        .kind()
        .map_err(|error| Problem::bad_request(format!("event: {error}")))?;
    let at = event.occurred_at.as_ref().and_then(from_timestamp);
    let age = at.and_then(|at| (Utc::now() - at).to_std().ok());
    let too_old = age
        .filter(|age| guards::is_too_old(rule, *age))
        .map(|_| "the event is older than limits.max_event_age".to_owned());
    let matches = rule.matches(kind, &event);
    let firing = firing::of_event(rule, kind, &event, String::new());
    let matches = matches && firing.is_some();
    Ok(tested(firing, matches, too_old))
}

/// What a rule would do, and who would pay for it.
type Tested = (TestView, Option<Spender>);

fn tested(firing: Option<Firing>, matches: bool, too_old: Option<String>) -> Tested {
    let spender = firing.as_ref().and_then(Spender::of);
    let mut refusals: Vec<String> = too_old.into_iter().collect();
    let action = match firing.map(|firing| firing.action) {
        Some(Ok(action)) => Some(action),
        Some(Err(problem)) => {
            refusals.push(problem);
            None
        }
        None => None,
    };
    let view = TestView {
        matches,
        schedule: None,
        approvers: Vec::new(),
        action,
        refusals,
    };
    (view, spender)
}

/// Fires a rule.
///
/// The run is stored before the response is sent.
#[utoipa::path(post, operation_id = "fireTrigger", path = "/v1/triggers/{owner}/{name}/fire", tag = "triggers", params(path_params::RulePath), request_body = FireRequest, responses(
    (status = 202, description = "The new run", body = FiredView),
    (status = 200, description = "The run of an earlier firing with this id", body = FiredView), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 422, response = responses::Unprocessable), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn fire(
    caller: Caller,
    State(api): State<Api>,
    Path((owner, name)): Path<(String, String)>,
    request: Body<FireRequest>,
) -> Result<(StatusCode, Extension<AuditedRead>, Json<FiredView>), Problem> {
    let rule = api.own_rule(&caller, &owner, &name)?;
    let request = body(request)?;
    let id = match request.id {
        Some(id) if id.is_empty() || id.len() > MAX_ID_BYTES => {
            return Err(Problem::bad_request(format!(
                "id: 1 to {MAX_ID_BYTES} bytes"
            )));
        }
        // Ids of people are no ids of events.
        Some(id) => format!("fire:{id}"),
        None => format!("fire:{}", uuid::Uuid::new_v4()),
    };
    let cause = api.cause(&caller, id);
    if !rule.accepts(&firing::fired_fields(&cause, &request.data)) {
        return Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "the data does not meet the rule's condition on.when",
        ));
    }
    let firing = firing::of_data(&rule, cause, &request.data);
    let firings = [firing];
    let planned = api.store.plan(&firings, &api.limits, Utc::now()).await;
    let mut planned = planned?;
    handlers::report(&firings, &planned);
    api.due_runs.notify();
    api.recorded.notify_one();
    let planned = planned.remove(0);
    if planned.state == Some(IntentState::Refused) {
        return Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("refused: {}", planned.reason),
        ));
    }
    let status = match planned.state {
        Some(_) => StatusCode::ACCEPTED,
        None => StatusCode::OK,
    };
    let fired = FiredView {
        key: planned.key,
        is_new: planned.state.is_some(),
    };
    Ok((status, AuditedRead::nothing().extension(), Json(fired)))
}

/// Pauses a rule: it does not fire until it is resumed.
#[utoipa::path(post, operation_id = "pauseTrigger", path = "/v1/triggers/{owner}/{name}/pause", tag = "triggers", params(path_params::RulePath), request_body = PauseRequest, responses(
    (status = 204, description = "The rule is paused"), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound),
    (status = 503, response = responses::Unavailable),
))]
pub(super) async fn pause(
    caller: Caller,
    State(api): State<Api>,
    Path((owner, name)): Path<(String, String)>,
    request: Body<PauseRequest>,
) -> Result<(Extension<AuditedRead>, StatusCode), Problem> {
    let rule = api.own_rule(&caller, &owner, &name)?;
    let reason = body(request)?.reason;
    api.store
        .pause(&rule.id, &caller.name, &reason, &api.cluster, Utc::now())
        .await?;
    api.recorded.notify_one();
    Ok((AuditedRead::nothing().extension(), StatusCode::NO_CONTENT))
}

/// Resumes a rule that was paused, by a person or after refusals in a row.
#[utoipa::path(post, operation_id = "resumeTrigger", path = "/v1/triggers/{owner}/{name}/resume", tag = "triggers", params(path_params::RulePath), responses(
    (status = 204, description = "The rule fires again"), (status = 401, response = responses::Unauthorized),
    (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn resume(
    caller: Caller,
    State(api): State<Api>,
    Path((owner, name)): Path<(String, String)>,
) -> Result<(Extension<AuditedRead>, StatusCode), Problem> {
    let rule = api.own_rule(&caller, &owner, &name)?;
    api.store
        .resume(&rule.id, &caller.name, &api.cluster, Utc::now())
        .await?;
    api.recorded.notify_one();
    Ok((AuditedRead::nothing().extension(), StatusCode::NO_CONTENT))
}

/// Plans a dead letter again, or asks for its approval again.
#[utoipa::path(post, operation_id = "redriveTriggerRun", path = "/v1/trigger-runs/{key}/redrive", tag = "runs", params(path_params::RunPath), responses(
    (status = 202, description = "The run", body = RunView), (status = 401, response = responses::Unauthorized),
    (status = 403, response = responses::Forbidden), (status = 404, response = responses::NotFound), (status = 409, response = responses::Conflict),
    (status = 503, response = responses::Unavailable),
))]
pub(super) async fn redrive(
    caller: Caller,
    State(api): State<Api>,
    Path(key): Path<String>,
) -> Result<(StatusCode, Extension<AuditedRead>, Json<RunView>), Problem> {
    let run = api.run(&caller, &key, None).await?;
    uses(&caller, &run.rule)?;
    let rules = std::sync::Arc::clone(&api.rules.borrow());
    let rule = rules.get(&run.rule.owner, &run.rule.name);
    let Some(rule) = rule.filter(|rule| !rule.dry_run) else {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "the rule does not exist any more, or is a dry run",
        ));
    };
    let within = rule.approval.as_ref().map(|approval| approval.within);
    let redriven = api
        .store
        .redrive(&run, within, &caller.name, &names(&caller), Utc::now())
        .await;
    if !redriven? {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "no dead letter, or refused before it was decided what to do",
        ));
    }
    api.due_runs.notify();
    api.recorded.notify_one();
    let run = api.run(&caller, &key, None).await?;
    let mut audited_read = AuditedRead::to(&caller);
    audited_read.row(&run.user);
    let shown = Json(RunView::new(&run));
    Ok((StatusCode::ACCEPTED, audited_read.extension(), shown))
}

/// All names of a caller.
fn names(caller: &Caller) -> BTreeSet<String> {
    caller.users.iter().chain([&caller.name]).cloned().collect()
}

impl Api {
    fn cause(&self, caller: &Caller, id: String) -> Cause {
        Cause {
            event_id: id,
            event_type: FIRED_BY_PERSON.to_owned(),
            cluster: self.cluster.to_string(),
            at: Utc::now(),
            job_id: None,
            job_key: None,
            chain: None,
            fired_by: caller.name.clone(),
            requesters: names(caller),
            traceparent: mesh_bus::trace::traceparent().unwrap_or_default(),
        }
    }
}
