//! Exit codes that accounting lacks: slurmrestd of 22.05 loses them.
//!
//! slurmctld keeps a run for a while after its end, so ingest asks it before publishing such an end. An end is published only once, so what
//! is missing then stays missing.

use std::collections::BTreeSet;

use chrono::Utc;
use slurm_client::{JobLookup, Slurm};
use slurm_types::JobId;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::collector::Collector;
use crate::domain::Observation;
use crate::job_queries::JobQueries;
use crate::sources::unless_stopped;

/// Seconds after a run's end for which slurmctld is asked. It drops a run `MinJobAge` (300 s by default) after its end.
const CONTROLLER_RETENTION_SECS: i64 = 3_600;

/// Reads exit codes from the controller.
pub struct ExitCodeReader<'a, S = Slurm> {
    /// Slurm client.
    pub slurm: &'a S,
    /// Holds the run store.
    pub collector: &'a Collector,
    /// Signals shutdown.
    pub shutdown: &'a CancellationToken,
    /// Also completes ends that were already published, to republish them.
    pub republish: bool,
}

/// Runs from accounting, completed as far as possible.
#[derive(Default)]
pub struct CompletedRuns {
    /// Runs that can be published: no source has more to report.
    pub runs: Vec<Observation>,
    /// Runs of which another source may still report more.
    pub open: Vec<Observation>,
}

impl<S: JobQueries> ExitCodeReader<'_, S> {
    /// Completes runs from accounting with the controller's exit codes.
    ///
    /// # Errors
    /// On shutdown.
    pub async fn complete(&self, runs: Vec<Observation>) -> Result<CompletedRuns, Error> {
        let oldest = Utc::now().timestamp() - CONTROLLER_RETENTION_SECS;
        let (lacking, mut runs): (Vec<Observation>, Vec<Observation>) = {
            let state = self.collector.state().await;
            runs.into_iter().partition(|run| {
                let known = state.run_store.get(&run.run);
                let has_ended = known.is_some_and(|known| known.end_kind().is_some());
                lacks_code(run)
                    && run.end.is_some_and(|end| end > oldest)
                    && (self.republish || !has_ended)
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
            // The poller notices and reports a controller that does not answer.
            let known = answer
                .as_ref()
                .map_or(ControllerExitCode::Open, |answer| known(answer, &run));
            match known {
                ControllerExitCode::Ended(seen) => {
                    run.take_code(&seen);
                    runs.push(run);
                }
                ControllerExitCode::Purged => runs.push(run),
                ControllerExitCode::Open => open.push(run),
            }
        }
        Ok(in_order(runs, open))
    }
}

/// Runs of one job are published in order, so runs after an open one stay open, too.
pub fn in_order(runs: Vec<Observation>, mut open: Vec<Observation>) -> CompletedRuns {
    let waiting: BTreeSet<u32> = open.iter().map(|run| run.raw_id).collect();
    let (with_code, mut runs): (Vec<Observation>, Vec<Observation>) = runs
        .into_iter()
        .partition(|run| waiting.contains(&run.raw_id));
    open.extend(with_code);
    for part in [&mut runs, &mut open] {
        part.sort_by_key(|run| (run.raw_id, run.run.submit_time));
    }
    CompletedRuns { runs, open }
}

/// Whether accounting lacks the exit code of an ended run. The controller no longer has a requeued run.
fn lacks_code(run: &Observation) -> bool {
    run.end_kind().is_some() && run.allocated && !run.requeued && run.job.exit_code.is_none()
}

/// Result of looking for a run's exit code in the controller's answer.
enum ControllerExitCode {
    /// The end, with its exit code.
    Ended(Box<Observation>),
    /// The controller does not have the run any more.
    Purged,
    /// The controller may report it later.
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
            // The job is in another attempt by now.
            _ => ControllerExitCode::Purged,
        };
    }
    let is = |id: &JobId| id.get() == run.raw_id;
    let unclear = answer.unclear.iter().map(|(id, _)| id);
    match unclear.chain(&answer.unlisted).any(is) {
        true => ControllerExitCode::Open,
        false => ControllerExitCode::Purged,
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
        // Another run of the job, another end, no record.
        assert!(matches!(
            of(vec![record("FAILED", 200)]),
            ControllerExitCode::Purged
        ));
        assert!(matches!(
            of(vec![record("TIMEOUT", 100)]),
            ControllerExitCode::Purged
        ));
        assert!(matches!(of(Vec::new()), ControllerExitCode::Purged));
        // 22.05 hides the end while epilogs run.
        assert!(matches!(
            of(vec![record("COMPLETING", 100)]),
            ControllerExitCode::Open
        ));
    }

    #[test]
    fn an_unclear_answer_is_unclear() {
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
            ControllerExitCode::Purged
        ));
    }
}
