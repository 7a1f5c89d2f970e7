//! What forbids a firing. Every refusal is stored and visible, except that of an event that is too old: a replay may have millions.

use std::time::Duration;

use super::action::Action;
use super::rule::{Concurrency, Rule};

/// Refusals in a row after which a rule is paused.
pub const PAUSE_AFTER_REFUSALS: u32 = 5;

/// Limits for all rules together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteLimits {
    /// Maximum number of jobs between an event and the first event of its chain.
    pub depth: u32,
    /// Maximum number of firings that go back to one event.
    pub jobs_per_root: u32,
    /// Maximum number of firings in an hour for one user.
    pub per_user_hour: u32,
    /// Maximum number of firings in an hour.
    pub per_hour: u32,
}

/// What the database knows when an event matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardFacts {
    /// Whether the rule is paused.
    pub is_paused: bool,
    /// Jobs of rules between the first event of the chain and this one.
    pub depth: u32,
    /// Firings that go back to the same first event.
    pub jobs_of_root: u32,
    /// Whether the event is about a job that this rule submitted.
    pub is_of_own_job: bool,
    /// Firings of the rule in the last hour.
    pub rule_last_hour: u32,
    /// Firings for the owner in the last hour.
    pub user_last_hour: u32,
    /// All firings in the last hour.
    pub last_hour: u32,
    /// Jobs of the rule that have not ended; with `concurrency = "skip"` those with the same key.
    pub running: u32,
    /// How often the rule has run the event's job again.
    pub retries: u32,
    /// A budget that is exceeded, if the rule heeds it and a job is to start.
    pub exceeded_budget: Option<String>,
}

/// Why a rule does not fire.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is paused.
    #[error("the rule is paused")]
    Paused,
    /// A chain of jobs is too long.
    #[error("chain of {0} jobs: at most workflow-trigger.limits.depth")]
    Depth(u32),
    /// One event led to too many jobs.
    #[error("{0} jobs go back to one event: at most workflow-trigger.limits.jobs_per_root")]
    JobsPerRoot(u32),
    /// The event is about a job of the rule itself.
    #[error("the event is about a job of this rule: set allow_self if that is intended")]
    OwnJob,
    /// Too many firings of the rule.
    #[error("{0} firings within an hour: at most limits.per_hour of the rule")]
    RuleRate(u32),
    /// Too many firings for the user.
    #[error(
        "{0} firings for the owner within an hour: at most workflow-trigger.limits.per_user_hour"
    )]
    UserRate(u32),
    /// Too many firings.
    #[error("{0} firings within an hour: at most workflow-trigger.limits.per_hour")]
    Rate(u32),
    /// Too many jobs at the same time.
    #[error("{0} jobs of the rule have not ended: at most limits.running of the rule")]
    Running(u32),
    /// Others with its key have not ended.
    #[error("{0} runs with the same limits.queue have not ended: limits.concurrency = \"skip\"")]
    Skipped(u32),
    /// Retried often enough.
    #[error("{0} retries of this job: at most action.retry.attempts")]
    Attempts(u32),
    /// Enough was spent.
    #[error("budget {0:?} is exceeded: limits.budget of the rule")]
    Budget(String),
}

impl Refusal {
    /// True if it hints at a faulty rule, which is paused if that goes on. Rates and numbers of jobs fall by themselves.
    pub const fn counts_towards_pause(&self) -> bool {
        matches!(self, Self::Depth(_) | Self::JobsPerRoot(_) | Self::OwnJob)
    }

    /// A word for metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Depth(_) => "depth",
            Self::JobsPerRoot(_) => "jobs_per_root",
            Self::OwnJob => "own_job",
            Self::RuleRate(_) => "rule_rate",
            Self::UserRate(_) => "user_rate",
            Self::Rate(_) => "rate",
            Self::Running(_) => "running",
            Self::Skipped(_) => "skipped",
            Self::Attempts(_) => "attempts",
            Self::Budget(_) => "budget",
        }
    }
}

/// True if an event is too old to fire the rule. Replays of old events fire nothing.
pub fn is_too_old(rule: &Rule, age: Duration) -> bool {
    age > rule.limits.max_event_age
}

/// Decides whether a rule may fire.
///
/// # Errors
/// The first guard that forbids it.
pub fn check(rule: &Rule, site: &SiteLimits, facts: &GuardFacts) -> Result<(), Refusal> {
    if facts.is_paused {
        return Err(Refusal::Paused);
    }
    if facts.is_of_own_job && !rule.allow_self {
        return Err(Refusal::OwnJob);
    }
    if let Some(budget) = &facts.exceeded_budget {
        return Err(Refusal::Budget(budget.clone()));
    }
    let limits = &rule.limits;
    let within = |number: u32, limit: u32, refusal: fn(u32) -> Refusal| match number < limit {
        true => Ok(()),
        false => Err(refusal(number)),
    };
    within(facts.depth, site.depth, Refusal::Depth)?;
    within(facts.jobs_of_root, site.jobs_per_root, Refusal::JobsPerRoot)?;
    within(facts.rule_last_hour, limits.per_hour, Refusal::RuleRate)?;
    within(facts.user_last_hour, site.per_user_hour, Refusal::UserRate)?;
    within(facts.last_hour, site.per_hour, Refusal::Rate)?;
    let (max_running, too_many): (u32, fn(u32) -> Refusal) =
        match (&limits.queue, limits.concurrency) {
            (Some(_), Concurrency::Skip) => (1, Refusal::Skipped),
            _ => (u32::MAX, Refusal::Running),
        };
    let max_running = limits.running.unwrap_or(max_running);
    within(facts.running, max_running, too_many)?;
    match &rule.action {
        Action::Retry(policy) => within(facts.retries, policy.attempts, Refusal::Attempts),
        Action::Submit(_) | Action::Act(_) | Action::Publish(_) | Action::Notify(_) => Ok(()),
    }
}
