//! Facts of a waiting run that Slurm does not time: held, released, the class of the reason.
//!
//! The reason is what the scheduler that looked last has written, so a change counts once a second sweep has seen it. A hold seen at
//! the very first sight counts at once, and a start is proof of a release. A class that goes to and fro is told [`AT_ONCE`] times, then
//! once in [`APART`] seconds, with what it is by then: on a cluster where fifty thousand jobs flap, nothing else would be heard.

use mesh_events::EventType;
use slurm_types::ReasonClass;

use super::derive::{Emitter, FactId};
use super::observation::Observation;
use super::observe::ObservationContext;
use super::run_state::{Candidate, RunState};

/// Changes of the class that are told of a run as they come.
pub(super) const AT_ONCE: i64 = 3;
/// Seconds from one further change to the next; a run at rest for so long may tell one more at once.
pub(super) const APART: i64 = 600;

const HELD: usize = 0;
const RELEASED: usize = 1;
const PENDING: usize = 2;

/// Tells what two sweeps agree on, and remembers what the next one must confirm.
pub(super) fn tell(
    teller: &mut Emitter<'_>,
    observation: &Observation,
    look: &ObservationContext,
    first_sight: bool,
) {
    if !observation.waiting() {
        if teller.next.held && observation.started() {
            sampled(teller, EventType::JobReleased, RELEASED);
            teller.next.held = false;
        }
        teller.next.candidate = None;
        return;
    }
    if !teller.next.waits {
        return;
    }
    if first_sight && observation.held {
        hold(teller, true);
        return;
    }
    let Some(sweep) = look.sweep else { return };
    let Some(change) = change(teller.next, observation, sweep) else {
        teller.next.candidate = None;
        return;
    };
    let confirmed = teller.next.candidate.as_ref().is_some_and(|seen| {
        seen.sweep < sweep && seen.held == change.held && seen.class == change.class
    });
    if !confirmed {
        let same = teller
            .next
            .candidate
            .as_ref()
            .is_some_and(|seen| seen.held == change.held && seen.class == change.class);
        if !same {
            teller.next.candidate = Some(change);
        }
        return;
    }
    // It stays a candidate: what it is when its time has come is told.
    if change.held.is_none() && teller.next.is_quiet(look.now) {
        return;
    }
    teller.next.candidate = None;
    match change.held {
        Some(held) => {
            hold(teller, held);
            // Released into a reason that two sweeps have not agreed on yet.
            if !held {
                teller.next.candidate = waits_for(observation).map(|class| Candidate {
                    sweep,
                    held: None,
                    class: Some(class),
                });
            }
        }
        None => {
            teller.next.class = change.class;
            spend(teller.next, look.now);
            sampled(teller, EventType::JobPending, PENDING);
        }
    }
}

/// Counts a change of the class that is told (as the generic cell rate algorithm keeps it).
fn spend(next: &mut RunState, now: i64) {
    // A clock that was ahead must not keep a run quiet for longer.
    let spent = next.quiet_from.clamp(now, now + (AT_ONCE - 1) * APART);
    next.quiet_from = spent + APART;
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

/// What differs from what was told last.
fn change(told: &RunState, observation: &Observation, sweep: u64) -> Option<Candidate> {
    if observation.held != told.held {
        return Some(Candidate {
            sweep,
            held: Some(observation.held),
            class: None,
        });
    }
    if observation.held {
        return None;
    }
    let class = waits_for(observation)?;
    (told.class != Some(class)).then_some(Candidate {
        sweep,
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

fn hold(teller: &mut Emitter<'_>, held: bool) {
    teller.next.held = held;
    teller.next.class = held.then_some(ReasonClass::Held);
    teller.next.candidate = None;
    if held {
        sampled(teller, EventType::JobHeld, HELD);
    } else {
        sampled(teller, EventType::JobReleased, RELEASED);
    }
}

fn sampled(teller: &mut Emitter<'_>, kind: EventType, counter: usize) {
    teller.next.counts[counter] += 1;
    let n = teller.next.counts[counter];
    teller.tell(kind, FactId::Sampled(n), None);
}
