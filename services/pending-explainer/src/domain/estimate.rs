//! The expected start of a job: Slurm's own plan, or why there is none.
//!
//! Backfill clears all start times at each cycle and computes them again. It leaves out jobs it does not reach, and jobs that cannot start
//! merely by waiting (sched_config.html, Slurm 22.05 to 26.05). It plans with time limits, so jobs often start earlier than planned.

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::from_timestamp;
use slurm_types::ReasonClass;

use super::judge::PendingCause;
use super::pending_job::PendingJob;

/// Age after which a planned start in the past is obsolete: several backfill cycles (`bf_interval`, 30 s by default) have not renewed
/// it.
const STALE_PLAN_AGE: TimeDelta = TimeDelta::minutes(5);

/// The expected start, or why there is none. Exactly one of the two is set.
pub struct Estimate {
    /// Start planned by Slurm.
    pub start: Option<DateTime<Utc>>,
    /// Why there is no plan. Empty if there is one.
    pub none_because: &'static str,
}

impl Estimate {
    const fn none(because: &'static str) -> Self {
        Self {
            start: None,
            none_because: because,
        }
    }
}

/// The estimate for a job that waits for this.
pub fn of(finding: &PendingCause, waiting: &PendingJob<'_>) -> Estimate {
    // A job that cannot start by itself has no plan, even if a record contains one: backfill plans with what it last knew.
    let impossible = "not possible as requested: there is nothing to plan until somebody acts";
    match finding.class {
        ReasonClass::Held => {
            return Estimate::none("held: a held job is not planned until it is released");
        }
        ReasonClass::DependencyNeverSatisfied => {
            return Estimate::none("dependency: it can never be satisfied");
        }
        ReasonClass::Failure => {
            return Estimate::none(
                "ended: the reason describes how the job ended, not why it waits",
            );
        }
        ReasonClass::Limit if finding.needs_act => return Estimate::none(impossible),
        ReasonClass::Limit => {
            return Estimate::none(
                "over a limit: jobs over a limit are not planned until they fit under it",
            );
        }
        ReasonClass::Dependency => {
            return Estimate::none(
                "dependency: it is planned only once its dependencies are satisfied",
            );
        }
        ReasonClass::Request => {
            return Estimate::none(
                "not possible as requested: there is nothing to plan until the request is changed",
            );
        }
        ReasonClass::Partition => {
            return Estimate::none(
                "partition: nothing is planned while the partition or its limits do not allow it",
            );
        }
        ReasonClass::NodeUnavailable if finding.needs_act => {
            return Estimate::none("nodes unavailable: Slurm cannot know when they come back");
        }
        _ if finding.needs_act => return Estimate::none(impossible),
        _ => {}
    }
    match planned(waiting) {
        Some(start) if start + STALE_PLAN_AGE >= waiting.now => {
            return Estimate {
                start: Some(start),
                none_because: "",
            };
        }
        Some(_) => {
            return Estimate::none(
                "overdue: the planned time has passed; the next backfill cycle plans it again",
            );
        }
        None => {}
    }
    Estimate::none(match finding.class {
        ReasonClass::NotEvaluated => {
            "not evaluated yet: the scheduler has not reached this job since it was submitted or changed"
        }
        ReasonClass::NodeUnavailable => {
            "nodes unavailable: Slurm has not planned when they come back"
        }
        ReasonClass::Starting => "starting: it waits for nodes or clean-up, not for its turn",
        _ => {
            "not reached by backfill: too far down the queue, beyond its window, or not planned yet in this cycle"
        }
    })
}

/// The newest planned start: from the snapshot if the job is in it, else from its record.
fn planned(waiting: &PendingJob<'_>) -> Option<DateTime<Utc>> {
    match waiting.position {
        Some(position) if position.row.expected_start > 0 => {
            DateTime::from_timestamp(position.row.expected_start, 0)
        }
        Some(_) => None,
        None => waiting
            .job
            .expected_start_time
            .as_ref()
            .and_then(from_timestamp),
    }
}
