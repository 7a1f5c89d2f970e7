//! Entries of the ledger, in the form that the demo and the tests compare.

use std::collections::{BTreeMap, BTreeSet};

use mesh_events::{Category, Event, EventType, FactKind, RunKey, cloudevents};
use serde_json::Value;

/// An entry of the ledger.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Sequence in the ledger or on the bus.
    pub seq: u64,
    /// Its type.
    pub kind: EventType,
    /// The event.
    pub event: Event,
}

/// A run: job, task, submit time, attempt. Ordered that way.
pub type Run = (u32, Option<u32>, i64, u32);

impl Fact {
    /// Parses an entry of `/v1/events`. `None` if it is not an event.
    pub fn read(entry: &Value) -> Option<Self> {
        let event = cloudevents::from_json(entry.get("event")?).ok()?;
        Self::of(entry.get("seq")?.as_u64()?, event)
    }

    /// An event with its sequence, from any source. `None` if its type is not in the contract.
    pub fn of(seq: u64, event: Event) -> Option<Self> {
        Some(Self {
            seq,
            kind: event.kind().ok()?,
            event,
        })
    }

    /// The run of the event, if it has one.
    pub fn run(&self) -> Option<Run> {
        run_of(&self.event)
    }

    /// True if its id is derived from Slurm's record, so that every reader of the record computes the same id.
    pub fn is_recorded(&self) -> bool {
        self.kind.identity() == FactKind::Recorded
    }

    /// True for the recorded events of a job's life.
    pub fn is_lifecycle(&self) -> bool {
        self.is_recorded()
            && self.kind.category() == Category::Job
            && self.kind != EventType::JobUpdated
    }
}

/// The run of an event.
pub fn run_of(event: &Event) -> Option<Run> {
    let run = RunKey::parse(&event.cluster, event.entity_key()).ok()?;
    Some((run.job_id, run.task_id, run.submit_time, run.attempt))
}

/// The event words of each run, in their order within the run. The ledger's own order is that of appending: after a kill -9, delivered
/// but unacknowledged events arrive again, after their successors.
pub fn lives(facts: &[Fact]) -> BTreeMap<Run, Vec<&'static str>> {
    let mut lives = BTreeMap::<_, Vec<_>>::new();
    for fact in facts.iter().filter(|fact| fact.is_lifecycle()) {
        if let Some(run) = fact.run() {
            let life = lives.entry(run).or_default();
            life.push((fact.event.run_seq, fact.kind.event()));
        }
    }
    let in_order = |mut life: Vec<(u64, &'static str)>| {
        life.sort_by_key(|(run_seq, _)| *run_seq);
        life.into_iter().map(|(_, event_name)| event_name).collect()
    };
    lives
        .into_iter()
        .map(|(run, life)| (run, in_order(life)))
        .collect()
}

/// Ids of the recorded facts.
pub fn recorded_ids(facts: &[Fact]) -> BTreeSet<&str> {
    let recorded = facts.iter().filter(|fact| fact.is_recorded());
    recorded.map(|fact| fact.event.id.as_str()).collect()
}
