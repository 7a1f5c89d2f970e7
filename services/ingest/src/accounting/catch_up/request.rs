//! Repeats a request until accounting answers it.

use std::future::Future;
use std::time::Duration;

use super::CatchUp;
use crate::Error;
use crate::job_queries::JobQueries;
use crate::sources::SLURMDBD_BACKLOG_WAIT;
use crate::sources::{RequestCost, backoff, unless_stopped};

/// Smallest pause after a request that failed, also if accounting answers others.
const MIN_PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(10);

/// How long to wait after a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailurePause {
    /// A growing time. A long request that fails says nothing about short ones, and the other way round.
    Full,
    /// Until accounting has answered another request, if that is earlier.
    UntilAvailable,
}

/// Outcome of a request.
pub(super) enum Answer<T> {
    /// The answer.
    Complete {
        answer: T,
        /// Whether accounting was unavailable before.
        after_outage: bool,
    },
    /// A smaller request may be answered.
    TooLarge(slurm_client::Error),
    /// There is nothing to ask any more.
    Pointless,
}

impl<S: JobQueries> CatchUp<S> {
    /// Repeats a request until accounting answers, or `ask` has none any more. Counts its own failures. After an outage the request is made
    /// once more, when slurmctld has reported what happened meanwhile.
    pub(super) async fn ask_until_answered<T, F>(
        &self,
        ask: impl Fn() -> F,
        is_too_large: impl Fn(&slurm_client::Error) -> bool,
        failure_pause: FailurePause,
    ) -> Result<Answer<T>, Error>
    where
        F: Future<Output = Option<Result<T, slurm_client::Error>>>,
    {
        let (mut failures, mut unavailable, mut after_outage) = (0, false, false);
        loop {
            let Some(answer) = unless_stopped(&self.shutdown, ask()).await? else {
                return Ok(Answer::Pointless);
            };
            match answer {
                Ok(_) if std::mem::take(&mut unavailable) => {
                    // It answers again: a failure after this is the first one.
                    (failures, after_outage) = (0, true);
                    self.slurmdbd.up(RequestCost::Heavy).await?;
                    self.pause(SLURMDBD_BACKLOG_WAIT).await?;
                }
                Ok(answer) => {
                    self.slurmdbd.up(RequestCost::Heavy).await?;
                    return Ok(Answer::Complete {
                        answer,
                        after_outage,
                    });
                }
                Err(error) if is_too_large(&error) => return Ok(Answer::TooLarge(error)),
                Err(error) => {
                    self.slurmdbd.down(RequestCost::Heavy, &error).await?;
                    (unavailable, failures) = (true, failures + 1);
                    self.pause_after_failure(backoff(failures), failure_pause)
                        .await?;
                }
            }
        }
    }

    async fn pause_after_failure(
        &self,
        pause: Duration,
        failure_pause: FailurePause,
    ) -> Result<(), Error> {
        if failure_pause == FailurePause::Full {
            return self.pause(pause).await;
        }
        let least = pause.min(MIN_PAUSE_AFTER_FAILURE);
        self.pause(least).await?;
        tokio::select! {
            paused = self.pause(pause - least) => paused,
            () = self.slurmdbd.available() => Ok(()),
        }
    }
}
