//! Facts of a waiting run that Slurm does not time: held, released, the class of the reason.
//!
//! The reason is what the scheduler that looked last has written, so a change counts once a second sweep has seen it. A hold seen at
//! the very first sight counts at once, and a start is proof of a release. A class that goes to and fro is published [`MAX_BURST`] times, then
//! once in [`MIN_INTERVAL_SECS`] seconds, with what it is by then: on a cluster where fifty thousand jobs flap, nothing else would be heard.

use mesh_events::EventType;
use slurm_types::ReasonClass;

use super::derive::{Emitter, FactId};
use super::observation::Observation;
use super::observe::ObservationContext;
use super::run_state::{Candidate, RunState};

/// Changes of the class that a run publishes at once.
pub(super) const MAX_BURST: i64 = 3;
/// Seconds from one further change to the next; a run at rest for so long may publish one more at once.
pub(super) const MIN_INTERVAL_SECS: i64 = 600;

const HELD: usize = 0;
const RELEASED: usize = 1;
const PENDING: usize = 2;

/// Publishes what two sweeps agree on, and stores what the next one must confirm.
pub(super) fn emit(
    emitter: &mut Emitter<'_>,
    observation: &Observation,
    look: &ObservationContext,
    first_sight: bool,
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
    if first_sight && observation.held {
        hold(emitter, true);
        return;
    }
    let Some(poll) = look.poll else { return };
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
    // It stays a candidate: what it is when its time has come is published.
    if change.held.is_none() && emitter.next.is_quiet(look.now) {
        return;
    }
    emitter.next.candidate = None;
    match change.held {
        Some(held) => {
            hold(emitter, held);
            // Released into a reason that two sweeps have not agreed on yet.
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
            spend(emitter.next, look.now);
            sampled(emitter, EventType::JobPending, PENDING);
        }
    }
}

/// Counts a change of the class that is published (as the generic cell rate algorithm keeps it).
fn spend(next: &mut RunState, now: i64) {
    // A clock that was ahead must not keep a run quiet for longer.
    let spent = next
        .quiet_from
        .clamp(now, now + (MAX_BURST - 1) * MIN_INTERVAL_SECS);
    next.quiet_from = spent + MIN_INTERVAL_SECS;
}

/// Takes over how it waits without telling it.
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

/// What differs from what was published last.
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

/// The class it waits for; `None` as long as no scheduler has looked at it.
fn waits_for(observation: &Observation) -> Option<ReasonClass> {
    match observation.class {
        ReasonClass::NotEvaluated => None,
        // Priority is not 0 any more, the reason is what the scheduler wrote before.
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
