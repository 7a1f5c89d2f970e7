//! Limits of queries to Slurm, by commands or REST: a few at a time, a number per second, each within its deadline.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use rate_limit::RateLimiter;
use tokio::{sync::Semaphore, time::timeout};

use crate::{Config, Error, metrics};

/// Concurrent queries: enough to overlap, too few to crowd slurmctld.
const MAX_CONCURRENT_REQUESTS: usize = 2;

/// The limits of one client; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct RequestLimits {
    deadline: Duration,
    permits: Arc<Semaphore>,
    rate_limiter: Arc<RateLimiter>,
}

impl RequestLimits {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            deadline: config.command_timeout,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
            rate_limiter: Arc::new(RateLimiter::new(config.commands_per_second)),
        }
    }

    /// Limits with another deadline and separate permits, within the same number of queries per second.
    pub(crate) fn with_timeout(&self, deadline: Duration) -> Self {
        Self {
            deadline,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
            rate_limiter: Arc::clone(&self.rate_limiter),
        }
    }

    /// Runs a query when the limits permit. A query beyond its deadline is dropped.
    pub(crate) async fn ask<T>(
        &self,
        command: &'static str,
        question: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Ok(_permit) = self.permits.acquire().await else {
            return Err(Error::Suspicious {
                command,
                problem: "no permit: the client is closed",
            });
        };
        self.rate_limiter.acquire().await;
        let started = Instant::now();
        let answer = timeout(self.deadline, question).await;
        metrics::took(command, started.elapsed());
        answer.unwrap_or(Err(Error::TimedOut {
            command,
            after: self.deadline,
        }))
    }
}
