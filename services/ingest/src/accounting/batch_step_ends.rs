//! Ends that accounting has overwritten: its row of a finished job that was requeued has state REQUEUED (22.05 and 24.11).
//!
//! The steps of a run show whether its row was overwritten. How the run ended, only its doorbell reports. Since an end is published once,
//! ingest waits for that doorbell. One that comes later corrects the end.

use std::collections::HashSet;

use slurm_client::Slurm;
use slurm_types::{JobId, JobRef};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::accounting::exit_codes::{CompletedRuns, in_order};
use crate::accounting::rate_limit::AccountingRateLimit;
use crate::collector::Collector;
use crate::domain::{Observation, run_of, usages};
use crate::job_queries::JobQueries;
use crate::sources::unless_stopped;

/// Reads the steps of requeued runs from accounting.
pub struct BatchStepEnds<'a, S = Slurm> {
    /// Slurm client.
    pub slurm: &'a S,
    /// Holds the run store.
    pub collector: &'a Collector,
    /// Rate limit of accounting requests; `None` for callers that are not limited.
    pub rate_limit: Option<&'a AccountingRateLimit>,
    /// Signals shutdown.
    pub shutdown: &'a CancellationToken,
    /// Also completes ends that were already published, to republish them.
    pub republish: bool,
}

impl<S: JobQueries> BatchStepEnds<'_, S> {
    /// Completes requeued runs with their own ends. `reported` are the ends from doorbells. A run whose doorbell may still arrive stays
    /// open, with the end that its steps show. A run whose end was inferred and published is completed only by its doorbell.
    ///
    /// # Errors
    /// On shutdown.
    pub async fn complete(
        &self,
        completed: CompletedRuns,
        reported: &[Observation],
    ) -> Result<CompletedRuns, Error> {
        let CompletedRuns { runs, open } = completed;
        let (unconfirmed, mut runs, mut open) = {
            let state = self.collector.state().await;
            let is_due = |run: &Observation| {
                let known = state.run_store.get(&run_of(&state.run_store, run));
                let is_reported = reported.iter().any(|end| end.run == run.run);
                match known.filter(|known| known.end_kind().is_some()) {
                    Some(known) if !self.republish => is_reported && !known.has_certain_end(),
                    _ => true,
                }
            };
            let is_unconfirmed = |run: &Observation| {
                run.requeued && run.base.is_none() && run.allocated && is_due(run)
            };
            let (mut unconfirmed, runs): (Vec<_>, Vec<_>) =
                runs.into_iter().partition(is_unconfirmed);
            // Runs that wait for another one of their job are published with it.
            let (waiting, open): (Vec<_>, Vec<_>) = open.into_iter().partition(is_unconfirmed);
            unconfirmed.extend(waiting);
            (unconfirmed, runs, open)
        };
        let jobs: HashSet<JobRef> = unconfirmed.iter().filter_map(job_of).collect();
        if jobs.is_empty() {
            runs.extend(unconfirmed);
            return Ok(in_order(runs, open));
        }
        let jobs: Vec<JobRef> = jobs.into_iter().collect();
        let ask = async {
            let _permit = match self.rate_limit {
                Some(rate_limit) => Some(rate_limit.next().await),
                None => None,
            };
            self.slurm.usage(&jobs).await
        };
        // The caller that requested the runs notices and reports the failure.
        let Ok(records) = unless_stopped(self.shutdown, ask).await? else {
            let unread = unconfirmed.into_iter();
            open.extend(unread.map(Observation::with_unread_steps));
            return Ok(in_order(runs, open));
        };
        let steps = usages(&self.collector.cluster, &records);
        let state = self.collector.state().await;
        let is_published = |run: &Observation| {
            let known = state.run_store.get(&run_of(&state.run_store, run));
            !self.republish && known.is_some_and(|known| known.end_kind().is_some())
        };
        for mut run in unconfirmed {
            // Since its steps are read now.
            run.end_is_inferred = false;
            let observations = steps.iter().map(|settled| &settled.observation);
            let own = observations
                .filter(|observations| observations.run == run.run)
                .find_map(|observations| observations.own_end);
            let end =
                own.and_then(|own| reported.iter().find(|end| own.is_confirmed_by(&run, end)));
            match (own, end) {
                (_, Some(end)) => runs.push(run.completed_by(end, false)),
                (Some(own), None)
                    if !is_published(&run)
                        && (own.is_before_requeue(&run) || own.may_be_before_requeue(&run)) =>
                {
                    open.push(Observation {
                        own_end: Some(own),
                        ..run
                    });
                }
                _ => runs.push(run),
            }
        }
        Ok(in_order(runs, open))
    }
}

/// The job reference of a run, for a request of its steps.
fn job_of(run: &Observation) -> Option<JobRef> {
    let id = JobId::new(run.raw_id)?;
    Some(match run.run.task_id {
        Some(task) if run.raw_id == run.run.job_id => JobRef::ArrayTask { array: id, task },
        _ => JobRef::Job(id),
    })
}
