//! From an event to what a rule does because of it.

use chrono::{DateTime, SecondsFormat, Utc};
use event_filter::{DecodedEvent, fields};
use mesh_events::{EventType, IncomingEvent, from_timestamp};
use serde_json::{Value, json};
use slurm_submit::SubmitKey;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::action::{Action, EventVariables};
use super::array::FailedTask;
use super::event_job::EventJob;
use super::intent::{Cause, Chain};
use super::planned_action::PlannedAction;
use super::retry;
use super::rule::{EventSelector, Rule, RunAs};
use super::schedule::Schedule;

/// Longest text that templates see, in characters: as long as an argument may be.
const MAX_FIELD_CHARS: usize = 32 * 1024;
const ROOT: &str = "root";
/// Type of a firing by a person.
pub const FIRED_BY_PERSON: &str = "trigger.fire";
/// Type of a firing by a schedule.
const FIRED_BY_SCHEDULE: &str = "trigger.cron";

/// A rule that an event fires.
#[derive(Clone, Debug)]
pub struct Firing {
    /// The rule.
    pub rule: Arc<Rule>,
    /// The event.
    pub cause: Cause,
    /// The user as whom the rule acts.
    pub user: String,
    /// Key of what follows.
    pub key: SubmitKey,
    /// What follows, or why it cannot.
    pub action: Result<PlannedAction, String>,
    /// For retries: the task of an array that failed.
    pub task: Option<FailedTask>,
    /// Key of the queue in which it waits.
    pub queue: Option<String>,
    /// Whether it may have happened already, in a database that is lost.
    pub is_uncertain: bool,
}

/// The firing of a rule by an event of the bus. `None` if the rule retries no such end, or there is nobody as whom it acts.
pub fn of_event(
    rule: &Arc<Rule>,
    kind: EventType,
    event: &DecodedEvent,
    traceparent: String,
) -> Option<Firing> {
    let job = event.job();
    let at = event.occurred_at.as_ref().and_then(from_timestamp);
    let owner = event_filter::filter::user_of(kind, event);
    let cause = Cause {
        event_id: event.id.clone(),
        event_type: event.r#type.clone(),
        cluster: event.cluster.clone(),
        at: at.unwrap_or_default(),
        job_id: job.map(|job| job.job_id),
        job_key: job
            .and_then(|job| SubmitKey::in_comment(&job.comment))
            .map(|key| key.to_string()),
        chain: None,
        fired_by: String::new(),
        requesters: owner.map(str::to_owned).into_iter().collect(),
        traceparent,
    };
    let key = key(rule, &cause.event_id);
    let user = match rule.run_as {
        RunAs::Owner => rule.id.owner.as_str(),
        RunAs::OwnerOfEvent => job.and(owner).filter(|user| !user.is_empty())?,
    };
    let is_own_job = job.is_none() || owner == Some(user);
    let fields = || fields::of(event, None, MAX_FIELD_CHARS);
    let action = match (&rule.action, job) {
        _ if rule.run_as == RunAs::OwnerOfEvent && user == ROOT => {
            Err("no rule acts as root".to_owned())
        }
        (Action::Retry(_) | Action::Act(_), Some(_)) if !is_own_job => Err(format!(
            "the job is not {user}'s: a rule acts on jobs of its owner only"
        )),
        (Action::Retry(policy), Some(job)) => match retry::plan(policy, kind, job) {
            Ok(action) => Ok(action),
            Err(reason) if reason.is_no_match() => return None,
            Err(reason) => Err(reason.to_string()),
        },
        (Action::Retry(_), None) => return None,
        _ => {
            let event_job = EventJob::of(job);
            render(rule, &cause, (key.clone(), user), &fields(), &event_job)
        }
    };
    let task = match (&rule.action, &action, job) {
        (_, Ok(PlannedAction::RerunTasks { first }), _) => Some(first.clone()),
        (Action::Retry(_), Err(_), Some(job)) if is_own_job => FailedTask::of(kind, job),
        _ => None,
    };
    let firing = queued(rule, cause, (key, user), action, fields);
    Some(Firing { task, ..firing })
}

/// A firing, with the key of its queue.
fn queued(
    rule: &Arc<Rule>,
    cause: Cause,
    (key, user): (SubmitKey, &str),
    action: Result<PlannedAction, String>,
    fields: impl FnOnce() -> Value,
) -> Firing {
    let queue = rule.limits.queue.as_ref();
    let queue = queue.map(|template| template.render(&fields())).transpose();
    let (queue, action) = match queue {
        Ok(queue) => (queue, action),
        Err(problem) => (None, Err(format!("limits.queue: {problem}"))),
    };
    Firing {
        rule: Arc::clone(rule),
        cause,
        user: user.to_owned(),
        key,
        action,
        task: None,
        queue,
        is_uncertain: false,
    }
}

/// The firing of a rule at an instant of its schedule. Its id is that of the instant, so that an instant fires once.
pub fn of_instant(
    rule: &Arc<Rule>,
    schedule: &Schedule,
    cluster: &str,
    at: DateTime<Utc>,
) -> Firing {
    let local = schedule.local(at);
    let cause = Cause {
        event_id: format!("cron:{}", at.to_rfc3339_opts(SecondsFormat::Secs, true)),
        event_type: FIRED_BY_SCHEDULE.to_owned(),
        cluster: cluster.to_owned(),
        at,
        job_id: None,
        job_key: None,
        chain: None,
        fired_by: String::new(),
        requesters: BTreeSet::new(),
        traceparent: String::new(),
    };
    let data = json!({
        "time": local.to_rfc3339_opts(SecondsFormat::Secs, true),
        "date": local.format("%Y-%m-%d").to_string(),
    });
    of_data(rule, cause, &data)
}

/// The firing of a rule by an event from outside. `None` if the rule does not select it.
pub fn of_incoming(rule: &Arc<Rule>, event: &IncomingEvent, traceparent: &str) -> Option<Firing> {
    let EventSelector::Source(selector) = &rule.on else {
        return None;
    };
    let (cluster, _) = event.place()?;
    let cause = Cause {
        event_id: event.id.clone(),
        event_type: event.r#type.clone(),
        cluster: cluster.to_owned(),
        at: event.time,
        job_id: None,
        job_key: None,
        chain: Chain::of(event),
        fired_by: event.user.clone(),
        requesters: Some(event.user.clone())
            .filter(|user| !user.is_empty())
            .into_iter()
            .collect(),
        traceparent: traceparent.to_owned(),
    };
    let is_selected = selector.matches(event, &fired_fields(&cause, &event.data));
    is_selected.then(|| of_data(rule, cause, &event.data))
}

/// The firing of a rule with data: by a person, or by a schedule.
pub fn of_data(rule: &Arc<Rule>, cause: Cause, data: &Value) -> Firing {
    let key = key(rule, &cause.event_id);
    let fields = fired_fields(&cause, data);
    let user = rule.id.owner.as_str();
    let action = match &rule.action {
        _ if rule.run_as == RunAs::OwnerOfEvent => {
            Err("run_as: there is no event of a job as whose owner the rule acts".to_owned())
        }
        Action::Retry(_) => Err("a retry needs the event of a job".to_owned()),
        Action::Submit(_) | Action::Act(_) | Action::Publish(_) | Action::Notify(_) => {
            let key = (key.clone(), user);
            render(rule, &cause, key, &fields, &EventJob::default())
        }
    };
    queued(rule, cause, (key, user), action, || fields)
}

/// The fields of a firing with data: those of an event, without any group but `data`.
pub fn fired_fields(cause: &Cause, data: &Value) -> Value {
    json!({
        "id": cause.event_id,
        "type": cause.event_type,
        "category": "trigger",
        "cluster": cause.cluster,
        "time": cause.at,
        "data": data,
    })
}

fn key(rule: &Rule, event_id: &str) -> SubmitKey {
    SubmitKey::new(&rule.id.to_string(), rule.generation.into(), event_id, 0)
}

fn render(
    rule: &Rule,
    cause: &Cause,
    (key, user): (SubmitKey, &str),
    fields: &Value,
    event_job: &EventJob,
) -> Result<PlannedAction, String> {
    match &rule.action {
        Action::Submit(submit) => {
            let variables = EventVariables {
                id: &cause.event_id,
                kind: &cause.event_type,
                rule: &rule.id.to_string(),
            };
            submit.render(key, user, fields, &variables)
        }
        Action::Act(act) => act.render(fields, event_job),
        Action::Publish(publish) => publish.render(fields),
        Action::Notify(notify) => notify.render(fields),
        Action::Retry(_) => Err("a retry is planned by its cause".to_owned()),
    }
}
