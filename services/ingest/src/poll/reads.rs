//! Follow-up reads after a poll: full records, reads by id, and lookups left to accounting.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_events::RunKey;
use slurm_client::{JobLookup, JobRecord};
use slurm_types::JobId;

use super::Poller;
use super::selection::{ArrayRecord, ChangedJobs, OpenArray, absent};
use crate::Error;
use crate::collector::TracedObservation;
use crate::domain::Observation;
use crate::envelope::Cause;
use crate::job_queries::JobQueries;
use crate::sources::unless_stopped;

/// Maximum number of records per batch. All facts of a batch are in memory at once, and doorbells wait meanwhile.
const MAX_RECORDS_PER_BATCH: usize = 500;

impl<S: JobQueries> Poller<S> {
    /// Reads and applies the full records of changed jobs. Returns how long to wait if Slurm did not answer.
    pub(super) async fn read(
        &self,
        cause: &Cause,
        mut changed: ChangedJobs,
    ) -> Result<Option<Duration>, Error> {
        if changed.order.is_empty() {
            return Ok(None);
        }
        let ids = std::mem::take(&mut changed.order);
        let mut answer = match unless_stopped(&self.shutdown, self.slurm.job_pages(ids)).await? {
            Ok(answer) => answer,
            Err(error) => return self.unavailable(&error).await.map(Some),
        };
        for (id, problem) in answer.unclear() {
            tracing::debug!(
                job.id = id.get(),
                problem,
                "job record unclear, retried at the next poll"
            );
        }
        loop {
            let records = match answer.next(MAX_RECORDS_PER_BATCH) {
                Ok(records) if records.is_empty() => return Ok(None),
                Ok(records) => records,
                Err(error) => return self.unavailable(&error).await.map(Some),
            };
            let readings = records
                .iter()
                .filter_map(|record| self.reading(record, &changed));
            let follow_ups = self.collector.absorb(cause, readings.collect()).await?;
            // Starts before this process began say nothing about hooks.
            if self.live {
                self.hooks.found_by_poll(follow_ups.starts);
            }
            for id in follow_ups.accounting {
                self.lookups.ask(id).await;
            }
        }
    }

    /// Converts a record to an observation with the digest of its row.
    fn reading(&self, record: &JobRecord, changed: &ChangedJobs) -> Option<TracedObservation> {
        let observation = Observation::from_controller(&self.collector.cluster, record)?;
        Some(TracedObservation {
            digest: changed.digest(&observation),
            ..TracedObservation::new(observation)
        })
    }

    /// Determines what became of jobs that the answer lacks. Returns how long to wait if Slurm did not answer.
    pub(super) async fn resolve_missing(
        &self,
        cause: &Cause,
        missing: &[JobId],
    ) -> Result<Option<Duration>, Error> {
        if missing.is_empty() {
            return Ok(None);
        }
        let answer = match unless_stopped(&self.shutdown, self.slurm.jobs(missing)).await? {
            Ok(answer) => answer,
            Err(error) => return self.unavailable(&error).await.map(Some),
        };
        let found = answer
            .found
            .iter()
            .filter_map(|record| Observation::from_controller(&self.collector.cluster, record));
        let missing_ids: BTreeSet<u32> = missing.iter().map(|id| id.get()).collect();
        let readings = found
            .filter(|observation| missing_ids.contains(&observation.raw_id))
            .map(TracedObservation::new)
            .collect();
        self.collector.absorb(cause, readings).await?;
        // Accounting's record of an end suffices; without one, they are read by id in turn.
        for id in answer.unlisted {
            self.lookups.ask(id.get()).await;
        }
        for id in answer.missing {
            if self.collector.missing(id.get()).await? {
                self.lookups.ask(id.get()).await;
            }
        }
        Ok(None)
    }

    /// Resolves tasks that left their arrays' records. An array without a row is read by id, to determine whether its record is gone.
    /// Returns how long to wait if Slurm did not answer.
    pub(super) async fn settle(
        &mut self,
        cause: &Cause,
        arrays: Vec<OpenArray>,
    ) -> Result<Option<Duration>, Error> {
        let absent = absent(&arrays, &mut self.asked_arrays);
        let answer = match unless_stopped(&self.shutdown, self.slurm.jobs(&absent)).await? {
            Ok(answer) => answer,
            Err(error) => return self.unavailable(&error).await.map(Some),
        };
        for OpenArray { run, record } in arrays {
            let is_absent = match record {
                ArrayRecord::There => Some(false),
                ArrayRecord::Purged => Some(true),
                ArrayRecord::Absent => self.is_absent(&run, &answer),
            };
            // Unclear cases are retried at the next poll.
            if let Some(is_absent) = is_absent
                && self
                    .collector
                    .reconcile_array(cause, &run, is_absent)
                    .await?
            {
                self.lookups.ask(run.job_id).await;
            }
        }
        Ok(None)
    }

    /// Whether an array has no record of its own any more; `None` if the answer does not show it.
    fn is_absent(&self, array: &RunKey, answer: &JobLookup) -> Option<bool> {
        let of_array = |record: &&JobRecord| {
            let ids = [record.job_id, record.array_job_id];
            ids.contains(&JobId::new(array.job_id))
        };
        let mut records = answer.found.iter().filter(of_array).peekable();
        if records.peek().is_none() {
            let missing = answer.missing.iter();
            return missing
                .into_iter()
                .any(|id| id.get() == array.job_id)
                .then_some(true);
        }
        let own = |record: &JobRecord| {
            let observation = Observation::from_controller(&self.collector.cluster, record);
            observation.is_some_and(|observation| observation.run == *array)
        };
        Some(!records.any(own))
    }
}
