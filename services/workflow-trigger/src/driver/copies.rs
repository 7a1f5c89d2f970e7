//! Cancels copies: a submission whose answer was lost may have been accepted after another one was recorded. Copies are held, so they never
//! run. They arrive within the life of a munge credential, 300 s by default.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::Backoff;
use slurm_submit::FoundJob;
use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::error::Error;

const INTERVAL: Duration = Duration::from_secs(300);
/// Jobs that were recorded this long ago have no further copies.
const MAX_AGE: TimeDelta = TimeDelta::hours(1);

impl Driver {
    /// Cancels copies until shutdown.
    pub async fn cancel_copies(&self, shutdown: &CancellationToken) {
        let mut interval = Backoff::fixed(INTERVAL);
        // At once, too: what stopped the service may have made copies.
        loop {
            if let Err(error) = self.cancel_recent_copies().await {
                let error = mesh_runtime::error_chain(&error);
                tracing::warn!(error, "copies of jobs not cancelled, retrying");
            }
            if !interval.wait(shutdown).await {
                return;
            }
        }
    }

    async fn cancel_recent_copies(&self) -> Result<(), Error> {
        let retried = self.store.recorded_after_retries(Utc::now() - MAX_AGE);
        for (owner, keys) in retried.await? {
            let held = self.submitter.find_held(&owner, keys).await;
            for job in self.answer(held).unwrap_or_default() {
                self.cancel_copy(&owner, &job, Utc::now()).await?;
            }
        }
        Ok(())
    }

    /// Cancels a held job unless its run has it. The run's claim is kept meanwhile: a driver that found its job lost would record this one.
    async fn cancel_copy(
        &self,
        owner: &str,
        job: &FoundJob,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let Some(claim) = self.store.claim_of_copy(&job.key, job.job_id, now).await? else {
            return Ok(());
        };
        let cancelled = self.submitter.cancel(owner, job.job_id, &job.key).await;
        if self.answer(cancelled).is_ok() {
            tracing::info!(
                job.id = job.job_id.get(),
                run.key = %job.key,
                "copy of a job cancelled"
            );
        }
        self.store.end_claim_of_copy(&job.key, claim).await
    }
}
