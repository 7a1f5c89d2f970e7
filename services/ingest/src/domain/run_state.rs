//! The stored state of a run: what was published, and what two polls must agree on before it is published.

mod rare;
mod words;

use mesh_events::EventType;
use serde::{Deserialize, Serialize};
use slurm_types::{ReasonClass, TaskSet};

pub use self::rare::Rare;
#[cfg(test)]
pub use self::rare::RareState;
pub use self::words::StateWord;
use super::lookup::StoredLookup;
use super::observation::{EntityKind, Observation};
use super::pending_reason;

/// A run's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The event; `None` if the end cannot be known and was settled as a gap.
    #[serde(with = "words::end")]
    pub event: Option<EventType>,
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
    #[serde(rename = "sweep")]
    pub poll: u64,
    /// `Some` for a hold or a release, that is the new value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
    /// Class of the reason it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ReasonClass>,
}

/// The memory of one run. Names are short because there is one per job in a key-value shard, and what few runs have is apart because all of
/// them are in memory.
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
    /// Exit code and signal of the end, as long as what it used is due: accounting of 22.05 has no codes over REST.
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<(u32, u32)>,
    /// Last base state, in Slurm's words.
    #[serde(rename = "st")]
    pub state: StateWord,
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
    pub candidate: Option<Box<Candidate>>,
    /// How far the allowance of events of this class is used, in Unix seconds: the further ahead, the fewer events.
    #[serde(rename = "y", default, skip_serializing_if = "is_zero")]
    pub quiet_from: i64,
    /// How many `held`, `released`, `pending` were published.
    #[serde(rename = "n", default)]
    pub counts: [u32; 3],
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
    /// What few runs have.
    #[serde(flatten)]
    pub rare: Rare,
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
    pub fn closed(&self) -> bool {
        self.over() && !self.owes_accounting() && self.rare.left.is_none() && !self.ask_submitted
    }

    /// Whether accounting must still be asked about its end.
    pub const fn owes_accounting(&self) -> bool {
        self.owes_usage || self.owes_canceller
    }

    /// The event type of its end.
    pub fn end_kind(&self) -> Option<EventType> {
        self.end.as_ref()?.event
    }

    /// Whether the next sweep must read it in full even if its row is unchanged.
    pub fn unsettled(&self, now: i64) -> bool {
        let awaited = |candidate: &Candidate| candidate.held.is_some() || !self.is_quiet(now);
        let is_awaited = self.candidate.as_deref().is_some_and(awaited);
        self.rare.left.is_some()
            || !self.over() && (is_awaited || self.state == StateWord::COMPLETING)
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
        self.rare.remaining.as_deref()?.parse().ok()
    }

    /// Tasks that were published as cancelled before accounting was asked about the submission.
    pub fn cancelled_tasks(&self) -> TaskSet {
        let tasks = self
            .rare
            .cancelled
            .as_deref()
            .and_then(|tasks| tasks.parse().ok());
        tasks.unwrap_or_default()
    }

    /// Tasks that left the array's record and were not seen since.
    pub fn left_tasks(&self) -> Option<TaskSet> {
        self.rare.left.as_deref()?.parse().ok()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// As version 0.1.0 stored them before fields were held more compactly: a run with every field, and one with none.
    const STORED: [&str; 2] = [
        r#"{"i":7,"a":true,"t":true,"q":12,"s":true,"w":true,"b":160,"e":{"event":"cancelled","at":200,"inferred":true},"eh":true,"ho":true,
            "u":true,"ca":true,"uw":30,"x":[1,9],"sp":170,"rs":180,"ps":10,"rz":[165,190],"st":"COMPLETING","rc":2,"r":3,"h":true,
            "c":"waiting_turn","cd":{"sweep":5,"held":true,"class":"limit"},"y":1000,"n":[1,2,3],"k":4,"tk":"1-5","lf":"6","cx":"7",
            "as":true,"oq":QUESTION,"d":18446744073709551615,"l":1234}"#,
        r#"{"i":7,"q":0,"st":"","n":[0,0,0],"d":0,"l":0}"#,
    ];

    #[test]
    fn what_an_earlier_build_stored_is_read_and_written_as_it_was() {
        let question = serde_json::to_string(&StoredLookup::default()).unwrap();
        for stored in STORED {
            let stored = stored.replace("QUESTION", &question);
            let state: RunState = serde_json::from_str(&stored).unwrap();
            let stored: Value = serde_json::from_str(&stored).unwrap();
            assert_eq!(serde_json::to_value(&state).unwrap(), stored);
        }
    }

    #[test]
    fn words_of_ends_and_states_are_stored_as_text() {
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
            let stored = serde_json::to_value(StateWord::from(base)).unwrap();
            assert_eq!(stored, base.name());
            assert_eq!(
                serde_json::from_value::<StateWord>(stored).unwrap(),
                base.into()
            );
        }
    }

    /// There is one per job in memory, in a chunk of malloc's: every 16 bytes more are 1.6 MB of 100,000 jobs.
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
