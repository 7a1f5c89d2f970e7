//! What happens to a run from its start on: suspensions and resizes.

use mesh_events::{EventType, Slot};
use slurm_types::JobBaseState;

use super::derive::Teller;
use super::sighting::Sighting;
use super::tracked::Tracked;

pub(super) fn start(teller: &mut Teller<'_>, sighting: &Sighting) {
    if teller.next.started.is_none() && sighting.started() {
        teller.next.started = sighting.start;
        teller.recorded(EventType::JobStarted, Slot::Started, sighting.start);
    }
}

/// How far the record goes as a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// It says so.
    Observed,
    /// It could also be otherwise.
    Inferred,
}

/// What happened in the second of a run's `SuspendTime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Change {
    suspended: Option<Proof>,
    resumed: Option<Proof>,
}

impl Change {
    const fn suspended(proof: Proof) -> Self {
        Self {
            suspended: Some(proof),
            resumed: None,
        }
    }

    const fn resumed(proof: Proof) -> Self {
        Self {
            suspended: None,
            resumed: Some(proof),
        }
    }
}

/// Slurm keeps one `SuspendTime`: of the suspend while suspended, of the resume afterwards, and the seconds it ran before the
/// last suspend (job_mgr.c and `suspend_job`, 22.05). A suspension that nobody looked at is computed from them and marked as inferred.
pub(super) fn suspensions(teller: &mut Teller<'_>, sighting: &Sighting) {
    let (Some(at), Some(started)) = (sighting.suspend_time, teller.next.started) else {
        return;
    };
    let known = teller.next.suspended.max(teller.next.resumed);
    if known.is_some_and(|known| known > at) || teller.next.resumed == Some(at) {
        return;
    }
    let Some(change) = change_at(teller.next, started, sighting, at) else {
        return;
    };
    teller.next.ran = sighting.pre_suspend.or(teller.next.ran);
    if let Some(proof) = change.suspended
        && teller.next.suspended != Some(at)
    {
        suspended(teller, at, proof);
    }
    let Some(proof) = change.resumed else { return };
    let never_suspended = teller.next.suspended.is_none() && teller.next.resumed.is_none();
    if never_suspended {
        let Some(ran) = sighting.pre_suspend else {
            return;
        };
        suspended(teller, (started + ran).min(at), Proof::Inferred);
    }
    teller.next.resumed = Some(at);
    let fact = teller.recorded(EventType::JobResumed, Slot::Resumed(at), Some(at));
    fact.inferred |= proof == Proof::Inferred;
}

fn suspended(teller: &mut Teller<'_>, at: i64, proof: Proof) {
    teller.next.suspended = Some(at);
    let fact = teller.recorded(EventType::JobSuspended, Slot::Suspended(at), Some(at));
    fact.inferred |= proof == Proof::Inferred;
}

/// What happened at `SuspendTime`; `None` if a later reading says more. A run that ends while suspended ends at its suspend (22.05), so
/// the record of one that was over in that second does not say whether it was suspended or resumed then.
fn change_at(told: &Tracked, started: i64, sighting: &Sighting, at: i64) -> Option<Change> {
    if sighting.base == Some(JobBaseState::Suspended) {
        return Some(Change::suspended(Proof::Observed));
    }
    // While its epilogs run, 22.05 hides how it ended.
    let is_over = sighting.end_kind().is_some() || sighting.completing;
    if !is_over || sighting.end != Some(at) {
        return Some(Change::resumed(Proof::Observed));
    }
    let open = told.suspended.filter(|_| told.suspended > told.resumed);
    let has_not_run = told.ran.is_some() && sighting.pre_suspend == told.ran;
    if has_not_run && open.is_some_and(|suspended| suspended < at) {
        return Some(Change::resumed(Proof::Observed));
    }
    if sighting.in_flux() && open != Some(at) {
        return None;
    }
    let ended_by_itself = ended_by_itself(sighting.base);
    let stopped = stopped_before(told, started, sighting.pre_suspend, at);
    Some(match (stopped == Some(0), ended_by_itself) {
        (true, _) => Change {
            suspended: Some(Proof::Observed),
            resumed: ended_by_itself.then_some(Proof::Inferred),
        },
        (false, true) => Change::resumed(Proof::Inferred),
        (false, false) if open.is_none() && stopped.is_some() => Change::resumed(Proof::Inferred),
        (false, false) => Change::suspended(Proof::Inferred),
    })
}

/// How many seconds of those since the last change that was told, or since its start, the run was stopped before its last suspend and
/// up to `at`, if the record tells. `ran` are the seconds it ran before its last suspend, all stopped ones left out.
fn stopped_before(told: &Tracked, started: i64, ran: Option<i64>, at: i64) -> Option<i64> {
    let ran = ran?;
    let known = told.suspended.max(told.resumed);
    let (since, before) = match known {
        Some(known) => (known, told.ran?),
        None => (started, 0),
    };
    Some(at - since - (ran - before))
}

/// Whether it is over by what its own program did, or did not do in time: a stopped one does nothing, and its time does not run.
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

pub(super) fn resizes(teller: &mut Teller<'_>, sighting: &Sighting) {
    if teller.next.started.is_none() {
        return;
    }
    for at in &sighting.resizes {
        if !teller.next.resized.contains(at) {
            teller.next.resized.push(*at);
            teller.recorded(EventType::JobResized, Slot::Resized(*at), Some(*at));
        }
    }
}
