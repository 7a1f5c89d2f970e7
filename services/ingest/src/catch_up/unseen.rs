//! Jobs that no sweep has shown: their ids are missing between two that were seen.
//!
//! A job that is held, or waits for another job, never becomes eligible, and accounting does not list what never became eligible by time
//! (`sacct -S`, 22.05 to 26.05). Asked by its id it tells of it, once it has ended. An id without any record is no fault: a
//! submission that is only tested (`sbatch --test-only`) uses one up (22.05).

use std::time::Duration;

use slurm_client::{AccountingRecord, Query};
use slurm_types::JobId;

use super::CatchUp;
use crate::collector::{Reading, Unseen};
use crate::domain::{fold, provisional};
use crate::envelope::Cause;
use crate::sources::{Weight, backoff};
use crate::{Error, metrics};

/// Ids in one question.
const AT_ONCE: usize = 1_000;
/// Between two questions.
const APART: Duration = Duration::from_secs(1);

impl CatchUp {
    /// Asks accounting about every id of the range that is still not known.
    pub(super) async fn look_up(&self, range: Unseen) -> Result<(), Error> {
        let ids: Vec<u32> = self.collector.unknown_of(range).await;
        let (mut found, capture_since) = (0, self.collector.core().await.meta.capture_since);
        for some in ids.chunks(AT_ONCE) {
            let rows = self.rows_of(some).await?;
            for job_id in provisional(&rows) {
                self.ask(job_id).await;
            }
            found += rows.len();
            let ended = fold(&self.collector.cluster, &rows)
                .into_iter()
                .filter(|run| {
                    run.end_kind().is_some() && run.end.is_some_and(|end| end >= capture_since)
                });
            let readings = ended.map(Reading::new).collect();
            self.collector.absorb(&Cause::Accounting, readings).await?;
            self.pause(APART).await?;
        }
        if !ids.is_empty() {
            tracing::info!(
                ids = ids.len(),
                found,
                "ids that no sweep has shown were looked up"
            );
            metrics::unseen(ids.len());
        }
        self.collector.looked_up(range).await;
        self.collector.flush().await
    }

    async fn rows_of(&self, ids: &[u32]) -> Result<Vec<AccountingRecord>, Error> {
        let query = Query::Jobs(ids.iter().filter_map(|id| JobId::new(*id)).collect());
        let mut failures = 0;
        loop {
            match self.slurm.accounting(&query).await {
                Ok(rows) => {
                    self.slurmdbd.up(Weight::Heavy).await?;
                    return Ok(rows);
                }
                Err(error) => {
                    self.slurmdbd.down(Weight::Heavy, &error).await?;
                    failures += 1;
                    self.pause(backoff(failures)).await?;
                }
            }
        }
    }

    async fn pause(&self, pause: Duration) -> Result<(), Error> {
        tokio::select! {
            () = self.shutdown.cancelled() => Err(Error::Stopped),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }
}
