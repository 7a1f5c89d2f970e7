//! Rules: which events start what, as whom, and within which limits.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use event_filter::{DecodedEvent, Expression, Filter, Template};
use mesh_events::{EventType, IncomingEvent};
use serde::Deserialize;
use serde_json::Value;

use super::action::Action;
use super::approval::Approval;
use super::schedule::Schedule;

/// Who or what a rule belongs to, and its name: `alice/align`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId {
    /// Unix user who owns the rule, and as whom it acts.
    pub owner: String,
    /// Name, unique per owner.
    pub name: String,
}

impl RuleId {
    /// Parses a full name: `alice/align`.
    pub fn parse(text: &str) -> Option<Self> {
        let (owner, name) = text.split_once('/')?;
        Some(Self {
            owner: owner.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Owner and name.
    pub id: RuleId,
    /// Free text.
    pub description: String,
    /// Number by which the owner lets a rule fire again on events that it has handled.
    pub generation: u32,
    /// Events that fire it.
    pub on: EventSelector,
    /// What it does.
    pub action: Action,
    /// Who must approve that. `None`: nobody.
    pub approval: Option<Approval>,
    /// Its limits.
    pub limits: RuleLimits,
    /// Whether it only records what it would do.
    pub dry_run: bool,
    /// Whether it may fire on events of the jobs that it submitted.
    pub allow_self: bool,
    /// As whom it acts.
    pub run_as: RunAs,
    /// Where it is defined.
    pub origin: RuleOrigin,
    /// As it was written, without the text of its script.
    pub definition: Arc<Value>,
}

/// As whom a rule acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunAs {
    /// As its owner.
    #[default]
    Owner,
    /// As the owner of the event's job. Only rules of administrators do.
    OwnerOfEvent,
}

impl RunAs {
    /// The word in the configuration and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::OwnerOfEvent => "owner_of_event",
        }
    }
}

/// Where a rule is defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOrigin {
    /// In `mesh.toml`.
    File,
    /// By API.
    Api {
        /// Who may do what with it.
        author: RuleAuthor,
        /// Who made or changed it last.
        changed_by: String,
        /// When.
        changed_at: DateTime<Utc>,
    },
}

impl RuleOrigin {
    /// The word in the API.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::File => "mesh.toml",
            Self::Api { .. } => "api",
        }
    }
}

/// Who made a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAuthor {
    /// Its owner: it fires on the owner's events only.
    Owner,
    /// An administrator.
    Administrator,
}

/// Selects the events that fire a rule.
#[derive(Clone, Debug)]
pub enum EventSelector {
    /// Events of the bus.
    Bus {
        /// The dispatcher's filter.
        filter: Filter,
        /// Owners of the events.
        owners: EventOwners,
    },
    /// Events of a source outside of Slurm.
    Source(SourceSelector),
    /// The instants of a schedule.
    Cron(Schedule),
    /// Only people, with `smesh triggers fire`.
    Manual {
        /// Condition on the data. `None`: any.
        when: Option<Expression>,
    },
}

/// Selects events of a source.
#[derive(Clone, Debug)]
pub struct SourceSelector {
    /// Its name.
    pub source: String,
    /// Types, a `*` at the end for any rest. Empty: all.
    pub types: Vec<String>,
    /// Who published them. Events of machines have no owner.
    pub owners: EventOwners,
    /// Condition on the event's data.
    pub when: Option<Expression>,
}

/// Whose events a rule may fire on. Events of nodes and of capture have no owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventOwners {
    /// Of everybody.
    All,
    /// Of these users.
    Users(BTreeSet<String>),
    /// Of these users, and not those that have no owner.
    Only(BTreeSet<String>),
}

/// Limits of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimits {
    /// Maximum number of firings in an hour.
    pub per_hour: u32,
    /// Maximum number of jobs of the rule that have not ended. `None`: no limit.
    pub running: Option<u32>,
    /// Key of runs that belong together: what becomes of one while others have not ended is in `concurrency`.
    pub queue: Option<Template>,
    /// What becomes of a run while others with its key have not ended.
    pub concurrency: Concurrency,
    /// Maximum age of an event that fires it.
    pub max_event_age: Duration,
    /// Whether it starts no job while a budget of its owner, or of the job's account, is exceeded.
    pub budget: bool,
}

/// What becomes of a run while others with its key have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Concurrency {
    /// It waits.
    #[default]
    Queue,
    /// It is refused.
    Skip,
    /// The others end, and it follows.
    Replace,
}

/// True if rules fire on events of a type: not on what rules tell, which would fire them without end.
pub const fn fires_rules(kind: EventType) -> bool {
    !matches!(
        kind,
        EventType::UserNotified | EventType::UserApprovalRequested
    )
}

impl Rule {
    /// True if an event of the bus fires it.
    pub fn matches(&self, kind: EventType, event: &DecodedEvent) -> bool {
        let EventSelector::Bus { filter, owners } = &self.on else {
            return false;
        };
        fires_rules(kind)
            && filter.selects(kind)
            && owners.allow(event_filter::filter::user_of(kind, event))
            && filter.matches(kind, event)
    }

    /// True if the data of `smesh triggers fire` meets the condition of a manual rule. People may fire the others with any data.
    pub fn accepts(&self, fields: &Value) -> bool {
        match &self.on {
            EventSelector::Manual { when: Some(when) } => when.holds(fields),
            EventSelector::Manual { when: None }
            | EventSelector::Bus { .. }
            | EventSelector::Source(_)
            | EventSelector::Cron(_) => true,
        }
    }
}

impl SourceSelector {
    /// True if an event fires the rule. `fields` are those of the event.
    pub fn matches(&self, event: &IncomingEvent, fields: &Value) -> bool {
        let is_of_type = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => event.r#type.starts_with(start),
            None => event.r#type == *pattern,
        };
        let owner = (!event.user.is_empty()).then_some(event.user.as_str());
        (self.types.is_empty() || self.types.iter().any(is_of_type))
            && self.owners.allow(owner)
            && self.when.as_ref().is_none_or(|when| when.holds(fields))
    }
}

impl EventOwners {
    fn allow(&self, owner: Option<&str>) -> bool {
        match (self, owner) {
            (Self::All, _) | (Self::Users(_), None) => true,
            (Self::Only(_), None) => false,
            (Self::Users(users) | Self::Only(users), Some(owner)) => users.contains(owner),
        }
    }
}
