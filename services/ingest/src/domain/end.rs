//! The end of a run, and what a later record corrects or adds: another end or start, the usage, and who cancelled the run.

use mesh_events::{EventId, EventType, RunKey, Slot};

use super::array::{tasks_at_end, tasks_reappeared};
use super::decision::ObservationContext;
use super::fact::{Emitter, Fact, FactId};
use super::observation::{EntityKind, Observation, Record};
use super::run_state::{End, RunState};
use super::running::start;

/// Publishes the end, if the observation proves it.
pub(super) fn end(
    emitter: &mut Emitter<'_>,
    observation: &Observation,
    context: &ObservationContext,
) {
    let Some(kind) = observation.end_kind() else {
        return;
    };
    let inferred = emitter.inferred;
    emitter.next.end = Some(End {
        event: Some(kind),
        at: observation.end.unwrap_or(context.now),
        inferred: inferred || observation.end_is_inferred,
    });
    emitter.next.usage_pending = emitter.next.started.is_some();
    let code = observation
        .job
        .exit_code
        .map(|code| (code.code, code.signal));
    emitter.next.exit_code = code.filter(|_| emitter.next.usage_pending && !inferred);
    emitter.next.ended_by_hook = observation.ended_by_hook && !inferred;
    emitter.next.canceller_pending = kind == EventType::JobCancelled
        && observation.cancelled_by.is_none()
        && observation.record != Record::Accounting;
    let tasks = cancelled_tasks(emitter.next, observation);
    if let Some(previous) = tasks.as_deref().and_then(|tasks| tasks.parse().ok()) {
        tasks_reappeared(emitter.next, &previous);
    }
    let fact = emitter.recorded(kind, Slot::End, observation.end);
    fact.array_tasks = tasks.unwrap_or_default();
    fact.inferred |= observation.end_is_inferred;
}

/// Returns the tasks that an array still had at its end. The controller's record may lose them with the end.
fn cancelled_tasks(tracked: &mut RunState, observation: &Observation) -> Option<String> {
    if observation.entity != EntityKind::Array {
        return None;
    }
    let listed = observation.tasks.as_ref();
    match observation.record {
        Record::Accounting => tasks_at_end(tracked, listed),
        _ => listed
            .map(slurm_types::TaskSet::to_string)
            .or_else(|| tracked.rare.remaining.clone()),
    }
}

/// Corrects an end that was inferred or reported by a hook, if a record contradicts it. A doorbell corrects only what was inferred, and only
/// if the records confirm it. After a gap, any end is published. Nothing else about an ended run is news.
pub(super) fn correct(
    run: &RunKey,
    next: &mut RunState,
    observation: &Observation,
    inferred: bool,
    facts: &mut Vec<Fact>,
) {
    let Some(End {
        event,
        at,
        inferred: was_inferred,
    }) = next.end.clone()
    else {
        return;
    };
    let Some(kind) = observation.end_kind() else {
        return;
    };
    let is_inferred = inferred || observation.end_is_inferred;
    let is_confirmed = !inferred && (!observation.ended_by_hook || was_inferred && !is_inferred);
    if event.is_some() && !is_confirmed {
        return;
    }
    next.hook_only &= inferred;
    // 22.05 and 24.11 overwrite the row of a finished run that is requeued.
    let was_overwritten = kind == EventType::JobRequeued && observation.end > Some(at);
    let has_own_end = observation
        .own_end
        .is_some_and(|own| own.is_before_requeue(observation));
    if was_overwritten && (next.ended_by_hook || has_own_end) {
        return;
    }
    let is_by_hook = observation.ended_by_hook && !inferred;
    let was_ended_by_hook = std::mem::replace(&mut next.ended_by_hook, is_by_hook);
    if !was_inferred && !was_ended_by_hook {
        return;
    }
    // The row of a requeue does not show whether the run had ended before it.
    let is_still_inferred = was_inferred && kind == EventType::JobRequeued && event == Some(kind);
    let end = End {
        event: Some(kind),
        at: observation.end.unwrap_or_default(),
        inferred: is_inferred || is_still_inferred,
    };
    // Then the start was inferred, too.
    let has_same_time = was_inferred && next.started == Some(at);
    let is_other_start =
        has_same_time && observation.started() && observation.start != next.started;
    let shows_start = next.started.is_none()
        && (observation.started() || observation.end_of_lost_start().is_some());
    let first = next.end.replace(end.clone());
    if event.is_some() && first.as_ref() != Some(&end) && next.rare.first_end.is_none() {
        next.rare.first_end = first;
    }
    if event.is_none() {
        // The end was resolved as a gap, so it was never published.
        let mut emitter = Emitter {
            run,
            next,
            facts,
            inferred,
        };
        start(&mut emitter, observation);
        emitter.next.usage_pending = emitter.next.started.is_some();
        let tasks = cancelled_tasks(emitter.next, observation);
        let fact = emitter.recorded(kind, Slot::End, observation.end);
        fact.array_tasks = tasks.unwrap_or_default();
        fact.inferred |= is_inferred;
    } else if event != Some(kind) || shows_start || is_other_start {
        next.rare.corrections += 1;
        let (first, n) = (EventId::recorded(run, Slot::End), next.rare.corrections);
        let mut emitter = Emitter {
            run,
            next,
            facts,
            inferred: false,
        };
        if is_other_start {
            emitter.next.started = observation.start;
        } else if emitter.next.started.is_none() {
            // Until now no record had shown that it ran at all.
            start(&mut emitter, observation);
            emitter.next.usage_pending = emitter.next.started.is_some();
        }
        emitter.emit(
            EventType::JobCorrected,
            FactId::Correction(first, n),
            observation.end,
        );
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

/// Publishes who cancelled a run, once, when accounting reports it. Without an actor, accounting's row has none either.
pub(super) fn canceller(
    run: &RunKey,
    next: &mut RunState,
    observation: &Observation,
    facts: &mut Vec<Fact>,
) {
    let is_answer = observation.record == Record::Accounting && observation.end_kind().is_some();
    if !next.canceller_pending || !is_answer {
        return;
    }
    next.canceller_pending = false;
    // A correction of the end already has the actor.
    let is_published = facts
        .iter()
        .any(|fact| fact.kind == EventType::JobCorrected);
    let is_cancelled = observation.end_kind() == Some(EventType::JobCancelled);
    if is_published || !is_cancelled || observation.cancelled_by.is_none() {
        return;
    }
    correct_end(run, next, observation, facts);
}

/// Publishes the record of an end again, as a correction of its event.
fn correct_end(
    run: &RunKey,
    next: &mut RunState,
    observation: &Observation,
    facts: &mut Vec<Fact>,
) {
    next.rare.corrections += 1;
    let (first, n) = (EventId::recorded(run, Slot::End), next.rare.corrections);
    Emitter {
        run,
        next,
        facts,
        inferred: false,
    }
    .emit(
        EventType::JobCorrected,
        FactId::Correction(first, n),
        observation.end,
    );
}

/// Publishes the usage of an ended run, once, when accounting has it.
pub(super) fn usage(
    run: &RunKey,
    next: &mut RunState,
    observation: &Observation,
    facts: &mut Vec<Fact>,
) {
    if !next.usage_pending || observation.job.usage.is_none() {
        return;
    }
    (next.usage_pending, next.exit_code) = (false, None);
    let mut emitter = Emitter {
        run,
        next,
        facts,
        inferred: false,
    };
    emitter.recorded(EventType::JobUpdated, Slot::Updated, observation.end);
}
