//! Cancels copies: a submission whose answer was lost may have been accepted after another one was recorded. Copies are held, so they never
//! run. They arrive within the life of a munge credential, 300 s by default.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use mesh_bus::Backoff;
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
        while interval.wait(shutdown).await {
            if let Err(error) = self.cancel_recent_copies().await {
                let error = mesh_runtime::error_chain(&error);
                tracing::warn!(error, "copies of jobs not cancelled, retrying");
            }
        }
    }

    async fn cancel_recent_copies(&self) -> Result<(), Error> {
        let recorded = self
            .store
            .recorded_after_retries(Utc::now() - MAX_AGE)
            .await?;
        for (owner, winners) in recorded {
            let cancelled = self.submitter.cancel_twins(&owner, &winners).await;
            for copy in self.answer(cancelled).unwrap_or_default() {
                tracing::info!(
                    job.id = copy.job_id.get(),
                    run.key = %copy.key,
                    "copy of a job cancelled"
                );
            }
        }
        Ok(())
    }
}
