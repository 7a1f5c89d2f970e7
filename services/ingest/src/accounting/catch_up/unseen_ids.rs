//! Jobs that no poll has shown: their ids are missing between two ids that were seen.
//!
//! A job that is held, or waits for another job, never becomes eligible. Accounting does not list such jobs by time (`sacct -S`, 22.05 to
//! 26.05), but finds them by id once they have ended. An id without any record is no error: a submission that is only tested (`sbatch
//! --test-only`) uses one up (22.05).

use std::collections::BTreeSet;

use slurm_client::{AccountingQuery, AccountingRecord, UsageRecord};
use slurm_types::{JobId, JobRef};

use super::{CatchUp, LOOKUP_INTERVAL, SLURMDBD_BACKLOG_WAIT};
use crate::collector::{TracedObservation, Unseen};
use crate::domain::{fold, provisional};
use crate::envelope::Cause;
use crate::sources::{RequestCost, backoff, unless_stopped};
use crate::{Error, metrics};

/// Maximum number of ids per request.
pub(crate) const MAX_IDS_PER_LOOKUP: usize = 1_000;
/// Maximum number of lookups of an id that no poll has shown and that has not ended according to accounting. Its end may still arrive.
const MAX_LOOKUPS_PER_ID: u32 = 4;

impl CatchUp {
    /// Looks up every id of the range that is still unknown.
    pub(super) async fn look_up(&self, range: Unseen) -> Result<(), Error> {
        let ids: Vec<u32> = self.collector.unknown_of(range).await;
        let (mut found, mut open) = self.look_up_batch(&ids).await?;
        for _ in 1..MAX_LOOKUPS_PER_ID {
            if open.is_empty() {
                break;
            }
            self.pause(SLURMDBD_BACKLOG_WAIT).await?;
            let mut unknown = self.collector.unknown_of(range).await;
            unknown.retain(|id| open.contains(id));
            let more;
            (more, open) = self.look_up_batch(&unknown).await?;
            found += more;
        }
        if !ids.is_empty() {
            tracing::info!(
                ids = ids.len(),
                found,
                "unseen job ids looked up in accounting"
            );
            metrics::unseen(ids.len());
        }
        self.collector.remove_unseen(range).await;
        self.collector.flush().await
    }

    /// Looks up ids once. Returns the number of ends found, and the ids that have not ended according to accounting.
    async fn look_up_batch(&self, ids: &[u32]) -> Result<(usize, BTreeSet<u32>), Error> {
        let (mut found, mut open) = (0, BTreeSet::new());
        let capture_since = self.collector.core().await.meta.capture_since;
        for some in ids.chunks(MAX_IDS_PER_LOOKUP) {
            let rows = self.rows_of(some).await?;
            for job_id in provisional(&rows) {
                self.lookups.ask(job_id).await;
            }
            let (ended, alive): (Vec<_>, Vec<_>) = fold(&self.collector.cluster, &rows)
                .into_iter()
                .partition(|run| run.end_kind().is_some());
            open.extend(alive.iter().map(|run| run.raw_id));
            found += ended.len();
            let ended = ended
                .into_iter()
                .filter(|run| run.end.is_some_and(|end| end >= capture_since));
            let ended = self.with_codes(ended.collect(), false).await?;
            let readings = ended.into_iter().map(TracedObservation::new).collect();
            self.collector.absorb(&Cause::Accounting, readings).await?;
            self.pause(LOOKUP_INTERVAL).await?;
        }
        Ok((found, open))
    }

    pub(crate) async fn rows_of(&self, ids: &[u32]) -> Result<Vec<AccountingRecord>, Error> {
        let query = AccountingQuery::Jobs(ids.iter().filter_map(|id| JobId::new(*id)).collect());
        self.answered(|| self.slurm.accounting(&query)).await
    }

    pub(crate) async fn usage_of(&self, jobs: &[JobRef]) -> Result<Vec<UsageRecord>, Error> {
        self.answered(|| self.slurm.usage(jobs)).await
    }

    /// Retries a request until accounting answers.
    async fn answered<T, PendingArrayLookup>(
        &self,
        ask: impl Fn() -> PendingArrayLookup,
    ) -> Result<T, Error>
    where
        PendingArrayLookup: Future<Output = Result<T, slurm_client::Error>>,
    {
        let (mut failures, mut unavailable) = (0, false);
        loop {
            match unless_stopped(&self.shutdown, ask()).await? {
                Ok(_) if std::mem::take(&mut unavailable) => {
                    self.slurmdbd.up(RequestCost::Heavy).await?;
                    self.pause(SLURMDBD_BACKLOG_WAIT).await?;
                }
                Ok(answer) => {
                    self.slurmdbd.up(RequestCost::Heavy).await?;
                    return Ok(answer);
                }
                Err(error) => {
                    self.slurmdbd.down(RequestCost::Heavy, &error).await?;
                    (unavailable, failures) = (true, failures + 1);
                    self.pause(backoff(failures)).await?;
                }
            }
        }
    }
}
