//! How politely Slurm is asked, whichever way: a few questions at a time, so many per second, each within its deadline.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Semaphore, time::timeout};

use crate::{Config, Error, metrics, pace::Pace};

/// Questions at a time: enough to overlap, too few to crowd slurmctld.
const AT_A_TIME: usize = 2;

/// The limits of one client; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    deadline: Duration,
    permits: Arc<Semaphore>,
    pace: Arc<Pace>,
}

impl Limits {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            deadline: config.command_timeout,
            permits: Arc::new(Semaphore::new(AT_A_TIME)),
            pace: Arc::new(Pace::new(config.commands_per_second)),
        }
    }

    /// Ones with another deadline, in places of their own, within the same number of questions per second.
    pub(crate) fn patient(&self, deadline: Duration) -> Self {
        Self {
            deadline,
            permits: Arc::new(Semaphore::new(AT_A_TIME)),
            pace: Arc::clone(&self.pace),
        }
    }

    /// Asks when it is its turn. A question that takes too long is dropped.
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
        self.pace.turn().await;
        let started = Instant::now();
        let answer = timeout(self.deadline, question).await;
        metrics::took(command, started.elapsed());
        answer.unwrap_or(Err(Error::TimedOut {
            command,
            after: self.deadline,
        }))
    }
}
