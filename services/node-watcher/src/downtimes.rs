//! When accounting is asked for downtimes that no poll has seen.

use std::collections::BTreeMap;
use std::time::Duration;

use slurm_client::{Error as SlurmError, NodeEventRecord, Slurm};
use slurm_types::UnixTime;
use tokio::time::Instant;

use crate::domain::{TrackedNode, downtimes};

/// Pause after a poll has published a downtime, so that slurmctld has sent it to slurmdbd.
const SENDING_TIME: Duration = Duration::from_secs(10);
/// How far back accounting is asked the very first time, in seconds. What it has then is not published.
const FIRST_PERIOD_SECS: i64 = 86_400;

/// Reads downtimes from accounting: at once when it begins, and in an interval.
pub struct DowntimeReader {
    interval: Duration,
    /// `None`: accounting is not asked.
    next: Option<Instant>,
    is_failing: bool,
}

impl DowntimeReader {
    /// An interval of zero: accounting is not asked.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            next: (!interval.is_zero()).then(Instant::now),
            is_failing: false,
        }
    }

    /// The next poll asks accounting, because some polls failed.
    pub fn note_absence(&mut self) {
        self.next = self.next.map(|_| Instant::now());
    }

    /// Accounting is asked soon about what polls have published, so that it is behind for a short time only.
    pub fn note_poll(&mut self, known: &BTreeMap<String, TrackedNode>) {
        if known.values().any(|node| node.unaccounted) {
            let soon = Instant::now() + SENDING_TIME;
            self.next = self.next.map(|next| next.min(soon));
        }
    }

    /// Returns what accounting has since a time by Slurm's clock (`until` of the last answer); `None` if it is not asked now, or does not
    /// answer.
    pub async fn read(
        &mut self,
        slurm: &Slurm,
        cluster: &str,
        until: Option<i64>,
    ) -> Option<Downtimes> {
        let now = Instant::now();
        if self.next? > now {
            return None;
        }
        self.next = Some(now + self.interval);
        let first = || chrono::Utc::now().timestamp() - FIRST_PERIOD_SECS;
        let since = UnixTime::from_secs(until.unwrap_or_else(first));
        match slurm.node_events(cluster, since).await {
            Ok(found) => {
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("downtimes read from accounting again");
                }
                let newest = downtimes::newest(&found).max(until).unwrap_or_default();
                Some(Downtimes {
                    since: until.unwrap_or(newest),
                    until: newest,
                    found,
                })
            }
            Err(SlurmError::NotOverRest { .. }) => {
                self.next = None;
                tracing::info!(
                    "slurmrestd has no downtimes of nodes: those between two polls are not published"
                );
                None
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        "downtimes not read from accounting, retrying; without accounting set node-watcher.accounting_interval to 0s"
                    );
                }
                None
            }
        }
    }
}

/// An answer of accounting. Times are Slurm's, in Unix seconds.
pub struct Downtimes {
    /// What was published before.
    pub since: i64,
    /// What is published with these.
    pub until: i64,
    /// The downtimes that lasted at some time since.
    pub found: Vec<NodeEventRecord>,
}
