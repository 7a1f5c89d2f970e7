//! Ends that accounting has written over: its row of a finished job that was requeued says REQUEUED (22.05 and 24.11). Whether a row is of
//! such a run its steps show; how that ended its doorbell reports, which may be on its way: it is waited for, since an end is published once.

use std::collections::HashSet;

use slurm_client::Slurm;
use slurm_types::{JobId, JobRef};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::accounting::exit_codes::{CompletedRuns, in_order};
use crate::accounting::rate_limit::AccountingRateLimit;
use crate::collector::Collector;
use crate::domain::{Observation, run_of, usages};
use crate::sources::unless_stopped;

/// Asks accounting for the steps of runs that were requeued.
pub struct BatchStepEnds<'a> {
    /// Slurm.
    pub slurm: &'a Slurm,
    /// The run store.
    pub collector: &'a Collector,
    /// Whose turn it is to ask accounting, for who has to wait for one.
    pub turns: Option<&'a AccountingRateLimit>,
    /// Stop.
    pub shutdown: &'a CancellationToken,
    /// Also of ends that were published: they are republished.
    pub again: bool,
}

impl BatchStepEnds<'_> {
    /// Completes runs with their own ends. `reported` are ends that doorbells brought. Whose doorbell may come yet is open, with what its steps show.
    ///
    /// # Errors
    /// On shutdown.
    pub async fn complete(
        &self,
        completed: CompletedRuns,
        reported: &[Observation],
    ) -> Result<CompletedRuns, Error> {
        let CompletedRuns { runs, mut open } = completed;
        let (unconfirmed, mut runs): (Vec<Observation>, Vec<Observation>) = {
            let core = self.collector.core().await;
            let is_published = |run: &Observation| {
                let known = core.run_store.get(&run_of(&core.run_store, run));
                !self.again && known.is_some_and(|known| known.over())
            };
            runs.into_iter().partition(|run| {
                run.requeued && run.base.is_none() && run.allocated && !is_published(run)
            })
        };
        let jobs: HashSet<JobRef> = unconfirmed.iter().filter_map(job_of).collect();
        if jobs.is_empty() {
            runs.extend(unconfirmed);
            return Ok(in_order(runs, open));
        }
        let jobs: Vec<JobRef> = jobs.into_iter().collect();
        let ask = async {
            let _turn = match self.turns {
                Some(turns) => Some(turns.next().await),
                None => None,
            };
            self.slurm.usage(&jobs).await
        };
        // Who does not answer is noticed and reported by those who asked for the runs.
        let Ok(records) = unless_stopped(self.shutdown, ask).await? else {
            open.extend(unconfirmed);
            return Ok(in_order(runs, open));
        };
        let steps = usages(&self.collector.cluster, &records);
        for run in unconfirmed {
            let shown = steps.iter().map(|settled| &settled.observation);
            let own = shown
                .filter(|shown| shown.run == run.run)
                .find_map(|shown| shown.own_end);
            let end =
                own.and_then(|own| reported.iter().find(|end| own.is_confirmed_by(&run, end)));
            match (own, end) {
                (_, Some(end)) => runs.push(run.completed_by(end, false)),
                (Some(own), None) if own.is_before_requeue(&run) => open.push(Observation {
                    own_end: Some(own),
                    ..run
                }),
                _ => runs.push(run),
            }
        }
        Ok(in_order(runs, open))
    }
}

/// The job of a run, as accounting is asked for its steps.
fn job_of(run: &Observation) -> Option<JobRef> {
    let id = JobId::new(run.raw_id)?;
    Some(match run.run.task_id {
        Some(task) if run.raw_id == run.run.job_id => JobRef::ArrayTask { array: id, task },
        _ => JobRef::Job(id),
    })
}
