//! The stored state of a run: what was published, and what two polls must agree on before it is published.

use mesh_events::EventType;
use serde::{Deserialize, Serialize};
use slurm_types::{ReasonClass, TaskSet};

use super::lookup::StoredLookup;
use super::observation::{EntityKind, Observation};
use super::pending_reason;

/// A run's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The event's word (`completed`); empty if the end cannot be known and was settled as a gap.
    pub event: String,
    /// When, in Unix seconds.
    pub at: i64,
    /// True if no record of Slurm stands behind it. A record that comes later corrects it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub inferred: bool,
}

/// Something sampled that the next sweep must confirm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Number of the sweep that saw it first.
    pub sweep: u64,
    /// `Some` for a hold or a release, that is the new value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
    /// Class of the reason it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ReasonClass>,
}

/// The memory of one run. Names are short because there is one per job in a key-value shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// Slurm's id of the record.
    #[serde(rename = "i")]
    pub raw_id: u32,
    /// True for the array itself.
    #[serde(rename = "a", default, skip_serializing_if = "is_false")]
    pub is_array: bool,
    /// True for an array's task.
    #[serde(rename = "t", default, skip_serializing_if = "is_false")]
    pub is_task: bool,
    /// Number of events of this run.
    #[serde(rename = "q")]
    pub seq: u64,
    /// `submitted` was published, or must not be (baseline; first run of an array's task).
    #[serde(rename = "s", default, skip_serializing_if = "is_false")]
    pub submitted: bool,
    /// Whether this run is published as one of its own while it waits: not so for the first run of an array's task.
    #[serde(rename = "w", default, skip_serializing_if = "is_false")]
    pub waits: bool,
    /// When it started, once that was published.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub started: Option<i64>,
    /// Its end, once that was published.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// How it ended is the word of jobcomp, or of its batch step, about a run that a record knows. A record that says otherwise corrects it,
    /// but not one that a requeue has written over.
    #[serde(rename = "eh", default, skip_serializing_if = "is_false")]
    pub ended_by_hook: bool,
    /// No record of Slurm has shown this run: it is published as inferred, and says nothing about other runs.
    #[serde(rename = "ho", default, skip_serializing_if = "is_false")]
    pub hook_only: bool,
    /// It ran and is over, and accounting has not reported yet what it used.
    #[serde(rename = "u", default, skip_serializing_if = "is_false")]
    pub owes_usage: bool,
    /// It was published as cancelled, and not by whom: the controller does not say it, accounting does.
    #[serde(rename = "ca", default, skip_serializing_if = "is_false")]
    pub owes_canceller: bool,
    /// How many seconds what it used, or who cancelled it, was waited for since accounting answered first.
    #[serde(rename = "uw", default, skip_serializing_if = "is_zero")]
    pub waited_for_accounting: u64,
    /// Exit code and signal of the end, as long as what it used is due: accounting of 22.05 has no codes over REST.
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<(u32, u32)>,
    /// Time of the last suspend that was published.
    #[serde(rename = "sp", default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<i64>,
    /// Time of the last resume that was published.
    #[serde(rename = "rs", default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<i64>,
    /// Seconds it had run when it was suspended last, as far as that was seen.
    #[serde(rename = "ps", default, skip_serializing_if = "Option::is_none")]
    pub ran: Option<i64>,
    /// Times of resizes that were published.
    #[serde(rename = "rz", default, skip_serializing_if = "Vec::is_empty")]
    pub resized: Vec<i64>,
    /// Last base state, in Slurm's words.
    #[serde(rename = "st")]
    pub state: String,
    /// How often the job was put back into the queue before this run, as every event of it says.
    #[serde(rename = "rc", default, skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<u32>,
    /// Slurm's count of restarts as it was read last: while an old run is cleaned up that is the next run's.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u32>,
    /// Told as held.
    #[serde(rename = "h", default, skip_serializing_if = "is_false")]
    pub held: bool,
    /// Class of the reason that was published last.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ReasonClass>,
    /// What the next sweep must confirm.
    #[serde(rename = "cd", default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Candidate>,
    /// How far the allowance of events of this class is used, in Unix seconds: the further ahead, the fewer events.
    #[serde(rename = "y", default, skip_serializing_if = "is_zero")]
    pub quiet_from: i64,
    /// How many `held`, `released`, `pending` were published.
    #[serde(rename = "n", default)]
    pub counts: [u64; 3],
    /// Corrections published.
    #[serde(rename = "k", default, skip_serializing_if = "is_zero")]
    pub corrections: u64,
    /// Tasks that an array's own record still has, as Slurm writes them.
    #[serde(rename = "tk", default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<String>,
    /// Tasks that left the array's record and were not seen since.
    #[serde(rename = "lf", default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
    /// Tasks that were published as cancelled while accounting is still to be asked about the submission, which lists them again.
    #[serde(rename = "cx", default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<String>,
    /// Accounting is still to be asked which tasks the array was submitted with.
    #[serde(rename = "as", default, skip_serializing_if = "is_false")]
    pub ask_submitted: bool,
    /// What is open about it, if no record shows it any more.
    #[serde(rename = "oq", default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Box<StoredLookup>>,
    /// Digest of the sweep's row that was last read in full.
    #[serde(rename = "d", default)]
    pub digest: u64,
    /// When a source last knew it, in Unix seconds.
    #[serde(rename = "l", default)]
    pub last_seen: i64,
}

impl RunState {
    /// Memory of a run at its first sight.
    pub fn new(observation: &Observation) -> Self {
        Self {
            raw_id: observation.raw_id,
            is_array: observation.entity == EntityKind::Array,
            is_task: observation.entity == EntityKind::Task,
            ..Self::default()
        }
    }

    /// Whether its end is known, or known to be unknowable.
    pub const fn over(&self) -> bool {
        self.end.is_some()
    }

    /// Whether what became of it is published in full: what it used, and of an array the tasks that left it before its end.
    pub const fn closed(&self) -> bool {
        self.over() && !self.owes_accounting() && self.left.is_none() && !self.ask_submitted
    }

    /// Whether accounting must still be asked about its end.
    pub const fn owes_accounting(&self) -> bool {
        self.owes_usage || self.owes_canceller
    }

    /// The event type of its end.
    pub fn end_kind(&self) -> Option<EventType> {
        let end = self.end.as_ref()?;
        EventType::ALL
            .iter()
            .copied()
            .find(|kind| kind.is_end() && kind.event() == end.event)
    }

    /// Whether the next sweep must read it in full even if its row is unchanged.
    pub fn unsettled(&self, now: i64) -> bool {
        let awaited = |candidate: &Candidate| candidate.held.is_some() || !self.is_quiet(now);
        let is_awaited = self.candidate.as_ref().is_some_and(awaited);
        self.left.is_some() || !self.over() && (is_awaited || self.state == "COMPLETING")
    }

    /// Whether the class has changed so often lately that a further change is not published yet.
    pub fn is_quiet(&self, now: i64) -> bool {
        let ahead = self.quiet_from.saturating_sub(now);
        ahead > (pending_reason::MAX_BURST - 1) * pending_reason::MIN_INTERVAL_SECS
            // Further ahead than it can be set: the clock was wrong.
            && ahead <= pending_reason::MAX_BURST * pending_reason::MIN_INTERVAL_SECS
    }

    /// The tasks an array's own record still had.
    pub fn remaining_tasks(&self) -> Option<TaskSet> {
        self.remaining.as_deref()?.parse().ok()
    }

    /// Tasks that were published as cancelled before accounting was asked about the submission.
    pub fn cancelled_tasks(&self) -> TaskSet {
        let tasks = self
            .cancelled
            .as_deref()
            .and_then(|tasks| tasks.parse().ok());
        tasks.unwrap_or_default()
    }

    /// Tasks that left the array's record and were not seen since.
    pub fn left_tasks(&self) -> Option<TaskSet> {
        self.left.as_deref()?.parse().ok()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
