//! Reads the usage of ended runs from accounting: some time after their end, in batches, and repeatedly until it is complete.

use std::sync::Arc;
use std::time::Duration;

use slurm_client::Slurm;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::accounting::rate_limit::AccountingRateLimit;
use crate::collector::Collector;
use crate::domain::usages;
use crate::job_queries::JobQueries;
use crate::sources::{RequestCost, SlurmSource};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of runs per request. Other lookups wait as long as the answer takes.
const MAX_RUNS_PER_LOOKUP: usize = 500;
/// Batch size at which a timeout means that accounting is unavailable rather than slow.
const TIMEOUT_RUNS: usize = 8;

/// Reconciles the usage of ended runs.
pub struct UsageReconciler<S = Slurm> {
    /// Slurm client.
    pub slurm: S,
    /// Applies observations and holds the run store.
    pub collector: Collector,
    /// Availability of slurmdbd.
    pub slurmdbd: Arc<SlurmSource>,
    /// Rate limit of accounting requests.
    pub rate_limit: Arc<AccountingRateLimit>,
    /// Signals shutdown.
    pub shutdown: CancellationToken,
}

impl<S: JobQueries> UsageReconciler<S> {
    /// Reconciles usage until shutdown.
    ///
    /// # Errors
    /// If another ingest has taken over.
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
            let _permit = self.rate_limit.next().await;
            self.slurm.usage(&jobs).await
        };
        // Only the request is cancelled: what the run store has must be published.
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
            // The runs stay due.
            Err(error) if error.is_too_much() && due.len() > TIMEOUT_RUNS => {
                *at_once = (due.len() / 4).max(TIMEOUT_RUNS);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    runs = *at_once,
                    "accounting lookup too large, batch size reduced"
                );
                Ok(POLL_INTERVAL)
            }
            Err(error) => self.slurmdbd.down(RequestCost::Light, &error).await,
        }
    }
}
