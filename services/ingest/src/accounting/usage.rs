//! Asks accounting what ended runs used, a while after their end, many at once, and again until it is settled.

use std::sync::Arc;
use std::time::Duration;

use slurm_client::Slurm;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::accounting::rate_limit::AccountingRateLimit;
use crate::collector::Collector;
use crate::domain::usages;
use crate::sources::{RequestCost, SlurmSource};

/// Between two looks at what is due.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Most runs in one question: who waits for a proof waits as long as the answer takes.
const MAX_RUNS_PER_LOOKUP: usize = 500;
/// A question about so few runs that is not answered in time means that accounting is away, not that the answer is long.
const TIMEOUT_RUNS: usize = 8;

/// Settles the use of ended runs.
pub struct UsageReconciler {
    /// Slurm.
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

impl UsageReconciler {
    /// Settles until shutdown.
    ///
    /// # Errors
    /// If another ingest took over.
    pub async fn run(self) -> Result<(), Error> {
        if !self.collector.config.accounting {
            return Ok(());
        }
        let (mut pause, mut at_once) = (POLL_INTERVAL, MAX_RUNS_PER_LOOKUP);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
            pause = match self.settle(&mut at_once).await {
                Ok(pause) => pause,
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    async fn settle(&self, at_once: &mut usize) -> Result<Duration, Error> {
        let due = self.collector.usage_due(*at_once).await;
        if due.is_empty() {
            return Ok(POLL_INTERVAL);
        }
        let jobs: Vec<_> = due.iter().map(|due| due.job.clone()).collect();
        let ask = async {
            let _turn = self.turns.next().await;
            self.slurm.usage(&jobs).await
        };
        // Only the question is given up half way: what the run store has must be published.
        let answer = tokio::select! {
            () = self.shutdown.cancelled() => return Err(Error::Stopped),
            answer = ask => answer,
        };
        match answer {
            Ok(records) => {
                self.slurmdbd.up(RequestCost::Light).await?;
                *at_once = (*at_once * 2).min(MAX_RUNS_PER_LOOKUP);
                let settled = usages(&self.collector.cluster, &records);
                self.collector.usage_answered(&due, settled).await?;
                Ok(POLL_INTERVAL)
            }
            // What is due stays so.
            Err(slurm_client::Error::TimedOut { .. }) if due.len() > TIMEOUT_RUNS => {
                *at_once = (due.len() / 4).max(TIMEOUT_RUNS);
                tracing::warn!(
                    runs = *at_once,
                    "accounting lookup timed out, batch size reduced"
                );
                Ok(POLL_INTERVAL)
            }
            Err(error) => self.slurmdbd.down(RequestCost::Light, &error).await,
        }
    }
}
