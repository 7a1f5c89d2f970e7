//! When a job may start: Slurm's own plan, or why there is none.
//!
//! Backfill writes start times each cycle, clears them first, and leaves out jobs it does not reach and jobs that cannot start by the
//! passing of time (sched_config.html, Slurm 22.05 to 26.05). It plans with time limits, so starts are often earlier than planned.

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::from_timestamp;
use slurm_types::ReasonClass;
use slurm_types::reasons::Match;

use super::explain::PendingJob;

/// A plan this much in the past is no plan any more: several backfill cycles (`bf_interval`, 30 s by default) have missed it.
const STALE_PLAN_AGE: TimeDelta = TimeDelta::minutes(5);

/// The expected start, or why there is none. Exactly one of both is there.
pub struct Estimate {
    /// When Slurm plans to start it.
    pub start: Option<DateTime<Utc>>,
    /// Why there is no plan; empty if there is one.
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

/// The estimate for a recognised reason.
pub fn of(found: &Match, waiting: &PendingJob<'_>) -> Estimate {
    // What never starts by itself has no plan, whatever an old record says.
    match found.class() {
        ReasonClass::Held => {
            return Estimate::none("held: a held job is not planned until it is released");
        }
        ReasonClass::DependencyNeverSatisfied => {
            return Estimate::none("dependency: it can never be satisfied");
        }
        ReasonClass::Failure => {
            return Estimate::none(
                "ended: the reason tells how the job ended, not what it waits for",
            );
        }
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
                "overdue: the planned time has passed; the next backfill cycle plans anew",
            );
        }
        None => {}
    }
    Estimate::none(match found.class() {
        ReasonClass::Dependency => {
            "dependency: it is planned only when the jobs it depends on have got there"
        }
        ReasonClass::Limit => {
            "over a limit: jobs over a limit are not planned until they fit under it"
        }
        ReasonClass::NotEvaluated => {
            "not looked at yet: the scheduler has not reached this job since it was submitted or changed"
        }
        ReasonClass::NodeUnavailable => "nodes unavailable: Slurm cannot know when they come back",
        ReasonClass::Request => {
            "not possible as requested: there is nothing to plan until the request is changed"
        }
        ReasonClass::Partition => {
            "partition: nothing is planned while the partition or its limits do not allow it"
        }
        ReasonClass::Starting => "starting: it waits for nodes or clean-up, not for its turn",
        _ => {
            "not reached by backfill: too far down the queue, beyond its window, or not planned yet in this cycle"
        }
    })
}

/// The start of the newest plan: the snapshot's if the job is in it, else the one in its record.
fn planned(waiting: &PendingJob<'_>) -> Option<DateTime<Utc>> {
    match waiting.place {
        Some(place) if place.row.expected_start > 0 => {
            DateTime::from_timestamp(place.row.expected_start, 0)
        }
        Some(_) => None,
        None => waiting
            .job
            .expected_start_time
            .as_ref()
            .and_then(from_timestamp),
    }
}
