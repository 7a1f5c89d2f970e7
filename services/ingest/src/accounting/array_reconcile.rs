//! Asks accounting which tasks each array was submitted with.
//!
//! A waiting task that is cancelled alone leaves slurmctld's record without a trace, even before ingest has read that record for the first
//! time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use slurm_client::Slurm;
use slurm_types::JobId;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::accounting::rate_limit::AccountingRateLimit;
use crate::collector::Collector;
use crate::job_queries::JobQueries;
use crate::sources::{RequestCost, SlurmSource, unless_stopped};

const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of arrays per request. Each may have very many tasks.
const MAX_ARRAYS_PER_LOOKUP: usize = 50;

/// Compares the tasks seen of an array with the tasks that were submitted.
pub struct ArrayReconciler<S = Slurm> {
    /// Slurm client with the timeout for long answers.
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

impl<S: JobQueries> ArrayReconciler<S> {
    /// Reconciles arrays until shutdown.
    ///
    /// # Errors
    /// If another ingest has taken over.
    pub async fn run(self) -> Result<(), Error> {
        if !self.collector.config.accounting {
            return Ok(());
        }
        let (mut pause, mut at_once) = (POLL_INTERVAL, MAX_ARRAYS_PER_LOOKUP);
        let mut backlog_since = None;
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
            // The backlog comes first: it shows tasks that have ended. A long one must not keep the arrays waiting.
            let has_backlog = self.collector.has_backlog().await;
            backlog_since = has_backlog.then(|| backlog_since.unwrap_or_else(Instant::now));
            let priority = self.collector.config.backlog_priority();
            if backlog_since.is_some_and(|since| since.elapsed() < priority) {
                pause = POLL_INTERVAL;
                continue;
            }
            pause = match self.compare(&mut at_once).await {
                Ok(pause) => pause,
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    async fn compare(&self, at_once: &mut usize) -> Result<Duration, Error> {
        let due = self.collector.arrays_due(*at_once).await;
        let ids: BTreeSet<JobId> = due
            .iter()
            .filter_map(|array| JobId::new(array.job_id))
            .collect();
        if ids.is_empty() {
            return Ok(POLL_INTERVAL);
        }
        let ids: Vec<JobId> = ids.into_iter().collect();
        let ask = async {
            let _permit = self.rate_limit.next().await;
            self.slurm.submitted(&ids).await
        };
        match unless_stopped(&self.shutdown, ask).await? {
            Ok(answer) => {
                self.slurmdbd.up(RequestCost::Light).await?;
                *at_once = (*at_once * 2).min(MAX_ARRAYS_PER_LOOKUP);
                self.collector.submitted(&due, &answer).await?;
                Ok(POLL_INTERVAL)
            }
            Err(error) if error.is_too_much() && due.len() > 1 => {
                *at_once = (due.len() / 4).max(1);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    arrays = *at_once,
                    "accounting lookup too large, batch size reduced"
                );
                Ok(POLL_INTERVAL)
            }
            // Like an array that accounting lacks, so that the others have their turn.
            Err(slurm_client::Error::TooLarge { .. }) => {
                self.collector.submitted(&due, &[]).await?;
                Ok(POLL_INTERVAL)
            }
            // The arrays stay due.
            Err(error) => self.slurmdbd.down(RequestCost::Light, &error).await,
        }
    }
}
