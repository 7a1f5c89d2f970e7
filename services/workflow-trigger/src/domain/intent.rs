//! An intent: what one rule does because of one event, from the decision to its outcome.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use mesh_events::IncomingEvent;
use serde::{Deserialize, Serialize};
use slurm_types::JobId;

use super::approval::RunApproval;
use super::planned_action::PlannedAction;
use super::rule::RuleId;

/// How far an intent is.
///
/// ```text
/// approval ─► planned                                               a rule with approval
/// planned ─► submitting ─► accepted ─► confirmed ─► released        a submission
/// planned ─► submitting ─► done                                     an act on a job
///    any of these ─► refused (Slurm or a guard says no) | given_up (nobody can know or help)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentState {
    /// It waits for a person who approves it.
    Approval,
    /// It is durable, and nothing was sent to Slurm.
    Planned,
    /// Something was sent to Slurm, and the outcome may be unknown.
    Submitting,
    /// Slurm has accepted a held job, whose id is stored.
    Accepted,
    /// The controller still shows the job some time after it accepted it: it has saved it.
    Confirmed,
    /// The job is released.
    Released,
    /// The act on a job is done.
    Done,
    /// A guard or Slurm refused it.
    Refused,
    /// It failed in a way that a retry cannot help.
    GivenUp,
    /// The rule only records what it would do.
    DryRun,
}

impl IntentState {
    /// Every state.
    pub const ALL: [Self; 10] = [
        Self::Approval,
        Self::Planned,
        Self::Submitting,
        Self::Accepted,
        Self::Confirmed,
        Self::Released,
        Self::Done,
        Self::Refused,
        Self::GivenUp,
        Self::DryRun,
    ];

    /// The word in the database and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Planned => "planned",
            Self::Submitting => "submitting",
            Self::Accepted => "accepted",
            Self::Confirmed => "confirmed",
            Self::Released => "released",
            Self::Done => "done",
            Self::Refused => "refused",
            Self::GivenUp => "given_up",
            Self::DryRun => "dry_run",
        }
    }

    /// True if the driver has nothing more to do.
    pub const fn is_final(self) -> bool {
        !matches!(
            self,
            Self::Approval | Self::Planned | Self::Submitting | Self::Accepted | Self::Confirmed
        )
    }

    /// True for dead letters: they stay until they are redriven or expire.
    pub const fn is_dead(self) -> bool {
        matches!(self, Self::Refused | Self::GivenUp)
    }
}

/// What a run needs next. Each has slots of its own: while one is away, the runs of the other go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Slurm: for jobs.
    Slurm,
    /// The bus: for messages, and to ask approvers.
    Bus,
}

impl fmt::Display for IntentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no state.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no state of a run")]
pub struct UnknownState(String);

impl FromStr for IntentState {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| UnknownState(text.to_owned()))
    }
}

/// What led to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The first event.
    pub root: String,
    /// The last run of a rule.
    pub parent: String,
    /// Runs of rules in it.
    pub depth: u32,
}

impl Chain {
    /// The chain of an event from outside.
    pub fn of(event: &IncomingEvent) -> Option<Self> {
        (!event.rootid.is_empty()).then(|| Self {
            root: event.rootid.clone(),
            parent: event.causeid.clone(),
            depth: event.depth,
        })
    }

    /// Says that an event continues this chain.
    pub fn continued_by(self, event: &mut IncomingEvent) {
        event.rootid = self.root;
        event.causeid = self.parent;
        event.depth = self.depth;
    }
}

impl Intent {
    /// The chain that goes on with what this run does.
    pub fn chain(&self) -> Chain {
        Chain {
            root: self.root.clone(),
            parent: self.key.clone(),
            depth: self.depth.saturating_add(1),
        }
    }
}

/// The event of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Id of the event, or of the firing by a person.
    pub event_id: String,
    /// Type of the event: `job.failed`, or `trigger.fire` for a firing by a person.
    pub event_type: String,
    /// Cluster of the event.
    pub cluster: String,
    /// Time of the event.
    pub at: DateTime<Utc>,
    /// Job that the event is about.
    pub job_id: Option<u32>,
    /// The submission key in that job's comment, if a rule submitted it.
    pub job_key: Option<String>,
    /// For events from outside: the chain that led to them.
    pub chain: Option<Chain>,
    /// Who fired it. Empty for events.
    pub fired_by: String,
    /// All names of whoever caused it: who fired or published it, and the owner of the event's job. Of a stored run, also of whoever caused
    /// the runs before it in its chain.
    pub requesters: BTreeSet<String>,
    /// Trace context. Empty if there is none.
    pub traceparent: String,
}

/// Where a run is in a list, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPosition {
    /// When it was created, in microseconds since 1970.
    pub created_at: i64,
    /// Its key.
    pub key: String,
}

impl RunPosition {
    /// The position of a run.
    pub fn of(run: &Intent) -> Self {
        Self {
            created_at: run.created_at.timestamp_micros(),
            key: run.key.clone(),
        }
    }

    /// The cursor for clients.
    pub fn cursor(&self) -> String {
        format!("{}/{}", self.created_at, self.key)
    }

    /// Parses a cursor. `None` if it is invalid.
    pub fn parse(cursor: &str) -> Option<Self> {
        let (created_at, key) = cursor.split_once('/')?;
        // PostgreSQL rejects texts with NUL.
        let is_valid = !key.is_empty() && !key.contains('\0');
        Some(Self {
            created_at: created_at.parse().ok().filter(|_| is_valid)?,
            key: key.to_owned(),
        })
    }
}

/// Some of the tasks of an array that a run retries, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskPage {
    /// The tasks of this page.
    pub numbers: Vec<u32>,
    /// True if more follow.
    pub has_more: bool,
    /// Number of all tasks of the run.
    pub total: u32,
}

impl TaskPage {
    /// The task after which the next page begins. `None`: this is the last page.
    pub fn next_after(&self) -> Option<u32> {
        self.numbers.last().copied().filter(|_| self.has_more)
    }
}

/// An intent in the database.
#[derive(Clone, Debug)]
pub struct Intent {
    /// Its key, which the job carries in its comment.
    pub key: String,
    /// The rule.
    pub rule: RuleId,
    /// The user as whom it acts.
    pub user: String,
    /// How far it is.
    pub state: IntentState,
    /// The event.
    pub cause: Cause,
    /// The first event of the chain.
    pub root: String,
    /// The run that led to it. Empty for the first one of the chain.
    pub parent: String,
    /// Jobs of rules between that and this one.
    pub depth: u32,
    /// The approval that it needs. `None`: none.
    pub approval: Option<RunApproval>,
    /// What it does. `None` if it was refused before that was decided.
    pub action: Option<PlannedAction>,
    /// Id of the job that it submitted, or acts on.
    pub job_id: Option<JobId>,
    /// Attempts to submit it.
    pub attempts: u32,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When the first attempt was sent to Slurm.
    pub sent_at: Option<DateTime<Utc>>,
    /// When Slurm accepted the job.
    pub accepted_at: Option<DateTime<Utc>>,
    /// When the job was released.
    pub released_at: Option<DateTime<Utc>>,
    /// When it reached its state.
    pub updated_at: DateTime<Utc>,
    /// When the job ended the last time, and how.
    pub ended: Option<(DateTime<Utc>, String)>,
    /// How often Slurm had restarted it before.
    pub restarts: u32,
    /// The last error, in Slurm's words.
    pub error: String,
    /// Which retry of these tasks of an array it is. `None`: it is no such retry.
    pub array_attempt: Option<u32>,
    /// Those tasks, where they were read.
    pub tasks: TaskPage,
    /// The run that replaces it, while its job is to be cancelled.
    pub replaced_by: Option<String>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cursors_come_back(created_at: i64, key in "[^\0]+") {
            let position = RunPosition { created_at, key };
            prop_assert_eq!(RunPosition::parse(&position.cursor()), Some(position));
        }
    }

    #[test]
    fn any_other_text_is_no_cursor() {
        for text in ["", "/", "1/", "x/smesh:1:k", "smesh:1:k", "1/\0"] {
            assert_eq!(RunPosition::parse(text), None, "{text:?}");
        }
    }
}
