//! Suspends and resumes: which of them a record shows, and which are inferred from it.

use mesh_events::{EventType, Slot};
use slurm_types::JobBaseState;

use super::fact::Emitter;
use super::observation::Observation;
use super::run_state::RunState;

/// How certain a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Certainty {
    /// The record shows it.
    Observed,
    /// The record allows another explanation.
    Inferred,
}

/// Changes in the second of a run's `SuspendTime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SuspendChange {
    suspended: Option<Certainty>,
    resumed: Option<Certainty>,
}

impl SuspendChange {
    const fn suspended(certainty: Certainty) -> Self {
        Self {
            suspended: Some(certainty),
            resumed: None,
        }
    }

    const fn resumed(certainty: Certainty) -> Self {
        Self {
            suspended: None,
            resumed: Some(certainty),
        }
    }
}

/// Publishes suspends and resumes.
///
/// Slurm keeps one `SuspendTime`: that of the suspend while suspended, that of the resume afterwards. It also keeps the seconds that the
/// run was running before the last suspend (job_mgr.c and `suspend_job`, 22.05). A suspension that no read has shown is computed from them,
/// and marked as inferred.
pub(super) fn suspensions(emitter: &mut Emitter<'_>, observation: &Observation) {
    let (Some(at), Some(started)) = (observation.suspend_time, emitter.next.started) else {
        return;
    };
    let known = emitter.next.rare.suspended.max(emitter.next.rare.resumed);
    if known.is_some_and(|known| known > at) || emitter.next.rare.resumed == Some(at) {
        return;
    }
    let Some(change) = change_at(emitter.next, started, observation, at) else {
        return;
    };
    emitter.next.rare.ran = observation.pre_suspend.or(emitter.next.rare.ran);
    if let Some(certainty) = change.suspended
        && emitter.next.rare.suspended != Some(at)
    {
        suspended(emitter, at, certainty);
    }
    let Some(certainty) = change.resumed else {
        return;
    };
    let never_suspended =
        emitter.next.rare.suspended.is_none() && emitter.next.rare.resumed.is_none();
    if never_suspended {
        let Some(ran) = observation.pre_suspend else {
            return;
        };
        suspended(emitter, (started + ran).min(at), Certainty::Inferred);
    }
    emitter.next.rare.resumed = Some(at);
    let fact = emitter.recorded(EventType::JobResumed, Slot::Resumed(at), Some(at));
    fact.inferred |= certainty == Certainty::Inferred;
}

/// Publishes suspensions of a run that has ended, from the record of that end.
pub(super) fn late_suspensions(emitter: &mut Emitter<'_>, observation: &Observation) {
    let is_own = observation.start == emitter.next.started
        && observation.end_kind().is_some()
        && observation.end == emitter.next.end.as_ref().map(|end| end.at);
    if is_own && observation.suspend_time < observation.end {
        suspensions(emitter, observation);
    }
}

fn suspended(emitter: &mut Emitter<'_>, at: i64, certainty: Certainty) {
    emitter.next.rare.suspended = Some(at);
    let fact = emitter.recorded(EventType::JobSuspended, Slot::Suspended(at), Some(at));
    fact.inferred |= certainty == Certainty::Inferred;
}

/// Determines what happened at `SuspendTime`; `None` if a later observation will show more. A run that ends while suspended ends at its
/// suspend (22.05). Thus the record of a run that ended in that second does not show whether it was suspended or resumed then.
fn change_at(
    previous: &RunState,
    started: i64,
    observation: &Observation,
    at: i64,
) -> Option<SuspendChange> {
    if observation.base == Some(JobBaseState::Suspended) {
        return Some(SuspendChange::suspended(Certainty::Observed));
    }
    // While its epilogs run, 22.05 hides how it ended.
    let is_over = observation.end_kind().is_some() || observation.completing;
    if !is_over || observation.end != Some(at) {
        return Some(SuspendChange::resumed(Certainty::Observed));
    }
    let open = previous
        .rare
        .suspended
        .filter(|_| previous.rare.suspended > previous.rare.resumed);
    let has_not_run = previous.rare.ran.is_some() && observation.pre_suspend == previous.rare.ran;
    if has_not_run && open.is_some_and(|suspended| suspended < at) {
        return Some(SuspendChange::resumed(Certainty::Observed));
    }
    if observation.in_flux() && open != Some(at) {
        return None;
    }
    let ended_by_itself = ended_by_itself(observation.base);
    let stopped = stopped_before(previous, started, observation.pre_suspend, at);
    Some(match (stopped == Some(0), ended_by_itself) {
        (true, _) => SuspendChange {
            suspended: Some(Certainty::Observed),
            resumed: ended_by_itself.then_some(Certainty::Inferred),
        },
        (false, true) => SuspendChange::resumed(Certainty::Inferred),
        (false, false) if open.is_none() && stopped.is_some() => {
            SuspendChange::resumed(Certainty::Inferred)
        }
        (false, false) => SuspendChange::suspended(Certainty::Inferred),
    })
}

/// Returns how many seconds the run was stopped between its last published change, or its start, and `at`; `None` if the record does not
/// show it. `ran` are the seconds it was running before its last suspend.
fn stopped_before(previous: &RunState, started: i64, ran: Option<i64>, at: i64) -> Option<i64> {
    let ran = ran?;
    let known = previous.rare.suspended.max(previous.rare.resumed);
    let (since, before) = match known {
        Some(known) => (known, previous.rare.ran?),
        None => (started, 0),
    };
    Some(at - since - (ran - before))
}

/// Whether its own program ended it, or exceeded its time. A suspended program does nothing, and its time does not run.
const fn ended_by_itself(base: Option<JobBaseState>) -> bool {
    matches!(
        base,
        Some(
            JobBaseState::Completed
                | JobBaseState::Failed
                | JobBaseState::Timeout
                | JobBaseState::OutOfMemory
        )
    )
}
