//! Availability of Slurm's daemons: one log line and one event per change, a condition of readiness, and growing pauses between attempts.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mesh_bus::Backoff;
use mesh_events::EventType;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::timestamp;
use mesh_runtime::{Condition, error_chain};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::collector::Collector;

/// Pauses between attempts, which spread the ingests of many clusters that share a slurmdbd.
const BACKOFF: Backoff =
    Backoff::doubling(Duration::from_millis(500), Duration::from_secs(60)).with_jitter(0.5);

/// Name of accounting in events.
pub const SLURMDBD: &str = "slurmdbd";
/// Time that slurmctld needs to send its queued records to slurmdbd after an outage. It tries to reconnect every 10 s (22.05).
pub(crate) const SLURMDBD_BACKLOG_WAIT: Duration = Duration::from_secs(30);

/// A daemon of Slurm.
pub struct SlurmSource {
    name: &'static str,
    collector: Collector,
    condition: Option<Condition>,
    state: Mutex<SourceState>,
    /// Whether it has answered the last request.
    is_available: watch::Sender<bool>,
}

/// Cost of a request. A daemon that answers light requests may still fail at heavy ones; one that answers heavy requests answers all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCost {
    /// About a few jobs.
    Light,
    /// About everything. Retried until it is answered.
    Heavy,
}

#[derive(Default)]
struct SourceState {
    /// Consecutive failures, by cost.
    light: u32,
    heavy: u32,
    down_since: Option<chrono::DateTime<chrono::Utc>>,
    /// The same by the monotonic clock, if it failed in this process.
    down_at: Option<Instant>,
}

impl SourceState {
    /// Records an answer. Returns the start of the outage that it ends, if any.
    fn answered(&mut self, weight: RequestCost) -> Option<chrono::DateTime<chrono::Utc>> {
        self.light = 0;
        match weight {
            RequestCost::Heavy => self.heavy = 0,
            // Otherwise a slow daemon would go down and come back with every poll.
            RequestCost::Light if self.heavy > 0 => return None,
            RequestCost::Light => {}
        }
        self.down_since.take()
    }

    /// Records a failure. Returns whether it starts an outage, and the number of consecutive failures.
    fn failed(&mut self, weight: RequestCost, now: chrono::DateTime<chrono::Utc>) -> (bool, u32) {
        let failures = match weight {
            RequestCost::Light => &mut self.light,
            RequestCost::Heavy => &mut self.heavy,
        };
        *failures = failures.saturating_add(1);
        let failures = *failures;
        let news = self.down_since.is_none();
        if news {
            (self.down_since, self.down_at) = (Some(now), Some(Instant::now()));
        }
        (news, failures)
    }
}

impl SlurmSource {
    /// Creates a source. `name` is its name in events: `slurmctld` or `slurmdbd`. With a condition it affects readiness. The source starts
    /// as unavailable if its last event was `capture.source_down`.
    pub async fn new(
        name: &'static str,
        collector: Collector,
        condition: Option<Condition>,
    ) -> Self {
        let down_since = collector
            .state()
            .await
            .capture
            .down_since
            .get(name)
            .copied();
        let state = SourceState {
            down_since: down_since.and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0)),
            ..SourceState::default()
        };
        Self {
            name,
            collector,
            condition,
            state: Mutex::new(state),
            is_available: watch::Sender::new(true),
        }
    }

    /// Records that it has answered a request of this cost, and publishes the end of an outage.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn up(&self, weight: RequestCost) -> Result<(), Error> {
        let has_failed = !self.is_available.send_replace(true);
        if has_failed && self.name == SLURMDBD {
            self.collector.accounting_answers().await;
        }
        let (was_down, down_at) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let since = state.answered(weight);
            if state.down_since.is_none()
                && let Some(condition) = &self.condition
            {
                condition.ok();
            }
            (since, state.down_at)
        };
        let Some(since) = was_down else { return Ok(()) };
        let now = chrono::Utc::now();
        let lasted = (now - since).to_std().unwrap_or_default();
        let lasted = down_at.map_or(lasted, |at| at.elapsed().max(lasted));
        // The clock may have been ahead.
        let since = now - chrono::TimeDelta::from_std(lasted).unwrap_or_default();
        if self.name == SLURMDBD {
            self.collector.accounting_returned().await;
            // A shorter one ends few lookups. Stored in one write with the event.
            if lasted >= self.collector.config.missing_record_timeout {
                self.collector.read_outage(since.timestamp()).await;
            }
        }
        tracing::info!(
            source = self.name,
            down_seconds = (now - since).num_seconds(),
            "source available again"
        );
        let event = CaptureEvent {
            source: self.name.to_owned(),
            message: format!("{} is available again", self.name),
            from: Some(timestamp(since)),
            to: Some(timestamp(now)),
            ..CaptureEvent::default()
        };
        self.collector
            .capture(EventType::CaptureSourceUp, event)
            .await
    }

    /// Records that it has not answered a request of this cost, and publishes the start of an outage. Returns how long to wait before the
    /// next attempt.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn down(
        &self,
        weight: RequestCost,
        error: &slurm_client::Error,
    ) -> Result<Duration, Error> {
        self.is_available.send_replace(false);
        // A long request that fails says nothing about short ones.
        if weight == RequestCost::Light && self.name == SLURMDBD {
            self.collector.accounting_failed().await;
        }
        let now = chrono::Utc::now();
        let (first, failures) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.failed(weight, now)
        };
        let reason = error_chain(error);
        if let Some(condition) = &self.condition {
            condition.fail(&reason);
        }
        if first {
            tracing::warn!(source = self.name, reason, "source unavailable, retrying");
            let event = CaptureEvent {
                source: self.name.to_owned(),
                message: reason,
                from: Some(timestamp(now)),
                ..CaptureEvent::default()
            };
            self.collector
                .capture(EventType::CaptureSourceDown, event)
                .await?;
        }
        Ok(backoff(failures))
    }

    /// Waits until it has answered a request of any caller.
    pub async fn available(&self) {
        let mut changes = self.is_available.subscribe();
        // The sender lives as long as `self`.
        changes
            .wait_for(|is_available| *is_available)
            .await
            .map(drop)
            .unwrap_or_default();
    }
}

/// Waits for an answer of Slurm, but not beyond the shutdown: a request that hangs would take up to a minute to time out.
///
/// # Errors
/// On shutdown.
pub async fn unless_stopped<T>(
    shutdown: &CancellationToken,
    lookup: impl Future<Output = T>,
) -> Result<T, Error> {
    let answer = shutdown.run_until_cancelled(lookup).await;
    answer.ok_or(Error::Stopped)
}

/// Returns the pause after this number of consecutive failures.
pub fn backoff(failures: u32) -> Duration {
    BACKOFF.nth_delay(failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn light_answers_between_heavy_failures_are_no_news() {
        let now = chrono::Utc::now();
        let mut state = SourceState::default();
        assert_eq!(state.failed(RequestCost::Heavy, now), (true, 1));
        assert_eq!(state.answered(RequestCost::Light), None);
        assert_eq!(state.failed(RequestCost::Heavy, now), (false, 2));
        assert_eq!(state.failed(RequestCost::Light, now), (false, 1));
        assert_eq!(state.answered(RequestCost::Heavy), Some(now));
        assert_eq!(state.answered(RequestCost::Light), None);
    }

    #[test]
    fn a_light_failure_is_over_with_any_answer() {
        let now = chrono::Utc::now();
        for weight in [RequestCost::Light, RequestCost::Heavy] {
            let mut state = SourceState::default();
            assert_eq!(state.failed(RequestCost::Light, now), (true, 1));
            assert_eq!(state.answered(weight), Some(now));
        }
    }

    #[test]
    fn pauses_grow_and_end_at_the_longest() {
        for failures in 0..40 {
            let pause = backoff(failures);
            let max = Duration::from_millis(500)
                .saturating_mul(1 << failures.min(7))
                .min(Duration::from_secs(60));
            assert!(pause >= max / 2 && pause <= max, "{failures}: {pause:?}");
        }
    }
}
