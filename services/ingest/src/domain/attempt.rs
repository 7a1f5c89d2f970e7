//! Attempts: runs of a job that share a submit time.

use mesh_events::{EventType, RunKey, Slot};
use slurm_types::JobBaseState;

use super::decision::{Decision, ObservationContext};
use super::fact::{Emitter, FactId};
use super::observation::{Observation, Record};
use super::run_state::{End, RunState};
use super::run_store::RunStore;

/// The attempt to which an observation belongs.
enum Attempt<'a> {
    /// The first run: the run store has no other.
    First,
    /// A run in the run store.
    Known(RunKey),
    /// The run after the newest one in the run store.
    After(RunKey, &'a RunState),
}

impl Attempt<'_> {
    /// Returns the key of the run.
    fn run(&self, observation: &Observation) -> RunKey {
        match self {
            Self::First => observation.run.clone(),
            Self::Known(run) => run.clone(),
            Self::After(run, _) => next_attempt(run),
        }
    }
}

/// Returns the run to which an observation belongs. The run store need not contain it.
pub fn run_of(run_store: &RunStore, observation: &Observation) -> RunKey {
    attempt_of(run_store, observation).run(observation)
}

/// Finds the attempt of an observation.
///
/// Slurm moves the submit time of a requeued job by at least a second, but was seen (22.05) to keep it for a job that started in the second
/// of its submission, and for one whose only node was set down and that started elsewhere in the same second. Then the restart count has
/// grown, and the job waits or has another start. A slurmctld that was started with an older state runs an ended job again, with the same
/// submit time and count (22.05 to 26.05).
fn attempt_of<'a>(run_store: &'a RunStore, observation: &Observation) -> Attempt<'a> {
    let mut attempts: Vec<(RunKey, &RunState)> = run_store
        .runs_of(&observation.run)
        .filter(|(run, _)| run.submit_time == observation.run.submit_time)
        .collect();
    let Some((run, tracked)) = attempts.pop() else {
        return Attempt::First;
    };
    if is_repeated_run(tracked, observation) || started_again(tracked, observation) {
        return Attempt::After(run, tracked);
    }
    let (Some(started), Some(before), Some(restarts)) =
        (tracked.started, tracked.restarts, observation.restarts)
    else {
        // Other sources do not count restarts; the start time distinguishes attempts.
        let same_start = attempts
            .iter()
            .rposition(|(_, earlier)| has_start(earlier, observation));
        let earlier = match same_start {
            Some(index) => Some(attempts.swap_remove(index)),
            None if ended_before(tracked, observation) => attempts.pop(),
            None => None,
        };
        return match earlier {
            Some((earlier, _)) => Attempt::Known(earlier),
            None if began_after(tracked, observation) => Attempt::After(run, tracked),
            None => Attempt::Known(run),
        };
    };
    // An outdated answer, or one about an earlier attempt.
    let is_earlier = |(_, earlier): &(RunKey, &RunState)| {
        observation.started()
            && earlier.started == observation.start
            && observation.start < Some(started)
    };
    if let Some((earlier, _)) = attempts.into_iter().find(is_earlier) {
        return Attempt::Known(earlier);
    }
    let moved_on = observation.waiting() || observation.start.is_some_and(|start| start > started);
    if restarts <= before || observation.completing || observation.base.is_none() || !moved_on {
        return Attempt::Known(run);
    }
    Attempt::After(run, tracked)
}

/// Returns the run to which an observation belongs, after closing the attempt before it.
pub(super) fn resolve_attempt(
    run_store: &RunStore,
    observation: &Observation,
    decision: &mut Decision,
    context: &ObservationContext,
) -> RunKey {
    let attempt = attempt_of(run_store, observation);
    if let Attempt::After(_, tracked) = &attempt
        && (is_repeated_run(tracked, observation)
            || (observation.restarts.is_none() && has_ended_for_good(tracked)))
    {
        decision.repeated.push(attempt.run(observation));
    }
    if let Attempt::After(run, tracked) = &attempt
        && !tracked.over()
    {
        // Accounting loses such an attempt, so waiting for it is useless.
        let mut closed = RunState::clone(tracked);
        closed.end = Some(End {
            event: Some(EventType::JobRequeued),
            at: context.now,
            inferred: true,
        });
        Emitter {
            run,
            next: &mut closed,
            facts: &mut decision.facts,
            inferred: true,
        }
        .emit(EventType::JobRequeued, FactId::Recorded(Slot::End), None);
        decision.changes.push((run.clone(), closed));
    }
    attempt.run(observation)
}

/// Whether slurmctld runs a run again that has ended according to a record. Its start is then later than that end, which no outdated answer
/// has, and its restart count has not grown. The start of a waiting job, or of one whose nodes are cleaned up, is only planned.
fn is_repeated_run(tracked: &RunState, observation: &Observation) -> bool {
    let end = tracked
        .end
        .as_ref()
        .filter(|end| !end.inferred && end.event.is_some());
    let is_settled = !observation.completing
        && observation
            .base
            .is_some_and(|base| base != JobBaseState::Pending);
    let is_no_requeue = match (observation.restarts, tracked.restarts) {
        (Some(now), Some(before)) => now <= before,
        (now, None) => now == Some(0),
        (None, _) => false,
    };
    // For a run that ended while it waited, the start equals the end.
    let rounding = i64::from(!observation.started());
    observation.record == Record::Controller
        && is_settled
        && is_no_requeue
        && end.is_some_and(|end| {
            observation
                .start
                .is_some_and(|start| start > end.at + rounding)
        })
}

/// Whether a run ended in a way after which Slurm runs a job again only by a requeue that moves the submit time. If another one began under
/// the same, slurmctld was started with an older state. Of that, accounting may have the other run before a poll shows it.
fn has_ended_for_good(tracked: &RunState) -> bool {
    let end = tracked.end.as_ref().filter(|end| !end.inferred);
    matches!(
        end.and_then(|end| end.event),
        Some(
            EventType::JobCompleted
                | EventType::JobFailed
                | EventType::JobCancelled
                | EventType::JobTimeout
                | EventType::JobOutOfMemory
                | EventType::JobDeadline
        )
    )
}

/// Whether the observed run began after the stored one ended. The start of a single run may move while its nodes boot, but never past its
/// end, and accounting may lack it (22.05). While nodes are cleaned up after a requeue, the record has the old run's nodes with the planned start of the next run.
fn began_after(tracked: &RunState, observation: &Observation) -> bool {
    let over = tracked.end.as_ref().filter(|end| !end.inferred);
    observation.started()
        && !observation.in_flux()
        && over.is_some_and(|end| observation.start.is_some_and(|start| start > end.at))
}

/// Whether the observed run ended before the stored one started: it is an earlier attempt. slurmdbd may put its end in the place of its
/// start (22.05, a job of a failed node).
pub(super) fn ended_before(tracked: &RunState, observation: &Observation) -> bool {
    observation.end_kind().is_some()
        && !tracked.rare.start_is_inferred
        && observation.end.is_some()
        && observation.end < tracked.started
}

/// Whether a source names the start of a run. jobcomp has the last resize of a resized run as its start.
fn has_start(tracked: &RunState, observation: &Observation) -> bool {
    observation
        .start
        .is_some_and(|at| tracked.started == Some(at) || tracked.rare.resized.contains(&at))
}

/// Whether a live run has another start than the one at which its processes were launched. Accounting has then replaced the run before it
/// (one row for each submit time), and it was perhaps never shown as waiting in between (22.05).
fn started_again(tracked: &RunState, observation: &Observation) -> bool {
    tracked.start_is_final
        && !tracked.over()
        && observation.started()
        && !observation.in_flux()
        && observation.start > tracked.started
}

fn next_attempt(run: &RunKey) -> RunKey {
    RunKey {
        attempt: run.attempt + 1,
        ..run.clone()
    }
}
