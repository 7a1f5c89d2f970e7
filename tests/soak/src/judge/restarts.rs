//! Number of requeues of a job before each run, by accounting's rows. Every event of the run must have this number, or none.

use std::collections::{BTreeMap, BTreeSet};

use super::Run;
use crate::log::Log;
use crate::plan::FaultKind;
use crate::published::Published;
use crate::sacct::Row;
use crate::verdict::Verdict;
use integration::run_of;

/// The rows of a job, oldest first.
pub(super) fn judge(life: &[&Row], log: &Log, published: &Published, verdict: &mut Verdict) {
    let Some(first) = life.first() else { return };
    let about = |(job, task, ..): integration::Run| (job, task) == (first.job, first.task);
    let mut reported: BTreeMap<Run, BTreeSet<u32>> = BTreeMap::new();
    for event in published.bus.values() {
        let Some((job, task, submit, attempt)) = run_of(event).filter(|run| about(*run)) else {
            continue;
        };
        // Of attempts with the same submit time, accounting has only the last one (seen on 22.05).
        if attempt > 0 {
            return;
        }
        if let Some(count) = event.job().and_then(|job| job.restarts) {
            let run = (job, task, submit);
            reported.entry(run).or_default().insert(count);
        }
    }
    let (mut before, mut is_part) = (0, false);
    for row in life {
        let run = (row.job, row.task, row.submit);
        if !is_part && let Some(counts) = reported.remove(&run) {
            let lost = |what| matches!(what, FaultKind::Slurmdbd);
            if counts == BTreeSet::from([before]) {
                verdict.right("restarts");
            } else if counts.len() == 1 && log.was_broken(lost, first.submit, row.submit) {
                let text = format!(
                    "restarts of {run:?}: {counts:?}; slurmdbd was unavailable: {}",
                    row.line
                );
                verdict.unjudged.push(text);
            } else {
                let text = format!("restarts of {run:?} are {counts:?}, by accounting {before}");
                verdict.wrong.push(text);
            }
        }
        is_part = row.state == "RESIZING";
        // A component of a heterogeneous job that releases its nodes is not counted (22.05 and 24.11).
        before += u32::from(!is_part && row.state != "PENDING");
    }
}
