//! Full records of jobs over REST: one by one, or from a list of all jobs.

use std::{collections::BTreeSet, num::NonZeroU32};

use slurm_types::JobId;

use super::{Family, JOB, JOBS, Rest, nothing};
use crate::{
    Error, JobLookup, JobPages, JobRecord,
    cli::{belongs_to, sort_into},
    drift::DriftLog,
    json, metrics,
    parse::{ParsedJobs, Rejected},
};

/// This many jobs are looked up one by one, however short the queue is: a lookup tells whether a job is there, a list only shows it.
const MIN_SINGLE_LOOKUPS: usize = 16;
/// A job in the list costs 0.4 to 0.8 ms, a single lookup 2 to 5 ms (22.05, 26.05).
const LISTED_JOBS_PER_LOOKUP: usize = 8;
/// Jobs of a list received per second.
const LISTED_JOBS_PER_SECOND: usize = 1_600;

/// Limit of jobs of a queue that are looked up one by one: while that costs Slurm less than the list of all jobs, and takes no longer at
/// the permitted rate.
fn max_single_lookups(queue: usize, per_second: NonZeroU32) -> usize {
    let cheaper = queue / LISTED_JOBS_PER_LOOKUP;
    let sooner = queue.saturating_mul(per_second.get() as usize) / LISTED_JOBS_PER_SECOND;
    MIN_SINGLE_LOOKUPS.max(cheaper.min(sooner))
}

impl Rest {
    /// Full records of these jobs.
    pub(crate) async fn jobs(&self, order: &[JobId]) -> Result<JobLookup, Error> {
        let ids: BTreeSet<JobId> = order.iter().copied().collect();
        let mut answer = JobLookup::default();
        let (by_id, absent) =
            if ids.len() > max_single_lookups(self.cached_queue().rows(), self.pace) {
                let before = self.newest();
                let (records, envelope) = self
                    .list(JOBS, Family::Controller, "jobs", "", json::job)
                    .await?
                    .ok_or_else(|| nothing(JOBS))?;
                self.check_age(JOBS, before, &envelope)?;
                let text = text(records, &self.drifts);
                sort_into(&mut answer, order, text, JobLookup::MAX_SINGLE)
            } else {
                (ids.into_iter().collect(), BTreeSet::new())
            };
        for id in by_id {
            self.one_job(id, &mut answer).await?;
        }
        answer.check_list(&absent);
        Ok(answer)
    }

    /// Full records of exactly these jobs, in pages.
    pub(crate) async fn job_pages(&self, order: Vec<JobId>) -> Result<JobPages, Error> {
        let answer = self.jobs(&order).await?;
        Ok(JobPages::of(order, answer))
    }

    async fn one_job(&self, id: JobId, answer: &mut JobLookup) -> Result<(), Error> {
        let before = self.newest();
        let found = self
            .list(
                JOB,
                Family::Controller,
                "job/{job_id}",
                &id.to_string(),
                json::job,
            )
            .await?;
        let Some((records, envelope)) = found else {
            answer.missing.push(id);
            return Ok(());
        };
        if let Err(error) = self.check_age(JOB, before, &envelope) {
            answer.unclear.push((id, error.to_string()));
            return Ok(());
        }
        let ParsedJobs { records, unclear } = text(records, &self.drifts);
        metrics::unread(JOB, unclear.len());
        let found: Vec<JobRecord> = records
            .into_iter()
            .filter(|record| belongs_to(record, id))
            .collect();
        let unclear: Vec<_> = unclear
            .into_iter()
            .map(|(id, rejected)| (id, rejected.problem.to_owned()))
            .collect();
        if found.is_empty() && unclear.is_empty() {
            let why = "the answer has no record of it";
            answer.unclear.push((id, why.to_owned()));
        }
        answer.found.extend(found);
        answer.unclear.extend(unclear);
        Ok(())
    }
}

/// Records, and ids for which the response proves nothing.
fn text(
    records: Vec<Result<JobRecord, (Option<JobId>, Rejected)>>,
    drifts: &DriftLog,
) -> ParsedJobs {
    let mut text = ParsedJobs::default();
    for record in records {
        drifts.job(record.as_ref().map_err(|(_, rejected)| rejected));
        match record {
            Ok(record) => text.records.push(record),
            Err((Some(id), rejected)) => text.unclear.push((id, rejected)),
            Err((None, _)) => metrics::unread(JOBS, 1),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_asked_for_when_it_is_cheaper_or_sooner() {
        let max_jobs =
            |queue, per_second| max_single_lookups(queue, NonZeroU32::new(per_second).unwrap());
        assert_eq!(max_jobs(0, 20), 16);
        assert_eq!(max_jobs(500, 20), 16);
        // 1,250 would be cheaper for Slurm, but take a minute at 20 a second; the list of 10,000 takes six seconds.
        assert_eq!(max_jobs(10_000, 20), 125);
        assert_eq!(max_jobs(10_000, 1_000), 1_250);
    }
}
