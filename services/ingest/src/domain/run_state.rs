//! Stored state of a run: what was published, and what a second poll must confirm before it is published.

mod rare_fields;
mod state_names;

use mesh_events::{EventType, is_default};
use serde::{Deserialize, Serialize};
use slurm_types::{ReasonClass, TaskSet};

#[cfg(test)]
pub use self::rare_fields::RareFields;
pub use self::rare_fields::RareFieldsBox;
pub use self::state_names::StateName;
use super::lookup::StoredLookup;
use super::observation::{EntityKind, Observation, Record};

/// Number of changes of class that a run publishes without delay.
pub(super) const MAX_BURST: i64 = 3;
/// Minimum seconds between further changes. After such an interval without a change, one more is published without delay.
pub(super) const MIN_INTERVAL_SECS: i64 = 600;

/// End of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Event type; `None` if the end is unknown and was resolved as a gap.
    #[serde(with = "state_names::end")]
    pub event: Option<EventType>,
    /// Unix seconds.
    pub at: i64,
    /// Whether no record of Slurm supports it. A later record corrects it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub inferred: bool,
}

/// A sampled change that the next poll must confirm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Number of the poll that saw it first.
    #[serde(rename = "sweep")]
    pub poll: u64,
    /// New value of a hold or release; else `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
    /// New class of the pending reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ReasonClass>,
}

/// Stored state of one run. Serialized names are short because a shard has one state per job. Rare fields are kept apart because all states
/// are in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// Slurm's job id of the record.
    #[serde(rename = "i")]
    pub raw_id: u32,
    /// Whether this is the array itself.
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub is_array: bool,
    /// Whether this is a task of an array.
    #[serde(rename = "t", default, skip_serializing_if = "is_default")]
    pub is_task: bool,
    /// Number of events of this run.
    #[serde(rename = "q")]
    pub seq: u64,
    /// Whether `submitted` was published, or must not be (baseline; first run of an array's task).
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub submitted: bool,
    /// Whether pending events are published for this run. Not so for the first run of an array's task.
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    pub waits: bool,
    /// Published start, in Unix seconds.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub started: Option<i64>,
    /// Whether the controller has shown it running from that start, with its nodes configured: the start of this run moves no more.
    #[serde(rename = "bf", default, skip_serializing_if = "is_default")]
    pub start_is_final: bool,
    /// Published end.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Whether the end of a run that a record knows comes from jobcomp or from the batch step. A contradicting record corrects it, unless a
    /// requeue has overwritten that record.
    #[serde(rename = "eh", default, skip_serializing_if = "is_default")]
    pub ended_by_hook: bool,
    /// Whether no record of Slurm has shown this run. It is published as inferred, and says nothing about other runs.
    #[serde(rename = "ho", default, skip_serializing_if = "is_default")]
    pub hook_only: bool,
    /// Whether it ran and has ended, and accounting has not reported its usage yet.
    #[serde(rename = "u", default, skip_serializing_if = "is_default")]
    pub usage_pending: bool,
    /// Whether its cancellation was published without an actor. Accounting has the actor, the controller does not.
    #[serde(rename = "ca", default, skip_serializing_if = "is_default")]
    pub canceller_pending: bool,
    /// Exit code and signal of the end, until the usage is published: accounting of 22.05 has no exit codes over REST.
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<(u32, u32)>,
    /// Last base state, as Slurm's keyword.
    #[serde(rename = "st")]
    pub state: StateName,
    /// Number of requeues before this run, as in its events.
    #[serde(rename = "rc", default, skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<u32>,
    /// Slurm's restart count as last read. While an old run is cleaned up, it is that of the next run.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u32>,
    /// Whether it is held according to the published events.
    #[serde(rename = "h", default, skip_serializing_if = "is_default")]
    pub held: bool,
    /// Last published class of the pending reason.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ReasonClass>,
    /// Change that the next poll must confirm.
    #[serde(rename = "cd", default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Box<Candidate>>,
    /// Used allowance of pending events, in Unix seconds: the further ahead, the fewer events.
    #[serde(rename = "y", default, skip_serializing_if = "is_default")]
    pub quiet_from: i64,
    /// Number of published `held`, `released` and `pending` events.
    #[serde(rename = "n", default)]
    pub counts: [u32; 3],
    /// Whether accounting must still be asked which tasks the array was submitted with.
    #[serde(rename = "as", default, skip_serializing_if = "is_default")]
    pub ask_submitted: bool,
    /// Open lookup, if no record shows the run any more.
    #[serde(rename = "oq", default, skip_serializing_if = "Option::is_none")]
    pub lookup: Option<Box<StoredLookup>>,
    /// Digest of the poll's row whose record was last read in full.
    #[serde(rename = "d", default)]
    pub digest: u64,
    /// When a source last had the run, in Unix seconds.
    #[serde(rename = "l", default)]
    pub last_seen: i64,
    /// Fields that few runs have.
    #[serde(flatten)]
    pub rare: RareFieldsBox,
}

impl RunState {
    /// State of a run that is seen for the first time.
    pub fn new(observation: &Observation) -> Self {
        Self {
            raw_id: observation.raw_id,
            is_array: observation.entity == EntityKind::Array,
            is_task: observation.entity == EntityKind::Task,
            ..Self::default()
        }
    }

    /// Whether its end is known, or resolved as unknowable.
    pub const fn over(&self) -> bool {
        self.end.is_some()
    }

    /// Returns its end as the event of that id says.
    pub fn first_end(&self) -> Option<&End> {
        self.rare.first_end.as_ref().or(self.end.as_ref())
    }

    /// Whether its end is published and not inferred, so that no doorbell adds to it.
    pub fn has_certain_end(&self) -> bool {
        let is_certain = |end: &End| end.event.is_some() && !end.inferred;
        self.end.as_ref().is_some_and(is_certain)
    }

    /// Whether everything about it is published, including its usage and, for an array, the tasks that left it before its end.
    pub fn closed(&self) -> bool {
        self.over() && !self.accounting_pending() && self.rare.left.is_none() && !self.ask_submitted
    }

    /// Whether accounting must still be asked about its end.
    pub const fn accounting_pending(&self) -> bool {
        self.usage_pending || self.canceller_pending
    }

    /// Whether accounting's record of its end shows that it never had nodes, although its start was inferred.
    pub fn never_started_as(&self, record: &Observation) -> bool {
        self.rare.start_is_inferred
            && record.record == Record::Accounting
            && record.end_kind().is_some()
            && !record.allocated
    }

    /// Returns the event type of its end.
    pub fn end_kind(&self) -> Option<EventType> {
        self.end.as_ref()?.event
    }

    /// Whether the next poll must read it in full even if its row is unchanged.
    pub fn unsettled(&self, now: i64) -> bool {
        let awaited = |candidate: &Candidate| candidate.held.is_some() || !self.is_quiet(now);
        let is_awaited = self.candidate.as_deref().is_some_and(awaited);
        self.rare.left.is_some()
            || !self.over() && (is_awaited || self.state == StateName::COMPLETING)
    }

    /// Whether the class has changed so often lately that further changes are delayed.
    pub fn is_quiet(&self, now: i64) -> bool {
        let ahead = self.quiet_from.saturating_sub(now);
        ahead > (MAX_BURST - 1) * MIN_INTERVAL_SECS
            // Further ahead than it can be set: the clock was wrong.
            && ahead <= MAX_BURST * MIN_INTERVAL_SECS
    }

    /// Returns the tasks that an array's own record still has.
    pub fn remaining_tasks(&self) -> Option<TaskSet> {
        self.rare.remaining.as_deref()?.parse().ok()
    }

    /// Returns tasks whose cancellation was published before accounting was asked about the submission.
    pub fn cancelled_tasks(&self) -> TaskSet {
        let tasks = self
            .rare
            .cancelled
            .as_deref()
            .and_then(|tasks| tasks.parse().ok());
        tasks.unwrap_or_default()
    }

    /// Returns tasks that left the array's record and were not seen since.
    pub fn left_tasks(&self) -> Option<TaskSet> {
        self.rare.left.as_deref()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Stored by version 0.1.0, before fields were held more compactly: a run with every field, and one with none.
    const STORED: [&str; 2] = [
        r#"{"i":7,"a":true,"t":true,"q":12,"s":true,"w":true,"b":160,"e":{"event":"cancelled","at":200,"inferred":true},"eh":true,"ho":true,
            "u":true,"ca":true,"uw":30,"x":[1,9],"sp":170,"rs":180,"ps":10,"rz":[165,190],"st":"COMPLETING","rc":2,"r":3,"h":true,
            "c":"waiting_turn","cd":{"sweep":5,"held":true,"class":"limit"},"y":1000,"n":[1,2,3],"k":4,"tk":"1-5","lf":"6","cx":"7",
            "as":true,"oq":QUESTION,"d":18446744073709551615,"l":1234}"#,
        r#"{"i":7,"q":0,"st":"","n":[0,0,0],"d":0,"l":0}"#,
    ];

    #[test]
    fn state_of_an_earlier_build_is_read_and_written_unchanged() {
        let lookup = serde_json::to_string(&StoredLookup::default()).unwrap();
        for stored in STORED {
            let stored = stored.replace("QUESTION", &lookup);
            let state: RunState = serde_json::from_str(&stored).unwrap();
            let stored: Value = serde_json::from_str(&stored).unwrap();
            assert_eq!(serde_json::to_value(&state).unwrap(), stored);
        }
    }

    #[test]
    fn names_of_ends_and_states_are_stored_as_text() {
        let ends = EventType::ALL.iter().filter(|kind| kind.is_end());
        for event in ends.copied().map(Some).chain([None]) {
            let end = End {
                event,
                at: 1,
                inferred: false,
            };
            let stored = serde_json::to_value(&end).unwrap();
            assert_eq!(stored["event"], event.map_or("", EventType::event));
            assert_eq!(serde_json::from_value::<End>(stored).unwrap(), end);
        }
        let unknown = r#"{"event":"abducted","at":1}"#;
        assert_eq!(serde_json::from_str::<End>(unknown).unwrap().event, None);
        for base in slurm_types::JobBaseState::ALL {
            let stored = serde_json::to_value(StateName::from(base)).unwrap();
            assert_eq!(stored, base.name());
            assert_eq!(
                serde_json::from_value::<StateName>(stored).unwrap(),
                base.into()
            );
        }
    }

    /// Memory holds one state per job, each in its own malloc chunk: every further 16 bytes cost 1.6 MB for 100,000 jobs.
    #[test]
    fn a_state_is_small() {
        assert!(size_of::<RunState>() <= 168, "{}", size_of::<RunState>());
        let mut state = RunState::default();
        state.rare.left = None;
        let mut run_store = crate::domain::RunStore::default();
        let run = mesh_events::RunKey {
            cluster: "c".to_owned(),
            job_id: 7,
            task_id: None,
            submit_time: 100,
            attempt: 0,
        };
        run_store.put(run.clone(), state);
        let stored = run_store.get(&run).unwrap();
        assert!(stored.rare.is_none(), "what was reset takes no room");
    }
}
