//! Whether Slurm's daemons answer: one log line and one event per change, a condition of readiness, and growing pauses meanwhile.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mesh_events::EventType;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::timestamp;
use mesh_runtime::{Condition, chain};

use crate::Error;
use crate::collector::Collector;

/// Longest pause between two attempts.
const LONGEST: Duration = Duration::from_secs(60);

/// A daemon of Slurm.
pub struct SlurmSource {
    name: &'static str,
    collector: Collector,
    condition: Option<Condition>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failures: u32,
    down_since: Option<chrono::DateTime<chrono::Utc>>,
}

impl SlurmSource {
    /// A source by the name it has in events: `slurmctld`, `slurmdbd`. With a condition it counts for readiness.
    pub fn new(name: &'static str, collector: Collector, condition: Option<Condition>) -> Self {
        Self {
            name,
            collector,
            condition,
            state: Mutex::default(),
        }
    }

    /// It has answered.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn up(&self) -> Result<(), Error> {
        let was_down = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.failures = 0;
            state.down_since.take()
        };
        if let Some(condition) = &self.condition {
            condition.ok();
        }
        let Some(since) = was_down else { return Ok(()) };
        let now = chrono::Utc::now();
        tracing::info!(
            source = self.name,
            down_seconds = (now - since).num_seconds(),
            "answers again"
        );
        let what = CaptureEvent {
            source: self.name.to_owned(),
            message: format!("{} answers again", self.name),
            from: Some(timestamp(since)),
            to: Some(timestamp(now)),
            ..CaptureEvent::default()
        };
        self.collector
            .capture(EventType::CaptureSourceUp, what)
            .await
    }

    /// It has not answered. Returns how long to wait before the next attempt.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn down(&self, error: &slurm_client::Error) -> Result<Duration, Error> {
        let now = chrono::Utc::now();
        let (first, failures) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.failures = state.failures.saturating_add(1);
            let first = state.down_since.is_none();
            state.down_since.get_or_insert(now);
            (first, state.failures)
        };
        let reason = chain(error);
        if let Some(condition) = &self.condition {
            condition.fail(&reason);
        }
        if first {
            tracing::warn!(
                source = self.name,
                reason,
                "does not answer, trying again until it does"
            );
            let what = CaptureEvent {
                source: self.name.to_owned(),
                message: reason,
                from: Some(timestamp(now)),
                ..CaptureEvent::default()
            };
            self.collector
                .capture(EventType::CaptureSourceDown, what)
                .await?;
        }
        Ok(backoff(failures))
    }
}

/// How long to wait after so many failures in a row.
pub fn backoff(failures: u32) -> Duration {
    let pause = Duration::from_millis(500)
        .saturating_mul(1 << failures.min(7))
        .min(LONGEST);
    pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}
