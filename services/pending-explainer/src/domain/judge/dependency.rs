//! Jobs that a job depends on, with their states.

use chrono::DateTime;
use mesh_events::proto::mesh::queue::v1::Blocker;
use mesh_events::timestamp;
use slurm_types::{Actor, ReasonClass};

use super::{Evidence, PendingCause, blocker};
use crate::domain::dependency::{any_suffices, unfulfilled};
use crate::domain::pending_job::PendingJob;
use crate::domain::reason_text::{list, moment};

/// The jobs that a job depends on. `None` if nothing is known about any of them.
pub fn finding(waiting: &PendingJob<'_>, evidence: &Evidence) -> Option<PendingCause> {
    let expression = &waiting.job.dependency;
    let mut is_known = false;
    let mut blockers = Vec::new();
    let mut waits = Vec::new();
    for term in unfulfilled(expression) {
        let running = evidence
            .running
            .iter()
            .find(|job| job.display_id == term.job);
        let mut wait = term.wait.clone();
        let mut blocker = blocker(evidence, "job", &term.job, "running");
        if let Some(job) = running {
            is_known = true;
            blocker.state.clone_from(&job.state);
            let end = DateTime::from_timestamp(job.end, 0).filter(|_| job.end > 0);
            blocker.until = end.map(timestamp);
            wait.push_str(&end.map_or_else(
                || " (it runs)".to_owned(),
                |end| {
                    format!(
                        " (it runs until {} at the latest)",
                        moment(end, waiting.now)
                    )
                },
            ));
        } else if waiting.waits(&term.job) {
            is_known = true;
            "PENDING".clone_into(&mut blocker.state);
            wait.push_str(" (it waits itself)");
        }
        if !term.job.is_empty() {
            blockers.push(blocker);
        }
        waits.push(wait);
    }
    if !is_known {
        return None;
    }
    let any = if waits.len() > 1 && any_suffices(expression) {
        "; one of them is enough"
    } else {
        ""
    };
    let blockers: Vec<Blocker> = blockers;
    Some(
        PendingCause::new(
            ReasonClass::Dependency,
            Actor::Wait,
            format!("It waits for {}{any}.", list(&waits, 3)),
            "Nothing to do. You can change or drop it: scontrol update jobid=JOB dependency=…",
        )
        .blocked_by(blockers),
    )
}
