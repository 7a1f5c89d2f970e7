//! Changes of a running job: its start and resizes.

use mesh_events::{EventType, RunKey, Slot};

use super::derive::{Emitter, Fact, correct_end};
use super::observation::{Observation, Record};
use super::run_state::RunState;

/// Publishes the start. One whose time no record has is inferred: a run with nodes has started, and where accounting has lost the start, it
/// was short.
pub(super) fn start(emitter: &mut Emitter<'_>, observation: &Observation) {
    let lost = observation.end_of_lost_start();
    let at = observation.start.filter(|_| observation.started()).or(lost);
    if emitter.next.started.is_none() && at.is_some() {
        emitter.next.started = at;
        emitter.next.rare.start_is_inferred = lost.is_some();
        let fact = emitter.recorded(EventType::JobStarted, Slot::Started, at);
        fact.allocation = observation.parts.first().cloned();
        // Accounting did not say in time what the run held before the resize.
        fact.inferred |= observation.hides_first_allocation() || lost.is_some();
    }
}

/// Publishes the start of a run that is over by then and that no record has shown to start: Slurm requeues only what has started.
pub(super) fn start_before(emitter: &mut Emitter<'_>, at: i64) {
    if emitter.next.started.is_none() && !emitter.next.is_array {
        emitter.next.started = Some(at);
        emitter.next.rare.start_is_inferred = true;
        let fact = emitter.recorded(EventType::JobStarted, Slot::Started, Some(at));
        fact.inferred = true;
    }
}

/// Corrects an inferred start once accounting's record shows when the run started, or that it never had nodes. The record of the end is
/// published again, without another correction if it was just corrected.
pub(super) fn correct_start(
    run: &RunKey,
    next: &mut RunState,
    observation: &Observation,
    facts: &mut Vec<Fact>,
) {
    let never_started = next.never_started_as(observation);
    let is_known = observation.record == Record::Accounting
        && observation.end_kind().is_some()
        && observation.started();
    if !next.rare.start_is_inferred || !(is_known || never_started) {
        return;
    }
    next.rare.start_is_inferred = false;
    let at = observation.start.filter(|_| is_known);
    if next.started == at {
        return;
    }
    next.started = at;
    if at.is_none() {
        (next.usage_pending, next.exit_code) = (false, None);
    }
    let is_corrected = |fact: &Fact| fact.kind == EventType::JobCorrected;
    if !facts.iter().any(is_corrected) && next.end_kind().is_some() {
        correct_end(run, next, observation, facts);
    }
}

/// Publishes resizes, each with the allocation after it. A record whose nodes may be partial proves none: the record after the epilogs,
/// or accounting, does.
pub(super) fn resizes(emitter: &mut Emitter<'_>, observation: &Observation) {
    if emitter.next.started.is_none() || observation.nodes_are_partial() {
        return;
    }
    for at in &observation.resizes {
        if !emitter.next.rare.resized.contains(at) {
            emitter.next.rare.resized.push(*at);
            let part = observation.parts.iter().find(|part| part.from == *at);
            let fact = emitter.recorded(EventType::JobResized, Slot::Resized(*at), Some(*at));
            fact.allocation = part.cloned();
        }
    }
}
