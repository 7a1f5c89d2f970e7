//! Checks the end of a run that `jobcomp/script` reports against Slurm's records.
//!
//! Every node with a hook has the credential to ring a doorbell. Therefore jobcomp is trusted only about runs that a record knows, only for
//! what that record hides, and only if it does not contradict it. slurmctld writes its record before it calls jobcomp, and ingest read that
//! record afterwards. While a run is COMPLETING, the record has the time and exit code of the end; 22.05 hides only the state, which its
//! reason shows for most failures. A kind that no record shows is never observed.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_events::RunKey;
use mesh_events::proto::mesh::job::v1::Job;
use slurm_types::{HostList, JobBaseState, Tres};

use super::attempt::run_of;
use super::observation::{Observation, Owner};
use super::run_state::RunState;
use super::run_store::RunStore;

/// Time within which a record of an end arrives, also on a busy machine: the controller's after its epilogs, slurmdbd's after slurmctld has
/// sent it. Until then, an answer without that record proves nothing.
pub const RECORD_DELAY: Duration = Duration::from_secs(10);

/// Tolerance in seconds. Slurm's times are whole seconds, and it moves the submit time of a requeued job by at least one.
const ROUNDING_SECONDS: i64 = 2;

/// Verdict of the records on an end that jobcomp reports.
#[derive(Debug)]
pub enum Confirmation {
    /// A record knows the run and confirms this end and its kind.
    Confirmed(Box<Observation>),
    /// A record shows that the run is over, but only jobcomp says how.
    Unproven {
        /// The end, marked as inferred.
        end: Box<Observation>,
        /// Which record may show the kind later.
        shown_by: Option<KindSource>,
    },
    /// The end is known from a record, or was published.
    Known,
    /// The run's record is about to change, and does not confirm the end so far.
    Open,
    /// No available record knows the run, or its published end is inferred.
    UnknownRun,
    /// A record shows that the run continues, or that it cannot have ended this way.
    Contradicted,
}

/// The record that may show how a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindSource {
    /// The controller's, once the epilogs have run; accounting's often before.
    Any,
    /// Only accounting's: the controller already has the next run.
    Accounting,
}

/// Compares an end with the controller's records of the same job, and with the state stored from records. `owner` returns the owner of a
/// run that was seen since ingest became leader.
pub fn confirm(
    run_store: &RunStore,
    found: &[Observation],
    owner: impl FnOnce(&RunKey) -> Option<Owner>,
    end: &Observation,
) -> Confirmation {
    if !is_possible(end) {
        return Confirmation::Contradicted;
    }
    let run = run_of(run_store, end);
    let known = run_store.get(&run).filter(|known| !known.hook_only);
    let Some(record) = found.iter().find(|record| record.run == end.run) else {
        if known.is_some_and(RunState::has_certain_end) {
            return Confirmation::Known;
        }
        if known.is_some_and(|known| known.end_kind().is_some()) {
            // What was inferred, only accounting can confirm or correct.
            return Confirmation::UnknownRun;
        }
        return of_earlier_run(found, known, owner(&run).as_ref(), end);
    };
    if record.end_kind().is_some() {
        return Confirmation::Known;
    }
    if record.in_flux() {
        return match known {
            Some(run) if run.has_certain_end() => Confirmation::Known,
            _ => completed(record, known, end),
        };
    }
    // A run that was requeued in its first second may keep its submit time (22.05); the controller's restart count has grown then.
    match known {
        Some(run) if run.over() => Confirmation::Known,
        Some(run) if restarted_since(run, record) && run.started.is_some() => {
            // Accounting loses such a run (22.05).
            unproven(end_of(run, end), None)
        }
        // Accounting has the end of one that never started until the next one starts.
        Some(run) if restarted_since(run, record) && !end.allocated => Confirmation::UnknownRun,
        _ => Confirmation::Contradicted,
    }
}

/// The controller has the job in another run, which proves that the earlier one is over. How it ended, jobcomp may report only for a run
/// that was seen to start.
fn of_earlier_run(
    found: &[Observation],
    known: Option<&RunState>,
    owner: Option<&Owner>,
    end: &Observation,
) -> Confirmation {
    let next = found
        .iter()
        .map(|record| record.run.submit_time)
        .filter(|submit_time| *submit_time > end.run.submit_time)
        .min();
    let (Some(next), Some(run), Some(owner)) = (next, known, owner) else {
        return Confirmation::UnknownRun;
    };
    let ended_before = |at: i64| at <= next + ROUNDING_SECONDS;
    let agrees = run.started.is_some() == end.allocated
        && run
            .started
            .is_none_or(|at| end.end.is_some_and(|end| end >= at))
        && end.end.is_some_and(ended_before)
        && same_user(owner, &end.owner);
    match agrees {
        true => unproven(end_of(run, end), Some(KindSource::Accounting)),
        false => Confirmation::UnknownRun,
    }
}

/// Completes the controller's record of a run whose epilogs run with the end from jobcomp, as far as the record confirms it.
fn completed(record: &Observation, known: Option<&RunState>, end: &Observation) -> Confirmation {
    if !same_user(&record.owner, &end.owner) {
        return Confirmation::Open;
    }
    let nodes_agree = nodes_agree(record, end);
    if record.base == Some(JobBaseState::Pending)
        || known.is_some_and(|run| restarted_since(run, record))
    {
        // The job returns to the queue: the record already has the times of the next run, and no exit code.
        let Some(started) = known.and_then(|run| run.started) else {
            return Confirmation::Open;
        };
        let mut observation = record.clone().completed_by(end, nodes_agree);
        observation.start = Some(started);
        return match end.end {
            Some(at) if at >= started => unproven(observation, Some(KindSource::Accounting)),
            _ => Confirmation::Open,
        };
    }
    let same_end = !end.requeued
        && record.end.is_some()
        && record.end == end.end
        && record.start == end.start.or(record.start)
        && (record.exit_code.is_none() || record.exit_code == end.exit_code);
    if !same_end {
        return Confirmation::Open;
    }
    let completed = record.clone().completed_by(end, nodes_agree);
    match shown_kind(record) {
        Some(kind) if Some(kind) == end.base => Confirmation::Confirmed(Box::new(completed)),
        Some(_) => Confirmation::Open,
        None => unproven(completed, Some(KindSource::Any)),
    }
}

fn unproven(end: Observation, shown_by: Option<KindSource>) -> Confirmation {
    Confirmation::Unproven {
        end: Box::new(Observation {
            end_is_inferred: true,
            ..end
        }),
        shown_by,
    }
}

/// How a run ended, by the reason that slurmctld sets with the hidden state (22.05). A run that completed, was cancelled or preempted has
/// none.
fn shown_kind(record: &Observation) -> Option<JobBaseState> {
    match record.job.reason.as_str() {
        "NonZeroExitCode" | "JobLaunchFailure" => Some(JobBaseState::Failed),
        "TimeLimit" => Some(JobBaseState::Timeout),
        "OutOfMemory" => Some(JobBaseState::OutOfMemory),
        _ => None,
    }
}

/// Builds an end that takes from jobcomp only what no other source has. The rest comes from the stored state.
fn end_of(run: &RunState, end: &Observation) -> Observation {
    let job = &end.job;
    Observation {
        allocated: run.started.is_some(),
        start: run.started,
        owner: Owner::default(),
        job: Job {
            job_id: job.job_id,
            run: job.run.clone(),
            display_id: job.display_id.clone(),
            array: job.array.clone(),
            state: job.state.clone(),
            submit_time: job.submit_time,
            start_time: job.start_time.filter(|at| Some(at.seconds) >= run.started),
            end_time: job.end_time,
            exit_code: job.exit_code,
            derived_exit_code: job.derived_exit_code,
            ..Job::default()
        },
        ..end.clone()
    }
}

/// Removes the names that only the doorbell has.
pub fn without_names(mut end: Observation) -> Observation {
    end.owner = Owner::default();
    end.job.group.clear();
    end
}

/// Whether two reports contradict each other about the end of one run.
pub fn contradict(one: &Observation, other: &Observation) -> bool {
    let summary = |end: &Observation| (end.end_kind(), end.end, end.exit_code);
    one.run == other.run && summary(one) != summary(other)
}

/// Whether the times are possible. Compares only Slurm's times with each other, because the local clock may be wrong.
fn is_possible(end: &Observation) -> bool {
    let RunKey { submit_time, .. } = end.run;
    end.end.is_none_or(|at| {
        at >= submit_time
            && end
                .start
                .is_none_or(|start| (submit_time..=at).contains(&start))
    })
}

/// Whether both agree on the nodes. While nodes are cleaned up, the record names only those whose epilogs still run; the allocated TRES has
/// the original number.
fn nodes_agree(record: &Observation, end: &Observation) -> bool {
    if record.job.nodes == end.job.nodes {
        return true;
    }
    let names = |nodes: &str| HostList::expand(nodes).map(BTreeSet::from_iter);
    let (Ok(left), Ok(previous)) = (names(&record.job.nodes), names(&end.job.nodes)) else {
        return false;
    };
    let allocated: Option<Tres> = record.job.alloc_tres.parse().ok();
    let count = allocated.map_or(0, |tres| tres.nodes());
    previous.is_superset(&left) && (count == 0 || u64::try_from(previous.len()) == Ok(count))
}

fn restarted_since(run: &RunState, record: &Observation) -> bool {
    run.restarts.is_some() && record.restarts > run.restarts
}

fn same_user(one: &Owner, other: &Owner) -> bool {
    one.uid.is_none() || other.uid.is_none() || one.uid == other.uid
}
