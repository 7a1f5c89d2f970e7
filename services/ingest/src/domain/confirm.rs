//! Checks the end of a run that `jobcomp/script` reports against Slurm's records.
//!
//! Every node with a hook has the credential to ring a doorbell. Therefore jobcomp is trusted only about runs that a record knows, only for
//! what that record hides, and only if it does not contradict it. slurmctld writes its record before it calls jobcomp, and ingest read that
//! record afterwards. While a run is COMPLETING, the record has the time and exit code of the end; 22.05 hides only the state, which its
//! reason shows for most failures. A kind that no record shows is never observed.

use std::collections::BTreeSet;

use mesh_events::RunKey;
use mesh_events::proto::mesh::job::v1::Job;
use slurm_types::{HostList, JobBaseState, Tres};

use super::attempt::run_of;
use super::observation::{Observation, Owner};
use super::run_state::RunState;
use super::run_store::RunStore;

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
    /// No available record knows the run.
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
        if known.is_some_and(RunState::over) {
            return Confirmation::Known;
        }
        return of_earlier_run(found, known, owner(&run).as_ref(), end);
    };
    if record.end_kind().is_some() {
        return Confirmation::Known;
    }
    if record.in_flux() {
        return match known {
            Some(run) if run.over() => Confirmation::Known,
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

#[cfg(test)]
mod tests {
    use mesh_events::EventType;

    use super::super::tests::observation::{EPOCH, Step, apply, step};
    use super::*;

    fn observation(text: &str) -> Observation {
        match step(text, 9) {
            Step::See(mut observations, _) => observations.remove(0),
            Step::Settle { .. } => panic!("{text} is a reading"),
        }
    }

    /// Checks a reported end after some observations (`before`) against the controller's records (`found`).
    fn check(before: &str, found: &str, end: &str) -> String {
        let mut run_store = RunStore::default();
        for (poll, text) in before.split(';').enumerate() {
            apply(
                &mut run_store,
                step(text.trim(), u64::try_from(poll).unwrap()),
            );
        }
        let owner = |_: &RunKey| {
            Some(Owner {
                user: "alice".to_owned(),
                uid: Some(7),
                account: "physics".to_owned(),
            })
        };
        let mut end = observation(&format!("jobcomp: {end}"));
        end.owner.user = "bob".to_owned();
        let (end, by) = match confirm(&run_store, &[observation(found)], owner, &end) {
            Confirmation::Confirmed(end) => {
                assert!(!end.end_is_inferred);
                (end, "the record".to_owned())
            }
            Confirmation::Unproven { end, shown_by } => {
                assert!(end.end_is_inferred);
                (end, format!("{shown_by:?}"))
            }
            other => return format!("{other:?}"),
        };
        assert!(end.owner.user != "bob", "{end:?}");
        let kind = end.end_kind().map(EventType::event);
        let start = end.start.map(|at| at - EPOCH);
        format!("{} {start:?} by {by}", kind.unwrap_or_default())
    }

    #[test]
    fn an_end_counts_as_far_as_a_record_bears_it_out() {
        for (before, found, end, expected) in [
            // 22.05 hides the state of a run whose epilogs run, but not the time of its end, and for most failures not the reason.
            (
                "RUNNING n1",
                "COMPLETING n1 end=20 reason=TimeLimit",
                "TIMEOUT n1 end=20",
                "timeout Some(10) by the record",
            ),
            (
                "RUNNING n1",
                "COMPLETING n1 end=20 reason=NonZeroExitCode",
                "FAILED n1 end=20",
                "failed Some(10) by the record",
            ),
            (
                "RUNNING n1",
                "COMPLETING n1 end=20 reason=NonZeroExitCode",
                "COMPLETED n1 end=20",
                "Open",
            ),
            (
                "RUNNING n1",
                "COMPLETING n1 end=20",
                "COMPLETED n1 end=20",
                "completed Some(10) by Some(Any)",
            ),
            (
                "RUNNING n1; COMPLETED n1 end=20",
                "COMPLETING n1 end=20",
                "CANCELLED n1 end=20",
                "Known",
            ),
            (
                "RUNNING n1",
                "COMPLETING n1 end=20",
                "TIMEOUT n1 end=19",
                "Open",
            ),
            (
                "RUNNING n1",
                "COMPLETING n1 end=20",
                "TIMEOUT n1 start=9 end=20",
                "Open",
            ),
            (
                "RUNNING n1",
                "COMPLETING n1 end=20",
                "PENDING n1 end=20",
                "Open",
            ),
            // The controller counts the restart at once, and has the times of the next run.
            (
                "RUNNING n1",
                "COMPLETING n1 start=20 end=900 restarts=1",
                "PENDING n1 end=20",
                "requeued Some(10) by Some(Accounting)",
            ),
            (
                "RUNNING n1",
                "PENDING,COMPLETING n1 start=20 restarts=1",
                "NODE_FAIL n1 end=20",
                "node_fail Some(10) by Some(Accounting)",
            ),
            (
                "PENDING",
                "COMPLETING n1 start=20 end=900 restarts=1",
                "PENDING n1 end=20",
                "Open",
            ),
            // The record has the end itself.
            (
                "RUNNING n1",
                "FAILED,COMPLETING n1 end=20",
                "COMPLETED n1 end=20",
                "Known",
            ),
            (
                "RUNNING n1",
                "FAILED n1 end=20",
                "COMPLETED n1 end=20",
                "Known",
            ),
            // The job is in another run.
            (
                "RUNNING n1",
                "PENDING submit=100 restarts=1",
                "PREEMPTED n1 end=90",
                "preempted Some(10) by Some(Accounting)",
            ),
            (
                "RUNNING n1",
                "PENDING submit=100 restarts=1",
                "PREEMPTED n1 end=9",
                "Contradicted",
            ),
            (
                "RUNNING n1",
                "PENDING submit=100 restarts=1",
                "PREEMPTED n1 end=103",
                "UnknownRun",
            ),
            (
                "RUNNING n1",
                "PENDING submit=100 restarts=1",
                "CANCELLED end=90",
                "UnknownRun",
            ),
            (
                "PENDING",
                "PENDING submit=100 restarts=1",
                "PREEMPTED n1 end=90",
                "UnknownRun",
            ),
            (
                "RUNNING n1; COMPLETED n1 end=20",
                "PENDING submit=100 restarts=1",
                "FAILED n1 end=90",
                "Known",
            ),
            // A run that no record has shown.
            (
                "RUNNING n1 submit=100 start=110",
                "RUNNING n1 submit=100 start=110",
                "FAILED n1 end=20",
                "UnknownRun",
            ),
            (
                "RUNNING n1",
                "RUNNING n1",
                "FAILED n1 submit=100 start=110 end=120",
                "UnknownRun",
            ),
            // The run continues.
            (
                "RUNNING n1",
                "RUNNING n1",
                "FAILED n1 end=20",
                "Contradicted",
            ),
            ("PENDING", "PENDING", "CANCELLED end=20", "Contradicted"),
            // Requeued in its first second, under the same submit time (22.05).
            (
                "RUNNING n1",
                "PENDING restarts=1",
                "PENDING n1 end=10",
                "requeued Some(10) by None",
            ),
            (
                "RUNNING n1",
                "RUNNING n1 start=20 restarts=1",
                "NODE_FAIL n1 end=10",
                "node_fail Some(10) by None",
            ),
            (
                "PENDING",
                "PENDING restarts=1",
                "PENDING n1 end=10",
                "Contradicted",
            ),
        ] {
            let found = check(before, found, end);
            assert_eq!(found, expected, "{before} | {end}");
        }
    }

    #[test]
    fn nodes_and_users_that_the_record_denies_are_not_taken_from_the_doorbell() {
        let mut record = observation("COMPLETING n1 end=20");
        let mut end = observation("jobcomp: FAILED n1 end=20");
        record.job.nodes = "n[2-3]".to_owned();
        record.job.alloc_tres = "cpu=3,node=3".to_owned();
        for (previous, expected) in [
            ("n[1-3]", "n[1-3]"),
            ("n[1-2]", "n[2-3]"),
            ("n[1-4]", "n[2-3]"),
            ("n[1-", "n[2-3]"),
        ] {
            end.job.nodes = previous.to_owned();
            let Confirmation::Unproven { end: completed, .. } = completed(&record, None, &end)
            else {
                panic!("the record does not show how it ended");
            };
            assert_eq!(completed.job.nodes, expected, "{previous}");
        }
        (record.owner.uid, end.owner.uid) = (Some(7), Some(8));
        assert!(matches!(completed(&record, None, &end), Confirmation::Open));
        (end.owner.uid, end.exit_code) = (Some(7), "1:0".parse().ok());
        record.exit_code = "3:0".parse().ok();
        assert!(matches!(completed(&record, None, &end), Confirmation::Open));
    }

    /// A run that only a hook reports says nothing about other runs.
    #[test]
    fn a_run_known_only_from_a_hook_is_continued_by_none() {
        let mut run_store = RunStore::default();
        let Step::See(ends, context) = step("jobcomp: FAILED n1 end=20", 1) else {
            panic!("a reading");
        };
        let inferred = super::super::ObservationContext {
            inferred: true,
            ..context
        };
        let previous = apply(&mut run_store, Step::See(ends, inferred));
        assert!(previous.len() == 3 && previous.iter().all(|fact| fact.inferred));
        let next = apply(
            &mut run_store,
            step("RUNNING n1 submit=100 start=110 given-up restarts=1", 2),
        );
        assert!(!next.is_empty());
        assert!(
            next.iter()
                .all(|fact| fact.continues.is_none() && !fact.inferred)
        );
    }
}
