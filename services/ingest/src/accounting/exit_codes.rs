//! Exit codes that accounting does not have: slurmrestd of 22.05 loses them. slurmctld knows a run for a while after its end, so it is asked
//! before such an end is published; an end is published once, and what it lacks then it lacks for good.

use std::collections::BTreeSet;

use chrono::Utc;
use slurm_client::{JobLookup, Slurm};
use slurm_types::JobId;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::collector::Collector;
use crate::domain::Observation;
use crate::sources::unless_stopped;

/// Seconds after which slurmctld is not asked any more: it drops a run `MinJobAge` (300 s unless set) after its end.
const CONTROLLER_RETENTION_SECS: i64 = 3_600;

/// Asks the controller for what accounting lost.
pub struct ExitCodeReader<'a> {
    /// Slurm.
    pub slurm: &'a Slurm,
    /// The run store.
    pub collector: &'a Collector,
    /// Stop.
    pub shutdown: &'a CancellationToken,
    /// Also of ends that were published: they are republished.
    pub again: bool,
}

/// Runs as accounting reports them.
#[derive(Default)]
pub struct CompletedRuns {
    /// What can be published: nobody has more to say of it.
    pub runs: Vec<Observation>,
    /// Of what somebody may still report more.
    pub open: Vec<Observation>,
}

impl ExitCodeReader<'_> {
    /// Completes runs of accounting with what the controller knows.
    ///
    /// # Errors
    /// On shutdown.
    pub async fn complete(&self, runs: Vec<Observation>) -> Result<CompletedRuns, Error> {
        let oldest = Utc::now().timestamp() - CONTROLLER_RETENTION_SECS;
        let (lacking, mut runs): (Vec<Observation>, Vec<Observation>) = {
            let core = self.collector.core().await;
            runs.into_iter().partition(|run| {
                lacks_code(run)
                    && run.end.is_some_and(|end| end > oldest)
                    && (self.again
                        || !core
                            .run_store
                            .get(&run.run)
                            .is_some_and(|known| known.over()))
            })
        };
        let ids: BTreeSet<JobId> = lacking
            .iter()
            .filter_map(|run| JobId::new(run.raw_id))
            .collect();
        if ids.is_empty() {
            let open = Vec::new();
            return Ok(CompletedRuns { runs, open });
        }
        let ids: Vec<JobId> = ids.into_iter().collect();
        let answer = unless_stopped(self.shutdown, self.slurm.jobs(&ids)).await?;
        let mut open = Vec::new();
        for mut run in lacking {
            // Who does not answer is noticed and reported by those who look at the queue.
            let known = answer
                .as_ref()
                .map_or(ControllerExitCode::Open, |answer| known(answer, &run));
            match known {
                ControllerExitCode::Ended(seen) => {
                    run.take_code(&seen);
                    runs.push(run);
                }
                ControllerExitCode::Gone => runs.push(run),
                ControllerExitCode::Open => open.push(run),
            }
        }
        Ok(in_order(runs, open))
    }
}

/// Runs of one job are published in their order, and each after the one before: those after one that is open are so, too.
pub fn in_order(runs: Vec<Observation>, mut open: Vec<Observation>) -> CompletedRuns {
    let waiting: BTreeSet<u32> = open.iter().map(|run| run.raw_id).collect();
    let (later, mut runs): (Vec<Observation>, Vec<Observation>) = runs
        .into_iter()
        .partition(|run| waiting.contains(&run.raw_id));
    open.extend(later);
    for part in [&mut runs, &mut open] {
        part.sort_by_key(|run| (run.raw_id, run.run.submit_time));
    }
    CompletedRuns { runs, open }
}

/// Whether accounting reports an end that had an exit code. A requeued run is not the controller's any more.
fn lacks_code(run: &Observation) -> bool {
    run.end_kind().is_some() && run.allocated && !run.requeued && run.job.exit_code.is_none()
}

/// What the controller's answer says of a run.
enum ControllerExitCode {
    /// Its end, with the code.
    Ended(Box<Observation>),
    /// Nothing, and never will.
    Gone,
    /// Nothing yet.
    Open,
}

fn known(answer: &JobLookup, run: &Observation) -> ControllerExitCode {
    let records = answer
        .found
        .iter()
        .filter_map(|record| Observation::from_controller(&run.run.cluster, record))
        .find(|seen| seen.run == run.run && seen.raw_id == run.raw_id);
    if let Some(seen) = records {
        return match seen.end_kind() {
            Some(kind) if Some(kind) == run.end_kind() => ControllerExitCode::Ended(Box::new(seen)),
            None if seen.in_flux() => ControllerExitCode::Open,
            // In another attempt by now.
            _ => ControllerExitCode::Gone,
        };
    }
    let is = |id: &JobId| id.get() == run.raw_id;
    let unclear = answer.unclear.iter().map(|(id, _)| id);
    match unclear.chain(&answer.unlisted).any(is) {
        true => ControllerExitCode::Open,
        false => ControllerExitCode::Gone,
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::job::v1::ExitCode;
    use slurm_client::{AccountingRecord, JobRecord};
    use slurm_types::{JobState, UnixTime};

    use super::*;

    fn row(state: &str) -> Observation {
        let row = AccountingRecord {
            job_id: JobId::new(7),
            submit: Some(UnixTime::from_secs(100)),
            start: Some(UnixTime::from_secs(110)),
            end: Some(UnixTime::from_secs(120)),
            nodes: "n1".to_owned(),
            state: JobState::parse(state),
            ..AccountingRecord::default()
        };
        Observation::from_accounting("c", &row).unwrap()
    }

    fn record(state: &str, submit: i64) -> JobRecord {
        JobRecord {
            job_id: JobId::new(7),
            submit: Some(UnixTime::from_secs(submit)),
            start: Some(UnixTime::from_secs(submit + 10)),
            nodes: "n1".to_owned(),
            state: JobState::parse(state),
            exit_code: "3:0".parse().ok(),
            ..JobRecord::default()
        }
    }

    fn of(found: Vec<JobRecord>) -> ControllerExitCode {
        let answer = JobLookup {
            found,
            ..JobLookup::default()
        };
        known(&answer, &row("FAILED"))
    }

    #[test]
    fn a_code_is_of_the_same_end_of_the_same_run() {
        assert!(lacks_code(&row("FAILED")));
        assert!(!lacks_code(&row("RUNNING")));
        assert!(!lacks_code(&row("REQUEUED")));
        let ControllerExitCode::Ended(seen) = of(vec![record("FAILED", 100)]) else {
            panic!("it is known");
        };
        let expected = ExitCode { code: 3, signal: 0 };
        assert_eq!(seen.job.exit_code, Some(expected));
        // Another run of the job, another end, none.
        assert!(matches!(
            of(vec![record("FAILED", 200)]),
            ControllerExitCode::Gone
        ));
        assert!(matches!(
            of(vec![record("TIMEOUT", 100)]),
            ControllerExitCode::Gone
        ));
        assert!(matches!(of(Vec::new()), ControllerExitCode::Gone));
        // 22.05 hides the end while epilogs run.
        assert!(matches!(
            of(vec![record("COMPLETING", 100)]),
            ControllerExitCode::Open
        ));
    }

    #[test]
    fn what_the_answer_leaves_open_is_open() {
        let id = JobId::new(7).unwrap();
        let unlisted = JobLookup {
            unlisted: vec![id],
            ..JobLookup::default()
        };
        assert!(matches!(
            known(&unlisted, &row("FAILED")),
            ControllerExitCode::Open
        ));
        let unclear = JobLookup {
            unclear: vec![(id, "cut".to_owned())],
            ..JobLookup::default()
        };
        assert!(matches!(
            known(&unclear, &row("FAILED")),
            ControllerExitCode::Open
        ));
        let missing = JobLookup {
            missing: vec![id],
            ..JobLookup::default()
        };
        assert!(matches!(
            known(&missing, &row("FAILED")),
            ControllerExitCode::Gone
        ));
    }
}
