//! Rules and runs as the API shows them.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use slurm_types::TaskSet;
use utoipa::ToSchema;

use crate::adapters::rule_states::RuleState;
use crate::domain::action::Action;
use crate::domain::intent::{Intent, IntentState};
use crate::domain::planned_action::PlannedAction;
use crate::domain::rule::{EventOwners, EventSelector, Rule, RuleId, RuleOrigin};

/// Rules.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TriggerList)]
pub(crate) struct RuleList {
    /// The rules, by owner and name.
    pub rules: Vec<RuleView>,
    /// Rules by API that cannot be used now. Absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unusable: Vec<UnusableRule>,
}

/// A rule by API that cannot be used: mesh.toml has another rule of its name, or has changed so that it is invalid.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = UnusableTrigger)]
pub(crate) struct UnusableRule {
    /// Owner and name: `alice/align`.
    rule: String,
    /// Why.
    reason: String,
}

impl UnusableRule {
    pub fn new(id: &RuleId, reason: &str) -> Self {
        Self {
            rule: id.to_string(),
            reason: reason.to_owned(),
        }
    }
}

/// A rule.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Trigger)]
pub(crate) struct RuleView {
    /// Owner and name: `alice/align`.
    rule: String,
    /// Where it is defined: `mesh.toml` or `api`.
    defined_in: &'static str,
    /// Who made or changed it last. Absent for rules of mesh.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_by: Option<String>,
    /// When. Absent for rules of mesh.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_at: Option<DateTime<Utc>>,
    /// Free text.
    description: String,
    /// What it does: `submit`, `retry`, `publish`, `notify`, or an act on a job: `requeue`, `hold`, `release`, `cancel`, `signal`, `update`.
    action: &'static str,
    /// As whom it acts: `owner`, or `owner_of_event`, the owner of the event's job.
    run_as: &'static str,
    /// Unix users who approve its runs. Absent if none is needed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    approvers: Vec<String>,
    /// True if only people fire it.
    manual: bool,
    /// Whose events fire it; `*` for everybody's.
    users: Vec<String>,
    /// Source of the events that fire it. Absent for events of Slurm.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// When it fires by itself. Absent without a schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<ScheduleView>,
    /// True if it only records what it would do.
    dry_run: bool,
    /// Number by which its owner lets it fire again on events that it has handled.
    generation: u32,
    /// Maximum number of firings in an hour.
    per_hour: u32,
    /// True if it starts no job while a budget of its owner is exceeded.
    budget: bool,
    /// When it was paused. Absent if it is not paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_at: Option<DateTime<Utc>>,
    /// Who paused it. Absent if it is not paused.
    #[serde(skip_serializing_if = "String::is_empty")]
    paused_by: String,
    /// Reason of the pause. Absent without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    paused_because: String,
    /// Reason of its last refusal. Absent if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    last_refusal: String,
    /// SHA-256 of the script that it submits, in hexadecimal. Absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    script_sha256: Option<String>,
    /// The rule as it was written, without its script. Only of a single rule.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    definition: Option<Value>,
    /// The script that it submits. Only of a single rule by API.
    #[serde(skip_serializing_if = "Option::is_none")]
    script: Option<String>,
}

impl RuleView {
    pub fn new(rule: &Rule, state: Option<&RuleState>, now: DateTime<Utc>) -> Self {
        let state = state.cloned().unwrap_or_default();
        let users = match &rule.on {
            EventSelector::Bus { owners, .. } => names(owners),
            EventSelector::Source(selector) => names(&selector.owners),
            EventSelector::Manual { .. } | EventSelector::Cron(_) => Vec::new(),
        };
        let (changed_by, changed_at) = match &rule.origin {
            RuleOrigin::File => (None, None),
            RuleOrigin::Api {
                changed_by,
                changed_at,
                ..
            } => (Some(changed_by.clone()), Some(*changed_at)),
        };
        Self {
            rule: rule.id.to_string(),
            defined_in: rule.origin.as_str(),
            changed_by,
            changed_at,
            description: rule.description.clone(),
            action: match &rule.action {
                Action::Submit(_) => "submit",
                Action::Retry(_) => "retry",
                Action::Act(act) => act.verb.as_str(),
                Action::Publish(_) => "publish",
                Action::Notify(_) => "notify",
            },
            run_as: rule.run_as.as_str(),
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
            budget: rule.limits.budget,
            paused_at: state.paused_at,
            paused_by: state.paused_by,
            paused_because: state.reason,
            last_refusal: state.last_refusal,
            script_sha256: script(rule).map(|script| hex::encode(Sha256::digest(script))),
            definition: None,
            script: None,
        }
    }

    pub fn detailed(rule: &Rule, state: Option<&RuleState>, now: DateTime<Utc>) -> Self {
        let is_by_api = matches!(rule.origin, RuleOrigin::Api { .. });
        Self {
            definition: Some((*rule.definition).clone()),
            script: script(rule).filter(|_| is_by_api).map(str::to_owned),
            ..Self::new(rule, state, now)
        }
    }
}

fn script(rule: &Rule) -> Option<&str> {
    match &rule.action {
        Action::Submit(submit) => Some(&submit.script),
        Action::Retry(_) | Action::Act(_) | Action::Publish(_) | Action::Notify(_) => None,
    }
}

fn names(owners: &EventOwners) -> Vec<String> {
    match owners {
        EventOwners::All => vec!["*".to_owned()],
        EventOwners::Users(users) | EventOwners::Only(users) => users.iter().cloned().collect(),
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
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TriggerSchedule)]
pub(crate) struct ScheduleView {
    /// Five fields of crontab.
    cron: String,
    /// IANA time zone.
    zone: &'static str,
    /// What becomes of missed instants: `skip`, `once` or `all`.
    missed: &'static str,
    /// How long after its instants the rule fires, in seconds: its part of `jitter`.
    delay_seconds: i64,
    /// When the rule fires next, as the clock of the zone shows it.
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
            delay_seconds: schedule.delay().num_seconds(),
            next: schedule
                .upcoming(now)
                .take(SHOWN_INSTANTS)
                .map(local)
                .collect(),
        })
    }
}

/// A page of runs.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TriggerRunList)]
pub(crate) struct RunList {
    /// The runs, newest first.
    pub runs: Vec<RunView>,
    /// `cursor` of the next page, to be sent with the same filters. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A run: what a rule did because of one event.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TriggerRun)]
pub(crate) struct RunView {
    /// Its key, which the job carries in its comment.
    key: String,
    /// Owner and name of its rule.
    rule: String,
    /// User as whom it acts.
    user: String,
    /// `approval`, `planned`, `submitting`, `accepted`, `confirmed`, `released`, `done`, `refused`, `given_up` or `dry_run`.
    state: &'static str,
    /// Id of its event.
    event_id: String,
    /// Type of its event; `trigger.fire` for a firing by a person, `trigger.cron` by a schedule.
    event_type: String,
    /// Cluster of its event.
    cluster: String,
    /// Who fired it or published its event. Absent if nobody did.
    #[serde(skip_serializing_if = "String::is_empty")]
    fired_by: String,
    /// Id of the first event of its chain.
    root_event_id: String,
    /// Key of the run that led to this one. Absent for the first of a chain.
    #[serde(skip_serializing_if = "String::is_empty")]
    parent: String,
    /// Job that its event is about. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_job_id: Option<u32>,
    /// Number of runs before it in its chain.
    depth: u32,
    /// Job that it submitted or acts on. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<u32>,
    /// Tasks of the array `job_id` that it retries, as `1,3,5-9`: 100 at most in a list, 1000 of a single run. Absent if it retries no array.
    #[serde(skip_serializing_if = "String::is_empty")]
    tasks: String,
    /// Number of all these tasks. Absent if it retries no array.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_count: Option<u32>,
    /// The last one in `tasks` if more follow. Send it as `tasks_after` of the single run to get them.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_tasks_after: Option<u32>,
    /// Which retry of these tasks it is. Absent if it retries no array.
    #[serde(skip_serializing_if = "Option::is_none")]
    array_attempt: Option<u32>,
    /// Number of attempts.
    attempts: u32,
    /// When it was planned.
    created_at: DateTime<Utc>,
    /// When it reached its state.
    updated_at: DateTime<Utc>,
    /// When Slurm accepted its job. Absent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_at: Option<DateTime<Utc>>,
    /// When its job was released. Absent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    released_at: Option<DateTime<Utc>>,
    /// When its job ended the last time. Absent before it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<DateTime<Utc>>,
    /// Type of the job's last end, such as `completed`. Absent before it ended.
    #[serde(skip_serializing_if = "String::is_empty")]
    ended_as: String,
    /// How often Slurm had restarted the job before its last end. Absent if never.
    #[serde(skip_serializing_if = "Option::is_none")]
    restarts: Option<u32>,
    /// The last error, or the reason of a refusal. Absent without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    /// Until when it waits for approval. Absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    approve_until: Option<DateTime<Utc>>,
    /// Who approved it. Absent if nobody did.
    #[serde(skip_serializing_if = "String::is_empty")]
    approved_by: String,
    /// What it does, with all values: `verb` and the fields of the verb. Only of a single run.
    #[schema(value_type = Option<Object>)]
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
            user: run.user.clone(),
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
                Some(_) => TaskSet::new(run.tasks.numbers.iter().copied()).to_string(),
                None => String::new(),
            },
            task_count: run.array_attempt.map(|_| run.tasks.total),
            next_tasks_after: run.tasks.next_after(),
            array_attempt: run.array_attempt,
            attempts: run.attempts,
            created_at: run.created_at,
            updated_at: run.updated_at,
            accepted_at: run.accepted_at,
            released_at: run.released_at,
            ended_at,
            ended_as,
            restarts: Some(run.restarts).filter(|restarts| *restarts > 0),
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
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TriggerTestResult)]
pub(crate) struct TestView {
    /// True if the event or the data fires the rule.
    pub matches: bool,
    /// When the rule fires by itself. Absent without a schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleView>,
    /// Unix users of whom one would have to approve it. Absent if none is needed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
    /// What would be done: `verb` and the fields of the verb. Absent if that cannot be decided.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<PlannedAction>,
    /// Why it would be refused. Absent if it would not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
}

/// A run that was planned.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TriggerFiring)]
pub(crate) struct FiredView {
    /// Key of the run.
    pub key: String,
    /// False if the same firing had been planned before.
    pub is_new: bool,
}
