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
    // A job cancelled while suspended ends at its suspend (22.05). While its epilogs run, 22.05 hides how it ended.
    let is_over = sighting.end_kind().is_some() || sighting.completing;
    let suspended_now = sighting.base == Some(JobBaseState::Suspended)
        || (is_over
            && sighting.end == Some(at)
            && !resumed_then(teller.next, started, sighting.pre_suspend, at));
    teller.next.ran = sighting.pre_suspend.or(teller.next.ran);
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

/// Whether a run that was over in the second of its `SuspendTime` was resumed then: one that was suspended then had run until then. `ran`
/// are the seconds it ran before its last suspend, all suspended ones left out.
fn resumed_then(told: &Tracked, started: i64, ran: Option<i64>, at: i64) -> bool {
    let Some(ran) = ran else { return false };
    match (told.suspended, told.resumed, told.ran) {
        // It is suspended, as far as that is told, and has not run since.
        (Some(suspended), resumed, Some(before)) if Some(suspended) > resumed => {
            at > suspended && ran == before
        }
        (_, None, _) => started + ran < at,
        (_, Some(resumed), before) => before.is_some_and(|before| resumed + ran - before < at),
    }
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
