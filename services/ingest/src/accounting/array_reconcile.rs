//! Asks accounting which tasks arrays were submitted with: a waiting task that is cancelled alone leaves slurmctld's record without a trace,
//! also before ingest has seen it for the first time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use slurm_client::Slurm;
use slurm_types::JobId;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::accounting::rate_limit::AccountingRateLimit;
use crate::collector::Collector;
use crate::sources::{RequestCost, SlurmSource, unless_stopped};

/// Between two looks at what is due.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Most arrays in one question: each may have very many tasks.
const MAX_ARRAYS_PER_LOOKUP: usize = 50;

/// Compares arrays with what was submitted.
pub struct ArrayReconciler {
    /// Slurm, with a deadline for long answers.
    pub slurm: Slurm,
    /// The run store.
    pub collector: Collector,
    /// Accounting's health.
    pub slurmdbd: Arc<SlurmSource>,
    /// Whose turn it is to ask accounting.
    pub turns: Arc<AccountingRateLimit>,
    /// Stop.
    pub shutdown: CancellationToken,
}

impl ArrayReconciler {
    /// Compares until shutdown.
    ///
    /// # Errors
    /// If another ingest took over.
    pub async fn run(self) -> Result<(), Error> {
        if !self.collector.config.accounting {
            return Ok(());
        }
        let mut pause = POLL_INTERVAL;
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
            pause = match self.compare().await {
                Ok(pause) => pause,
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    async fn compare(&self) -> Result<Duration, Error> {
        // What it owes about the time before is asked first: that shows tasks that are over.
        if self.collector.backlog().await.is_some() {
            return Ok(POLL_INTERVAL);
        }
        let due = self.collector.arrays_due(MAX_ARRAYS_PER_LOOKUP).await;
        let ids: BTreeSet<JobId> = due
            .iter()
            .filter_map(|array| JobId::new(array.job_id))
            .collect();
        if ids.is_empty() {
            return Ok(POLL_INTERVAL);
        }
        let ids: Vec<JobId> = ids.into_iter().collect();
        let ask = async {
            let _turn = self.turns.next().await;
            self.slurm.submitted(&ids).await
        };
        match unless_stopped(&self.shutdown, ask).await? {
            Ok(answer) => {
                self.slurmdbd.up(RequestCost::Light).await?;
                self.collector.submitted(&due, &answer).await?;
                Ok(POLL_INTERVAL)
            }
            // What is due stays so.
            Err(error) => self.slurmdbd.down(RequestCost::Light, &error).await,
        }
    }
}
