//! Rules and runs as the API shows them.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use slurm_types::TaskSet;

use crate::adapters::rule_states::RuleState;
use crate::domain::action::{Action, PlannedAction};
use crate::domain::intent::{Intent, IntentState};
use crate::domain::rule::{EventOwners, EventSelector, Rule};

/// Rules.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RuleList {
    pub rules: Vec<RuleView>,
}

/// A rule.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RuleView {
    /// `owner/name`
    rule: String,
    description: String,
    /// `submit`, `retry`, or the act.
    action: &'static str,
    /// Who approves its runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    approvers: Vec<String>,
    /// Whether only people fire it.
    manual: bool,
    /// Whose events fire it; `*` for everybody's.
    users: Vec<String>,
    /// Source of the events that fire it, if not Slurm.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// When it fires by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<ScheduleView>,
    dry_run: bool,
    generation: u32,
    /// Firings in an hour.
    per_hour: u32,
    /// When it was paused, by whom and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    paused_by: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    paused_because: String,
    /// Why it did not fire the last time that it did not.
    #[serde(skip_serializing_if = "String::is_empty")]
    last_refusal: String,
}

impl RuleView {
    pub fn new(rule: &Rule, state: Option<&RuleState>, now: DateTime<Utc>) -> Self {
        let state = state.cloned().unwrap_or_default();
        let users = match &rule.on {
            EventSelector::Bus {
                owners: EventOwners::Users(users),
                ..
            } => users.iter().cloned().collect(),
            EventSelector::Bus {
                owners: EventOwners::All,
                ..
            } => vec!["*".to_owned()],
            EventSelector::Source(selector) => match &selector.owners {
                EventOwners::Users(users) => users.iter().cloned().collect(),
                EventOwners::All => vec!["*".to_owned()],
            },
            EventSelector::Manual { .. } | EventSelector::Cron(_) => Vec::new(),
        };
        Self {
            rule: rule.id.to_string(),
            description: rule.description.clone(),
            action: match &rule.action {
                Action::Submit(_) => "submit",
                Action::Retry(_) => "retry",
                Action::Act(act) => act.verb.as_str(),
                Action::Publish(_) => "publish",
                Action::Notify(_) => "notify",
            },
            approvers: approvers(rule),
            manual: matches!(rule.on, EventSelector::Manual { .. }),
            users,
            source: match &rule.on {
                EventSelector::Source(selector) => Some(selector.source.clone()),
                _ => None,
            },
            schedule: ScheduleView::of(rule, now),
            dry_run: rule.dry_run,
            generation: rule.generation,
            per_hour: rule.limits.per_hour,
            paused_at: state.paused_at,
            paused_by: state.paused_by,
            paused_because: state.reason,
            last_refusal: state.last_refusal,
        }
    }
}

/// Who approves the runs of a rule. Empty: they need no approval.
pub(super) fn approvers(rule: &Rule) -> Vec<String> {
    let approval = rule.approval.iter();
    approval
        .flat_map(|approval| &approval.by)
        .cloned()
        .collect()
}

/// Instants that are shown.
const SHOWN_INSTANTS: usize = 5;

/// The schedule of a rule.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScheduleView {
    cron: String,
    zone: &'static str,
    missed: &'static str,
    /// The next instants, as the clock of the zone shows them.
    next: Vec<String>,
}

impl ScheduleView {
    pub fn of(rule: &Rule, now: DateTime<Utc>) -> Option<Self> {
        let EventSelector::Cron(schedule) = &rule.on else {
            return None;
        };
        let local = |at| {
            schedule
                .local(at)
                .to_rfc3339_opts(SecondsFormat::Secs, false)
        };
        Some(Self {
            cron: schedule.fields().to_owned(),
            zone: schedule.zone().name(),
            missed: schedule.missed().as_str(),
            next: schedule
                .upcoming(now)
                .take(SHOWN_INSTANTS)
                .map(local)
                .collect(),
        })
    }
}

/// Runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunList {
    pub runs: Vec<RunView>,
}

/// A run: what a rule did because of one event.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunView {
    /// Its key, which the job carries in its comment.
    key: String,
    rule: String,
    state: &'static str,
    event_id: String,
    event_type: String,
    cluster: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    fired_by: String,
    /// The first event of the chain, and the jobs between it and this run.
    root_event_id: String,
    /// The run that led to this one.
    #[serde(skip_serializing_if = "String::is_empty")]
    parent: String,
    /// The job of its event.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_job_id: Option<u32>,
    depth: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<u32>,
    /// Of a retry of an array, which is `job_id`: its tasks, as `1,3,5-9`, and which retry of these tasks it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    tasks: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    array_attempt: Option<u32>,
    attempts: u32,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    released_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    ended_as: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    /// Until when it waits for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    approve_until: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    approved_by: String,
    /// What it does, with all values. Only of a single run.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<PlannedAction>,
}

impl RunView {
    pub fn new(run: &Intent) -> Self {
        let (ended_at, ended_as) = match &run.ended {
            Some((at, how)) => (Some(*at), how.clone()),
            None => (None, String::new()),
        };
        Self {
            key: run.key.clone(),
            rule: run.rule.to_string(),
            state: run.state.as_str(),
            event_id: run.cause.event_id.clone(),
            event_type: run.cause.event_type.clone(),
            cluster: run.cause.cluster.clone(),
            fired_by: run.cause.fired_by.clone(),
            root_event_id: run.root.clone(),
            parent: run.parent.clone(),
            event_job_id: run.cause.job_id,
            depth: run.depth,
            job_id: run.job_id.map(|job| job.get()),
            tasks: match run.array_attempt {
                Some(_) => TaskSet::new(run.tasks.iter().map(|task| task.failed.task)).to_string(),
                None => String::new(),
            },
            array_attempt: run.array_attempt,
            attempts: run.attempts,
            created_at: run.created_at,
            updated_at: run.updated_at,
            accepted_at: run.accepted_at,
            released_at: run.released_at,
            ended_at,
            ended_as,
            error: run.error.clone(),
            approve_until: run
                .approval
                .as_ref()
                .filter(|_| run.state == IntentState::Approval)
                .and_then(|approval| approval.until),
            approved_by: run
                .approval
                .as_ref()
                .map(|approval| approval.approved_by.clone())
                .unwrap_or_default(),
            action: None,
        }
    }

    pub fn detailed(run: &Intent) -> Self {
        Self {
            action: run.action.clone(),
            ..Self::new(run)
        }
    }
}

/// What a rule would do with an event or with data.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TestView {
    /// Whether the event fires the rule.
    pub matches: bool,
    /// The instants at which it would be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleView>,
    /// Who would have to approve it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
    /// What would be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<PlannedAction>,
    /// Why it would be refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
}

/// A run that was planned.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FiredView {
    /// Key of the run.
    pub key: String,
    /// False if the same firing had been planned before.
    pub is_new: bool,
}
