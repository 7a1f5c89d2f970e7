//! Jobs that no poll has shown: their ids are missing between two ids that were seen.
//!
//! A job that is held, or waits for another job, never becomes eligible. Accounting does not list such jobs by time (`sacct -S`, 22.05 to
//! 26.05), but finds them by id once they have ended. An id without any record is no error: a submission that is only tested (`sbatch
//! --test-only`) uses one up (22.05).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_events::RunKey;
use slurm_client::{AccountingQuery, AccountingRecord, UsageRecord};
use slurm_types::{JobId, JobRef};
use tokio::time::Instant;

use super::request::{Answer, FailurePause};
use super::{CatchUp, LOOKUP_INTERVAL};
use crate::adapters::capture_state::UnseenRange;
use crate::collector::TracedObservation;
use crate::domain::{Owner, fold, provisional};
use crate::envelope::Cause;
use crate::job_queries::JobQueries;
use crate::sources::SLURMDBD_BACKLOG_WAIT;
use crate::{Error, metrics};

/// Maximum number of ids per request.
pub(crate) const MAX_IDS_PER_LOOKUP: usize = 1_000;
/// Shortest pause between two lookups of an id.
const MIN_PAUSE: Duration = Duration::from_secs(2);

/// Smallest part of a request that is divided because its answer takes too long.
const MIN_PART: usize = 8;

/// The lookups of ids that no poll has shown.
#[derive(Debug, Default)]
pub(super) struct UnseenIds {
    /// When the ids of a range are looked up next, and how often they were, by its first id.
    due: BTreeMap<u32, (Instant, u32)>,
    /// Ids that need no more lookups.
    closed: BTreeSet<u32>,
}

impl UnseenIds {
    /// Adds new ranges, and removes those that are looked up no more.
    fn update(&mut self, ranges: &[UnseenRange]) {
        let before = std::mem::take(&mut self.due);
        for range in ranges {
            let known = before.get(&range.first).copied();
            // After a restart: a lookup so soon after the last one would be in vain.
            let pause = SLURMDBD_BACKLOG_WAIT * u32::from(range.waited > 0);
            let new = || (Instant::now() + pause, 0);
            self.due.insert(range.first, known.unwrap_or_else(new));
        }
    }

    fn next(&self) -> Option<Instant> {
        self.due.values().map(|(due, _)| *due).min()
    }

    /// Whether no lookup of a range has been answered in this process.
    fn is_new(&self, range: &UnseenRange) -> bool {
        self.due
            .get(&range.first)
            .is_none_or(|(_, lookups)| *lookups == 0)
    }

    /// Schedules the next lookup, after pauses that grow up to what is left of the wait.
    fn postpone(&mut self, range: &UnseenRange, left: Duration) {
        let (_, lookups) = self
            .due
            .get(&range.first)
            .copied()
            .unwrap_or((Instant::now(), 0));
        let lookups = lookups + 1;
        let pause = (SLURMDBD_BACKLOG_WAIT * lookups).min(left.max(MIN_PAUSE));
        self.due
            .insert(range.first, (Instant::now() + pause, lookups));
    }
}

impl<S: JobQueries> CatchUp<S> {
    /// Looks up every id that is due and still unknown. Returns when the next lookup is due.
    pub(super) async fn look_up(&self, unseen: &mut UnseenIds) -> Result<Option<Instant>, Error> {
        let mut ranges = self.collector.unseen().await;
        unseen.update(&ranges);
        let now = Instant::now();
        ranges.retain(|range| unseen.due[&range.first].0 <= now);
        if ranges.is_empty() {
            return Ok(unseen.next());
        }
        let mut ids = BTreeSet::new();
        for range in &ranges {
            for id in self.collector.unknown_of(*range).await {
                if !unseen.closed.contains(&id) {
                    ids.insert(id);
                }
            }
        }
        let (found, open) = self.look_up_batch(&ids).await?;
        let closed = ids.iter().filter(|id| !open.contains_key(id));
        unseen.closed.extend(closed);
        if !ids.is_empty() {
            let (ids, open) = (ids.len(), open.len());
            tracing::info!(ids, found, open, "unseen job ids looked up in accounting");
        }
        for range in ranges {
            if range.waited == 0 && unseen.is_new(&range) {
                let of_range = ids.range(range.first..=range.last);
                metrics::unseen(of_range.count());
            }
            let is_open = open.range(range.first..=range.last).next().is_some();
            let left = match is_open {
                true => self.collector.unseen_answered(range).await,
                false => None,
            };
            if let Some(left) = left {
                unseen.postpone(&range, left);
            } else {
                let alive = open.range(range.first..=range.last);
                let alive: Vec<(RunKey, Owner)> =
                    alive.filter_map(|(_, run)| run.clone()).collect();
                self.collector.remove_unseen(range, &alive).await?;
                let is_in = |id: &u32| (range.first..=range.last).contains(id);
                unseen.closed.retain(|id| !is_in(id));
                unseen.due.remove(&range.first);
            }
        }
        self.collector.flush().await?;
        Ok(unseen.next())
    }

    /// Looks up ids. Returns the number of ends found, and the ids whose end may still arrive,
    /// with the run if accounting has one.
    async fn look_up_batch(
        &self,
        ids: &BTreeSet<u32>,
    ) -> Result<(usize, BTreeMap<u32, Option<(RunKey, Owner)>>), Error> {
        let (mut found, mut open) = (0, BTreeMap::new());
        let capture_since = self.collector.state().await.capture.capture_since;
        let all: Vec<u32> = ids.iter().copied().collect();
        for some in all.chunks(MAX_IDS_PER_LOOKUP) {
            let rows = self.rows_of(some).await?;
            for job_id in provisional(&rows) {
                self.lookups.ask(job_id).await;
            }
            let (ended, alive): (Vec<_>, Vec<_>) = fold(&self.collector.cluster, &rows)
                .into_iter()
                .partition(|run| run.end_kind().is_some());
            let with_row: BTreeSet<u32> = rows
                .iter()
                .filter_map(|row| row.job_id.map(JobId::get))
                .collect();
            let without_row = some.iter().filter(|id| !with_row.contains(id));
            open.extend(without_row.map(|id| (*id, None)));
            open.extend(
                alive
                    .into_iter()
                    .map(|row| (row.raw_id, Some((row.run, row.owner)))),
            );
            found += ended.len();
            let ended = ended
                .into_iter()
                .filter(|run| run.end.is_some_and(|end| end >= capture_since));
            let ended = self.with_codes(ended.collect(), false).await?;
            let readings = ended.into_iter().map(TracedObservation::new).collect();
            self.collector
                .apply_until_stored(&Cause::Accounting, readings)
                .await?;
            self.pause(LOOKUP_INTERVAL).await?;
        }
        Ok((found, open))
    }

    pub(crate) async fn rows_of(&self, ids: &[u32]) -> Result<Vec<AccountingRecord>, Error> {
        let ids: Vec<JobId> = ids.iter().filter_map(|id| JobId::new(*id)).collect();
        let ask = |part: Vec<JobId>| async move {
            self.slurm.accounting(&AccountingQuery::Jobs(part)).await
        };
        self.answered(&ids, ask).await
    }

    pub(crate) async fn usage_of(&self, jobs: &[JobRef]) -> Result<Vec<UsageRecord>, Error> {
        let ask = |part: Vec<JobRef>| async move { self.slurm.usage(&part).await };
        self.answered(jobs, ask).await
    }

    /// Repeats a request until accounting has answered for everything, in smaller parts if an answer is too large.
    async fn answered<Q: Clone, T, F>(
        &self,
        mut left: &[Q],
        ask: impl Fn(Vec<Q>) -> F,
    ) -> Result<Vec<T>, Error>
    where
        F: Future<Output = Result<Vec<T>, slurm_client::Error>>,
    {
        let (mut size, mut answers) = (left.len(), Vec::new());
        while !left.is_empty() {
            let (part, rest) = left.split_at(size.min(left.len()));
            let is_too_large =
                |error: &slurm_client::Error| error.is_too_much() && part.len() > MIN_PART;
            let ask = || async {
                Some(match ask(part.to_vec()).await {
                    // An answer about one job that is too large is none.
                    Err(slurm_client::Error::TooLarge { .. }) if part.len() == 1 => Ok(Vec::new()),
                    answer => answer,
                })
            };
            let pause = FailurePause::UntilAvailable;
            match self.ask_until_answered(ask, is_too_large, pause).await? {
                Answer::Complete { answer, .. } => {
                    answers.extend(answer);
                    left = rest;
                    size *= 2;
                }
                Answer::TooLarge(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        jobs = part.len(),
                        "accounting lookup too large, repeated in parts"
                    );
                    size = part.len().div_ceil(4);
                }
                Answer::Pointless => return Ok(answers),
            }
            if !left.is_empty() {
                self.pause(LOOKUP_INTERVAL).await?;
            }
        }
        Ok(answers)
    }
}
