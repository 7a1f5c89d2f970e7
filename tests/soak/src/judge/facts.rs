//! Published facts of runs, by run and slot.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::JobEvent;
use mesh_events::{Event, EventType};

use super::Run;
use crate::published::Published;
use crate::verdict::Verdict;
use integration::run_of;

/// Recorded facts by run and slot. Compared ones are removed, so the remaining ones are surplus.
pub(super) struct Facts<'a> {
    pub(super) by_slot: BTreeMap<(Run, &'static str), Vec<&'a Event>>,
}

impl<'a> Facts<'a> {
    pub(super) fn take(&mut self, run: Run, slot: &'static str) -> Vec<&'a Event> {
        self.by_slot.remove(&(run, slot)).unwrap_or_default()
    }

    /// True if any is left.
    pub(super) fn has(&self, run: Run, slot: &'static str) -> bool {
        self.by_slot.contains_key(&(run, slot))
    }

    /// Takes the fact with about this time.
    pub(super) fn take_at(
        &mut self,
        run: Run,
        slot: &'static str,
        from: i64,
        until: i64,
    ) -> Option<&'a Event> {
        let events = self.by_slot.get_mut(&(run, slot))?;
        let at = events
            .iter()
            .position(|event| (from..=until).contains(&occurred(event)))?;
        let event = events.remove(at);
        if events.is_empty() {
            self.by_slot.remove(&(run, slot));
        }
        Some(event)
    }
}

/// All recorded facts and those derived from them, by run and slot.
pub(super) fn by_run<'a>(published: &'a Published, verdict: &mut Verdict) -> Facts<'a> {
    let runs = published
        .bus
        .values()
        .filter_map(|event| Some((run_of(event)?, slot(event)?, event)));
    let runs: Vec<_> = runs.collect();
    // Of attempts with the same submit time, accounting has only the last one (seen on 22.05).
    let mut last: BTreeMap<Run, u32> = BTreeMap::new();
    for ((job, task, submit, attempt), ..) in &runs {
        let known = last.entry((*job, *task, *submit)).or_default();
        *known = (*known).max(*attempt);
    }
    let mut facts = Facts {
        by_slot: BTreeMap::new(),
    };
    for ((job, task, submit, attempt), slot, event) in runs {
        let run = (job, task, submit);
        if last.get(&run).is_some_and(|last| attempt < *last) && slot != "submitted" {
            let text = format!(
                "{} of {run:?}, attempt {attempt}: a later one has its row",
                event.r#type
            );
            verdict.unjudged.push(text);
        } else if attempt == 0 || slot != "submitted" {
            facts.by_slot.entry((run, slot)).or_default().push(event);
        }
    }
    facts
}

/// Slot of the event in the run's life. `None` if Slurm has no time for it.
fn slot(event: &Event) -> Option<&'static str> {
    let kind = event.kind().ok()?;
    Some(match kind {
        EventType::JobSubmitted => "submitted",
        EventType::JobStarted => "started",
        EventType::JobSuspended => "suspended",
        EventType::JobResumed => "resumed",
        EventType::JobResized => "resized",
        EventType::JobBaseline => "baseline",
        EventType::JobCancelled if !payload(event)?.array_tasks.is_empty() => "tasks",
        EventType::JobUpdated => "updated",
        // A second one follows a resize, and is derived from it.
        EventType::CostEstimated if event.id_source.is_some() => return None,
        EventType::CostEstimated => "estimated",
        EventType::CostFinalized => "finalized",
        kind if kind.is_end() => "end",
        _ => return None,
    })
}

/// The payload of `job.*`.
pub(super) fn payload(event: &Event) -> Option<&JobEvent> {
    match event.payload.as_ref()? {
        Payload::Job(job) => Some(job),
        _ => None,
    }
}

/// Unix seconds of a fact.
pub(super) fn occurred(event: &Event) -> i64 {
    event
        .occurred_at
        .as_ref()
        .map(|time| time.seconds)
        .unwrap_or_default()
}
