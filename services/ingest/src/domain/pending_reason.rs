//! Facts of a waiting run that Slurm does not time: held, released, and the class of the pending reason.
//!
//! The last scheduler that evaluated the job has written the reason, so a change counts once a second poll confirms it. A hold in the very
//! first observation counts at once, and a start proves a release. A class that flaps is published [`MAX_BURST`] times, then once every
//! [`MIN_INTERVAL_SECS`] seconds with its current value. Otherwise fifty thousand flapping jobs would drown all other events.

use mesh_events::EventType;
use slurm_types::ReasonClass;

use super::decision::ObservationContext;
use super::fact::{Emitter, FactId};
use super::observation::Observation;
use super::run_state::{Candidate, MAX_BURST, MIN_INTERVAL_SECS, RunState};

const HELD: usize = 0;
const RELEASED: usize = 1;
const PENDING: usize = 2;

/// Publishes what two polls agree on, and stores what the next poll must confirm.
pub(super) fn emit(
    emitter: &mut Emitter<'_>,
    observation: &Observation,
    context: &ObservationContext,
    is_first_observation: bool,
) {
    if !observation.waiting() {
        if emitter.next.held && observation.started() {
            sampled(emitter, EventType::JobReleased, RELEASED);
            emitter.next.held = false;
        }
        emitter.next.candidate = None;
        return;
    }
    if !emitter.next.waits {
        return;
    }
    if is_first_observation && observation.held {
        hold(emitter, true);
        return;
    }
    let Some(poll) = context.poll else { return };
    let Some(change) = change(emitter.next, observation, poll) else {
        emitter.next.candidate = None;
        return;
    };
    let confirmed = emitter.next.candidate.as_ref().is_some_and(|seen| {
        seen.poll < poll && seen.held == change.held && seen.class == change.class
    });
    if !confirmed {
        let same = emitter
            .next
            .candidate
            .as_ref()
            .is_some_and(|seen| seen.held == change.held && seen.class == change.class);
        if !same {
            emitter.next.candidate = Some(Box::new(change));
        }
        return;
    }
    // Remains a candidate, and is published with the value it has when the interval is over.
    if change.held.is_none() && emitter.next.is_quiet(context.now) {
        return;
    }
    emitter.next.candidate = None;
    match change.held {
        Some(held) => {
            hold(emitter, held);
            // Released, with a reason that two polls have not confirmed yet.
            if !held {
                emitter.next.candidate = waits_for(observation).map(|class| {
                    Box::new(Candidate {
                        poll,
                        held: None,
                        class: Some(class),
                    })
                });
            }
        }
        None => {
            emitter.next.class = change.class;
            spend(emitter.next, context.now);
            sampled(emitter, EventType::JobPending, PENDING);
        }
    }
}

/// Counts a published change of class (generic cell rate algorithm).
fn spend(next: &mut RunState, now: i64) {
    // A clock that was ahead must not suppress events for longer.
    let spent = next
        .quiet_from
        .clamp(now, now + (MAX_BURST - 1) * MIN_INTERVAL_SECS);
    next.quiet_from = spent + MIN_INTERVAL_SECS;
}

/// Stores the pending state without publishing it.
pub(super) fn accept(next: &mut RunState, observation: &Observation) {
    if observation.waiting() {
        next.held = observation.held;
        next.class = if observation.held {
            Some(ReasonClass::Held)
        } else {
            waits_for(observation)
        };
    }
}

/// Returns what differs from the last published state.
fn change(previous: &RunState, observation: &Observation, poll: u64) -> Option<Candidate> {
    if observation.held != previous.held {
        return Some(Candidate {
            poll,
            held: Some(observation.held),
            class: None,
        });
    }
    if observation.held {
        return None;
    }
    let class = waits_for(observation)?;
    (previous.class != Some(class)).then_some(Candidate {
        poll,
        held: None,
        class: Some(class),
    })
}

/// Returns the class of the pending reason; `None` as long as no scheduler has evaluated the job.
fn waits_for(observation: &Observation) -> Option<ReasonClass> {
    match observation.class {
        ReasonClass::NotEvaluated => None,
        // The priority is no longer 0, but the scheduler has not updated the reason.
        ReasonClass::Held if !observation.held => None,
        class => Some(class),
    }
}

fn hold(emitter: &mut Emitter<'_>, held: bool) {
    emitter.next.held = held;
    emitter.next.class = held.then_some(ReasonClass::Held);
    emitter.next.candidate = None;
    if held {
        sampled(emitter, EventType::JobHeld, HELD);
    } else {
        sampled(emitter, EventType::JobReleased, RELEASED);
    }
}

fn sampled(emitter: &mut Emitter<'_>, kind: EventType, counter: usize) {
    emitter.next.counts[counter] += 1;
    let n = u64::from(emitter.next.counts[counter]);
    emitter.emit(kind, FactId::Sampled(n), None);
}
