//! Facts of a run, and how they are collected.

use mesh_events::proto::mesh::event::v1::IdSource;
use mesh_events::{EventId, EventType, RunKey, Slot};

use super::observation::AllocationPart;
use super::run_state::RunState;

/// How the id of a fact is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactId {
    /// From the time in Slurm's record.
    Recorded(Slot),
    /// From a counter of its type within the run.
    Sampled(u64),
    /// From the corrected fact and a counter.
    Correction(EventId, u64),
}

/// The run that another one continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Key of the earlier run.
    pub run: RunKey,
    /// Event name of its end.
    pub cause: String,
}

/// A fact to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Run of the fact.
    pub run: RunKey,
    /// Event type.
    pub kind: EventType,
    /// Identity.
    pub id: FactId,
    /// Slurm's time of the fact, in Unix seconds; `None` if Slurm records none.
    pub at: Option<i64>,
    /// Sequence number within the run.
    pub seq: u64,
    /// Whether no record of Slurm supports it.
    pub inferred: bool,
    /// Base state before the fact.
    pub previous_state: String,
    /// Number of requeues before this run, if known.
    pub restart_count: Option<u32>,
    /// Earlier run that this one continues; for `submitted` only.
    pub continues: Option<Continuation>,
    /// Cancelled tasks of an array; for `cancelled` only.
    pub array_tasks: String,
    /// What the run held at that time, if its payload is of a later time.
    pub allocation: Option<AllocationPart>,
}

impl Fact {
    /// A fact of this type, for tests.
    #[cfg(test)]
    pub fn sample(kind: EventType) -> Self {
        Self {
            run: RunKey {
                cluster: "c".to_owned(),
                job_id: 1,
                task_id: None,
                submit_time: 100,
                attempt: 0,
            },
            kind,
            id: FactId::Recorded(Slot::of_type(kind).unwrap_or(Slot::End)),
            at: None,
            seq: 1,
            inferred: false,
            previous_state: String::new(),
            restart_count: None,
            continues: None,
            array_tasks: String::new(),
            allocation: None,
        }
    }

    /// Computes the id of the event.
    pub fn event_id(&self) -> EventId {
        match self.id {
            FactId::Recorded(slot) => EventId::recorded(&self.run, slot),
            FactId::Sampled(n) => {
                EventId::sampled(&self.run.cluster, &self.run.entity_key(), self.kind, n)
            }
            FactId::Correction(first, n) => EventId::derived(first, EventType::JobCorrected, n),
        }
    }

    /// Returns the source from which the id was computed.
    pub fn id_source(&self) -> Option<IdSource> {
        match self.id {
            FactId::Recorded(slot) => IdSource::recorded(self.kind, slot),
            FactId::Sampled(n) => IdSource::sampled(n),
            FactId::Correction(first, n) => IdSource::derived(first, n),
        }
    }
}

/// Collects the facts of one run.
pub(super) struct Emitter<'a> {
    pub run: &'a RunKey,
    pub next: &'a mut RunState,
    pub facts: &'a mut Vec<Fact>,
    pub inferred: bool,
}

impl Emitter<'_> {
    pub(super) fn emit(&mut self, kind: EventType, id: FactId, at: Option<i64>) -> &mut Fact {
        self.next.seq += 1;
        self.facts.push(Fact {
            run: self.run.clone(),
            kind,
            id,
            at,
            seq: self.next.seq,
            inferred: self.inferred,
            previous_state: self.next.state.as_str().to_owned(),
            restart_count: self.next.restart_count,
            continues: None,
            array_tasks: String::new(),
            allocation: None,
        });
        let last = self.facts.len() - 1;
        &mut self.facts[last]
    }

    pub(super) fn recorded(&mut self, kind: EventType, slot: Slot, at: Option<i64>) -> &mut Fact {
        self.emit(kind, FactId::Recorded(slot), at)
    }
}
