//! When accounting is asked for downtimes that polls missed.

use std::time::Duration;

use mesh_bus::Backoff;
use slurm_client::{Error as SlurmError, NodeEventRecord, Slurm};
use slurm_types::UnixTime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::downtimes::newest;

/// Pause after a poll has published a downtime, so that slurmctld has sent it to slurmdbd.
const SENDING_TIME: Duration = Duration::from_secs(10);
/// Longest wait for an answer. The events of the poll wait meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest interval while accounting does not answer.
const MAX_INTERVAL: Duration = Duration::from_secs(600);
/// How far before its watermark accounting is asked, in seconds: slurmdbd may get what another node did later.
const OVERLAP_SECS: i64 = 3_600;
/// How far back accounting is asked the first time, in seconds.
const FIRST_PERIOD_SECS: i64 = 86_400;

/// Reads downtimes from accounting: at once when it begins, and in an interval.
pub struct DowntimeReader {
    interval: Duration,
    /// `None`: accounting is not asked.
    next: Option<Instant>,
    /// Consecutive failures.
    failures: u32,
}

impl DowntimeReader {
    /// An interval of zero: accounting is not asked.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            next: (!interval.is_zero()).then(Instant::now),
            failures: 0,
        }
    }

    /// The next poll asks accounting, because polls failed.
    pub fn note_failed_poll(&mut self) {
        self.ask_before(Instant::now());
    }

    /// A poll has published a downtime or its end: accounting is asked soon, so that it is behind for a short time only.
    pub fn note_downtime(&mut self) {
        self.ask_before(Instant::now() + SENDING_TIME);
    }

    /// An accounting that does not answer is not asked earlier.
    fn ask_before(&mut self, time: Instant) {
        if self.failures == 0 {
            self.next = self.next.map(|next| next.min(time));
        }
    }

    /// Returns what accounting has since the watermark of the last answer; `None` if it is not asked now, or does not answer.
    pub async fn read(
        &mut self,
        slurm: &Slurm,
        cluster: &str,
        watermark: Option<i64>,
        stop: &CancellationToken,
    ) -> Option<Downtimes> {
        if self.next? > Instant::now() {
            return None;
        }
        let first = || chrono::Utc::now().timestamp() - FIRST_PERIOD_SECS;
        let since = watermark.map_or_else(first, |watermark| watermark - OVERLAP_SECS);
        let answer = slurm.node_events(cluster, UnixTime::from_secs(since));
        let answer = tokio::select! {
            () = stop.cancelled() => return None,
            answer = tokio::time::timeout(ANSWER_TIMEOUT, answer) => answer,
        };
        let reason = match answer {
            Ok(Ok(found)) => {
                if std::mem::take(&mut self.failures) > 0 {
                    tracing::info!("downtimes read from accounting again");
                }
                self.next = Some(Instant::now() + self.interval);
                return Some(Downtimes {
                    since,
                    watermark: newest(&found).max(watermark).unwrap_or(since),
                    is_first: watermark.is_none(),
                    found,
                });
            }
            Ok(Err(SlurmError::NotOverRest { .. })) => {
                self.next = None;
                tracing::info!(
                    "slurmrestd has no downtimes of nodes: those that polls miss are not published"
                );
                return None;
            }
            Ok(Err(error)) => mesh_runtime::error_chain(&error),
            Err(_) => format!("no answer within {ANSWER_TIMEOUT:?}"),
        };
        if self.failures == 0 {
            tracing::warn!(
                error = reason,
                "downtimes not read from accounting, retrying; without accounting set node-watcher.accounting_interval to 0s"
            );
        }
        self.failures += 1;
        let backoff = Backoff::doubling(self.interval, MAX_INTERVAL.max(self.interval));
        self.next = Some(Instant::now() + backoff.nth_delay(self.failures));
        None
    }
}

/// An answer of accounting. Times are Slurm's, in Unix seconds.
pub struct Downtimes {
    /// The downtimes that lasted at some time since.
    pub found: Vec<NodeEventRecord>,
    /// Time since which accounting was asked.
    pub since: i64,
    /// The newest time that is published with these.
    pub watermark: i64,
    /// Whether accounting was never asked before: what it has is not published.
    pub is_first: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn accounting_that_does_not_answer_is_not_asked_earlier() {
        let mut reader = DowntimeReader::new(Duration::from_secs(60));
        let later = Instant::now() + Duration::from_secs(120);
        reader.next = Some(later);
        reader.failures = 1;
        reader.note_failed_poll();
        reader.note_downtime();
        assert_eq!(reader.next, Some(later));
        reader.failures = 0;
        reader.note_downtime();
        assert_eq!(reader.next, Some(Instant::now() + SENDING_TIME));
        reader.note_failed_poll();
        assert_eq!(reader.next, Some(Instant::now()));
    }
}
