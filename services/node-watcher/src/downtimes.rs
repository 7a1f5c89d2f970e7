//! When accounting is asked for downtimes that no poll has seen.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use slurm_client::{Error as SlurmError, NodeRecord, Slurm};
use slurm_types::UnixTime;
use tokio::time::Instant;

use crate::domain::{TrackedNode, absence::ObservedNode, downtimes};

/// Reads downtimes from accounting: after an absence, and in an interval.
pub struct DowntimeReader {
    interval: Duration,
    /// Until when they are published; `None` before the first poll of the cluster.
    published_until: Option<DateTime<Utc>>,
    next: Option<Instant>,
    is_failing: bool,
}

impl DowntimeReader {
    /// Begins at the last poll of whoever led before. An interval of zero: accounting is not asked.
    pub fn new(interval: Duration, last_poll: Option<DateTime<Utc>>) -> Self {
        Self {
            interval,
            published_until: last_poll,
            next: (!interval.is_zero()).then(Instant::now),
            is_failing: false,
        }
    }

    /// The next poll asks accounting, because some polls failed.
    pub fn note_absence(&mut self) {
        self.next = self.next.map(|_| Instant::now());
    }

    /// Returns the nodes that changed and changed back before `asked_at`, the time before `answer` was requested. Updates `known`.
    pub async fn changed(
        &mut self,
        slurm: &Slurm,
        cluster: &str,
        known: &mut BTreeMap<String, TrackedNode>,
        answer: &[NodeRecord],
        asked_at: DateTime<Utc>,
    ) -> Vec<ObservedNode> {
        let now = Instant::now();
        if self.next.is_none_or(|next| next > now) {
            return Vec::new();
        }
        self.next = Some(now + self.interval);
        let since = *self.published_until.get_or_insert(asked_at);
        let window = since.timestamp()..asked_at.timestamp();
        if window.is_empty() {
            return Vec::new();
        }
        match slurm
            .node_events(cluster, UnixTime::from_secs(window.start))
            .await
        {
            Ok(found) => {
                self.published_until = Some(asked_at);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("downtimes read from accounting again");
                }
                downtimes::replay(known, answer, &found, &window)
            }
            Err(SlurmError::NotOverRest { .. }) => {
                self.next = None;
                tracing::info!(
                    "slurmrestd has no downtimes of nodes: those between two polls are not published"
                );
                Vec::new()
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        "downtimes not read from accounting, retrying; without accounting set node-watcher.accounting_interval to 0s"
                    );
                }
                Vec::new()
            }
        }
    }
}
