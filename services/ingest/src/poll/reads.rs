//! Follow-up reads after a poll: full records, reads by id, and lookups left to accounting.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_events::RunKey;
use slurm_client::{JobLookup, JobRecord};
use slurm_types::JobId;

use super::Poller;
use super::selection::{ArrayRecord, ChangedJobs, OpenArray, Rotation, absent, due_first};
use crate::Error;
use crate::collector::{ArrayPresence, MissingJob, TracedObservation};
use crate::domain::Observation;
use crate::envelope::Cause;
use crate::job_queries::JobQueries;
use crate::sources::unless_stopped;

/// Maximum number of records per batch. All facts of a batch are in memory at once, and doorbells wait meanwhile.
const MAX_RECORDS_PER_BATCH: usize = 500;
/// Maximum number of missing jobs per poll that accounting is asked about, and of gaps about them. The others follow at the next polls.
const MAX_MISSING_PER_POLL: usize = 1_000;

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
            let follow_ups = self.collector.apply(cause, readings.collect()).await?;
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
        &mut self,
        cause: &Cause,
        missing: &BTreeSet<JobId>,
    ) -> Result<Option<Duration>, Error> {
        if missing.is_empty() {
            return Ok(None);
        }
        let order = self.rotations.jobs.order(missing);
        let due = self.collector.due_jobs(missing).await;
        let asked = due_first(&order, &due);
        let answer = match unless_stopped(&self.shutdown, self.slurm.jobs(&asked)).await? {
            Ok(answer) => answer,
            Err(error) => return self.unavailable(&error).await.map(Some),
        };
        let found = answer
            .found
            .iter()
            .filter_map(|record| Observation::from_controller(&self.collector.cluster, record));
        let readings = found
            .filter(|observation| {
                JobId::new(observation.raw_id).is_some_and(|id| missing.contains(&id))
            })
            .map(TracedObservation::new)
            .collect();
        self.collector.apply(cause, readings).await?;
        let unlisted: BTreeSet<JobId> = answer.unlisted.iter().copied().collect();
        let unclear = answer.unclear.iter().map(|(id, _)| *id);
        let unread = unlisted.iter().copied().chain(unclear).collect();
        self.rotations.jobs.were_read(&order, &unread);
        let (mut ask, mut gaps) = (BTreeSet::new(), 0);
        // What a list lacks may be read by id later, but waits from now on.
        for id in answer.missing.into_iter().chain(unlisted) {
            match self.collector.missing(id.get()).await? {
                MissingJob::Open => drop(ask.insert(id)),
                MissingJob::Closed => gaps += 1,
                // Each attempt may take its time limit.
                MissingJob::NotStored => break,
            }
            if gaps >= MAX_MISSING_PER_POLL {
                break;
            }
        }
        let ask = self
            .rotations
            .jobs_in_accounting
            .next(&ask, MAX_MISSING_PER_POLL);
        for id in ask {
            self.lookups.ask(id.get()).await;
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
        let absent = absent(&arrays);
        let order = self.rotations.arrays.order(&absent);
        let due = self.collector.due_arrays(&absent).await;
        let asked = due_first(&order, &due);
        let answer = match unless_stopped(&self.shutdown, self.slurm.jobs(&asked)).await? {
            Ok(answer) => answer,
            Err(error) => return self.unavailable(&error).await.map(Some),
        };
        let unlisted: BTreeSet<JobId> = answer.unlisted.iter().copied().collect();
        let unclear = answer.unclear.iter().map(|(id, _)| *id);
        let unread = unlisted.iter().copied().chain(unclear).collect();
        self.rotations.arrays.were_read(&order, &unread);
        // No poll reads an array of which it has no row.
        let found = answer
            .found
            .iter()
            .filter_map(|record| Observation::from_controller(&self.collector.cluster, record));
        let found = found.filter(|found| {
            let mut open = arrays.iter();
            open.any(|array| array.record == ArrayRecord::Absent && array.run == found.run)
        });
        let readings = found.map(TracedObservation::new).collect();
        self.collector.apply(cause, readings).await?;
        let mut ask = BTreeSet::new();
        for OpenArray { run, record } in arrays {
            let presence = match record {
                ArrayRecord::There => Some(ArrayPresence::There),
                ArrayRecord::Purged => Some(ArrayPresence::Absent),
                ArrayRecord::Absent => self.presence(&run, &answer, &unlisted),
            };
            // Unclear cases are retried at the next poll.
            if let Some(presence) = presence
                && self
                    .collector
                    .reconcile_array(cause, &run, presence)
                    .await?
            {
                ask.extend(JobId::new(run.job_id));
            }
        }
        let ask = self
            .rotations
            .arrays_in_accounting
            .next(&ask, MAX_MISSING_PER_POLL);
        for id in ask {
            self.lookups.ask(id.get()).await;
        }
        Ok(None)
    }

    /// Asks accounting about runs that could not be published yet, if this poll has shown none of them.
    pub(super) async fn look_up_unpublished(
        &mut self,
        shown: &BTreeSet<(u32, i64)>,
    ) -> Result<(), Error> {
        let ask = self.collector.unpublished(shown).await?;
        let ask = self.rotations.unpublished.next(&ask, MAX_MISSING_PER_POLL);
        for id in ask {
            self.lookups.ask(id.get()).await;
        }
        Ok(())
    }

    /// Whether an array has a record of its own; `None` if the answer does not show it.
    fn presence(
        &self,
        array: &RunKey,
        answer: &JobLookup,
        unlisted: &BTreeSet<JobId>,
    ) -> Option<ArrayPresence> {
        let id = JobId::new(array.job_id)?;
        let of_array = |record: &&JobRecord| {
            let ids = [record.job_id, record.array_job_id];
            ids.contains(&Some(id))
        };
        let mut records = answer.found.iter().filter(of_array).peekable();
        if records.peek().is_none() {
            return if answer.missing.contains(&id) {
                Some(ArrayPresence::Absent)
            } else {
                unlisted.contains(&id).then_some(ArrayPresence::Unlisted)
            };
        }
        let own = |record: &JobRecord| {
            let observation = Observation::from_controller(&self.collector.cluster, record);
            observation.is_some_and(|observation| observation.run == *array)
        };
        Some(match records.any(own) {
            true => ArrayPresence::There,
            false => ArrayPresence::Absent,
        })
    }
}

/// Which of what polls lack is asked about next.
#[derive(Clone, Copy, Debug, Default)]
pub struct LookupRotations {
    /// Missing jobs that are read by id.
    jobs: Rotation,
    /// Missing jobs that accounting is asked about.
    jobs_in_accounting: Rotation,
    /// Arrays without a row that are read by id.
    arrays: Rotation,
    /// Arrays that accounting is asked about.
    arrays_in_accounting: Rotation,
    /// Jobs of runs that are not published yet.
    unpublished: Rotation,
}
