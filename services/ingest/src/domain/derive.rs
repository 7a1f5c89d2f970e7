//! Derives the new facts of one run from its stored state and an observation.
//!
//! Facts of one observation have a fixed order: submitted, released, started, suspended, resumed, resized, end. A late or repeated
//! observation adds nothing, because its facts are already published.

use mesh_events::{EventType, RunKey, Slot};
use slurm_types::JobBaseState;

use super::array::store_departed_tasks;
use super::decision::ObservationContext;
use super::end::{canceller, correct, correct_start, end, usage};
use super::fact::{Continuation, Emitter, Fact};
use super::observation::{EntityKind, Observation, Record};
use super::pending_reason;
use super::run_state::{End, RunState};
use super::running::{resizes, start};
use super::suspensions::{late_suspensions, suspensions};

/// Origin of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Origin {
    /// Earlier run that it continues.
    pub continues: Option<Continuation>,
    /// Whether this is the first run of an array task, which the array's `submitted` covers.
    pub covered_by_array: bool,
}

/// Returns the next state of a run and its new facts.
pub(super) fn derive(
    run: &RunKey,
    previous: Option<&RunState>,
    observation: &Observation,
    origin: Origin,
    context: &ObservationContext,
    inferred: bool,
) -> (RunState, Vec<Fact>) {
    let is_first_observation = previous.is_none();
    let mut next = previous
        .cloned()
        .unwrap_or_else(|| RunState::new(observation));
    let mut facts = Vec::new();
    // Accounting keeps ended runs for years, so its rows do not show how long slurmctld will keep a run.
    let seen = match observation.record {
        Record::Accounting => observation.end.filter(|_| observation.end_kind().is_some()),
        Record::Controller | Record::JobComp => None,
    };
    count_restarts(&mut next, observation);
    next.last_seen = next.last_seen.max(seen.unwrap_or(context.now));
    if next.over() {
        correct(run, &mut next, observation, inferred, &mut facts);
        if !inferred {
            correct_start(run, &mut next, observation, &mut facts);
        }
        // Accounting has the time of every resize, the controller only of the last one. Only the controller has the time of a resume. Its
        // record may be read after accounting has shown the end.
        let mut emitter = Emitter {
            run,
            next: &mut next,
            facts: &mut facts,
            inferred,
        };
        late_suspensions(&mut emitter, observation);
        resizes(&mut emitter, observation);
        usage(run, &mut next, observation, &mut facts);
        canceller(run, &mut next, observation, &mut facts);
        if !next.accounting_pending() && !next.ask_submitted {
            next.rare.waited_for_accounting = 0;
        }
        return (next, facts);
    }
    if is_first_observation {
        next.hook_only = inferred && observation.record == Record::JobComp;
        next.waits = !origin.covered_by_array;
        next.ask_submitted = next.is_array && !context.first_start && !inferred;
        if context.first_start {
            baseline(run, &mut next, observation, &mut facts);
            record_observation(&mut next, observation);
            return (next, facts);
        }
    }
    let mut emitter = Emitter {
        run,
        next: &mut next,
        facts: &mut facts,
        inferred,
    };
    if !emitter.next.submitted {
        emitter.next.submitted = true;
        if !origin.covered_by_array {
            emitter
                .recorded(
                    EventType::JobSubmitted,
                    Slot::Submitted,
                    Some(run.submit_time),
                )
                .continues = origin.continues;
        }
    }
    pending_reason::emit(&mut emitter, observation, context, is_first_observation);
    start(&mut emitter, observation);
    suspensions(&mut emitter, observation);
    resizes(&mut emitter, observation);
    end(&mut emitter, observation, context);
    record_observation(&mut next, observation);
    usage(run, &mut next, observation, &mut facts);
    (next, facts)
}

/// Stores the number of requeues before this run; once known, it does not change. Only the controller counts. While a requeued run is
/// cleaned up, its record already has the next run's count (22.05); the record of a finished run has its own.
fn count_restarts(next: &mut RunState, observation: &Observation) {
    let is_own = observation
        .base
        .is_some_and(|base| !observation.completing || base.finished());
    if is_own && !next.over() {
        next.restart_count = next.restart_count.or(observation.restarts);
    }
}

/// Publishes a run that is alive at the first start as a baseline, once, without any other fact.
fn baseline(run: &RunKey, next: &mut RunState, observation: &Observation, facts: &mut Vec<Fact>) {
    next.submitted = true;
    if observation.started() {
        next.started = observation.start;
    }
    if let Some(kind) = observation.end_kind() {
        next.end = Some(End {
            event: Some(kind),
            at: observation.end.unwrap_or_default(),
            inferred: false,
        });
        return;
    }
    next.rare.suspended = (observation.base == Some(JobBaseState::Suspended))
        .then_some(observation.suspend_time)
        .flatten();
    next.rare.resumed = if next.rare.suspended.is_none() {
        observation.suspend_time
    } else {
        None
    };
    next.rare.ran = observation.pre_suspend;
    pending_reason::accept(next, observation);
    let mut emitter = Emitter {
        run,
        next,
        facts,
        inferred: false,
    };
    emitter.recorded(EventType::JobBaseline, Slot::Baseline, None);
}

/// Stores what the next observation is compared with.
fn record_observation(next: &mut RunState, observation: &Observation) {
    next.state = observation.state_name();
    // While an old run is cleaned up, its record already counts the next restart (22.05).
    if observation.restarts.is_some() && !observation.completing && observation.base.is_some() {
        next.restarts = observation.restarts;
    }
    next.start_is_final |= observation.record == Record::Controller
        && observation.base == Some(JobBaseState::Running)
        && !observation.completing
        && !observation.configuring
        && next.started.is_some()
        && next.started == observation.start;
    if observation.entity == EntityKind::Array && observation.record == Record::Controller {
        store_departed_tasks(next, observation);
    }
}
