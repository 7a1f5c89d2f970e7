//! Changes of a running job: its start and resizes.

use mesh_events::{EventType, Slot};

use super::fact::Emitter;
use super::observation::Observation;

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
