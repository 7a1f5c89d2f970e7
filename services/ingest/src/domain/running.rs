//! What happens to a run from its start on: suspensions and resizes.

use mesh_events::{EventType, Slot};
use slurm_types::JobBaseState;

use super::derive::Teller;
use super::sighting::Sighting;

pub(super) fn start(teller: &mut Teller<'_>, sighting: &Sighting) {
    if teller.next.started.is_none() && sighting.started() {
        teller.next.started = sighting.start;
        teller.recorded(EventType::JobStarted, Slot::Started, sighting.start);
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
    // A job cancelled while suspended ends at its suspend (22.05); one that is cancelled in the second of its resume had run for less.
    let resumed_then =
        teller.next.resumed.is_none() && sighting.pre_suspend.is_some_and(|ran| started + ran < at);
    // While its epilogs run, 22.05 hides how it ended.
    let is_over = sighting.end_kind().is_some() || sighting.completing;
    let suspended_now = sighting.base == Some(JobBaseState::Suspended)
        || (is_over && sighting.end == Some(at) && !resumed_then);
    if suspended_now {
        if teller.next.suspended != Some(at) {
            teller.next.suspended = Some(at);
            teller.recorded(EventType::JobSuspended, Slot::Suspended(at), Some(at));
        }
        return;
    }
    let open = teller.next.suspended > teller.next.resumed;
    if !open && teller.next.resumed.is_none() {
        let Some(ran) = sighting.pre_suspend else {
            return;
        };
        let begun = (started + ran).min(at);
        teller.next.suspended = Some(begun);
        teller
            .recorded(EventType::JobSuspended, Slot::Suspended(begun), Some(begun))
            .inferred = true;
    }
    teller.next.resumed = Some(at);
    teller.recorded(EventType::JobResumed, Slot::Resumed(at), Some(at));
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
