//! Admission of an endpoint: its circuit is not open, its receiver asked for no pause, and its rate limit is not
//! exhausted.
//!
//! The `Retry-After` of a 429 or 503 concerns the receiver, so it pauses the whole endpoint. After the pause one
//! delivery goes first, as a probe: sending the whole backlog would likely be refused again. A response lets the rest
//! follow. If the probe fails, the endpoint waits as before the first probe of an open circuit, or until its circuit
//! opens.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use rate_limit::{LeakyBucket, Limit};
use tokio::time::Instant;

use crate::attempt::circuit::{Circuit, CircuitPermit, CircuitPolicy, CircuitSignal};
use crate::attempt::signal::AttemptSignal;

mod stored;

pub use stored::{RetryAfterPause, STORED_GATE_KEY, State, StoredGate};

/// Rules of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionRules {
    /// When the circuit opens.
    pub circuit: CircuitPolicy,
    /// Rate limit. `None`: unlimited.
    pub limit: Option<Limit>,
    /// Maximum pause at the receiver's request.
    pub max_retry_after: Duration,
}

/// Why no request is admitted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Closed until this time: the circuit is open, or the receiver asked for a pause.
    Until(DateTime<Utc>),
    /// The rate limit is exhausted for this long.
    Limited(Duration),
    /// Closed until the probe ends.
    Probing,
}

impl Closed {
    /// How long to wait if nothing changes before.
    pub fn wait(self, now: DateTime<Utc>) -> Duration {
        match self {
            Self::Until(until) => (until - now).to_std().unwrap_or_default(),
            Self::Limited(wait) => wait,
            Self::Probing => Duration::MAX,
        }
    }
}

/// The gate of one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    circuit: Circuit,
    held: Option<RetryAfterPause>,
    /// `None` before the first request.
    bucket: Option<LeakyBucket>,
}

impl Gate {
    /// Restores a gate from its stored state.
    pub fn new(state: State) -> Self {
        Self {
            circuit: Circuit::opened(state.open),
            held: state.held,
            bucket: None,
        }
    }

    /// The state to store.
    pub fn state(&self) -> State {
        State {
            open: self.circuit.open().cloned(),
            held: self.held.clone(),
        }
    }

    /// Number of requests that would be admitted now, at this time by the clock that is never set.
    ///
    /// # Errors
    /// The reason, if there are none.
    pub fn available(
        &mut self,
        rules: &AdmissionRules,
        now: DateTime<Utc>,
        at: Instant,
    ) -> Result<usize, Closed> {
        let max = rules.max_retry_after;
        if let Some(held) = self.held.as_ref().filter(|held| !held.is_over(max, now)) {
            return Err(Closed::Until(held.until));
        }
        let available = match self.circuit.open() {
            _ if self.circuit.is_probing() => return Err(Closed::Probing),
            Some(open) if !open.is_due(now, rules.circuit.intervals.max_interval) => {
                return Err(Closed::Until(open.until));
            }
            Some(_) => 1,
            None if self.held.is_some() => 1,
            None => usize::MAX,
        };
        match self.bucket(rules) {
            None => Ok(available),
            Some(bucket) => match bucket.available(at) as usize {
                0 => Err(Closed::Limited(bucket.wait_for(1, at))),
                left => Ok(available.min(left)),
            },
        }
    }

    fn bucket(&mut self, rules: &AdmissionRules) -> Option<&mut LeakyBucket> {
        let limit = rules.limit?;
        Some(self.bucket.get_or_insert_with(|| limit.bucket()))
    }

    /// True if the circuit is open or the receiver asked for a pause, also while a probe is due or under way.
    pub fn is_suspended(&self) -> bool {
        self.circuit.open().is_some() || self.held.is_some()
    }

    /// Requests permission for an attempt.
    pub fn try_acquire(
        &mut self,
        rules: &AdmissionRules,
        now: DateTime<Utc>,
        at: Instant,
    ) -> Option<CircuitPermit> {
        self.available(rules, now, at).ok()?;
        let permit = match self.held {
            Some(_) => self.circuit.probe(),
            None => self.circuit.try_acquire(&rules.circuit, now)?,
        };
        self.charge(rules, at).ok()?;
        Some(permit)
    }

    /// Counts a request that is not subject to the gate.
    ///
    /// # Errors
    /// How long the rate limit is exhausted.
    pub fn charge(&mut self, rules: &AdmissionRules, at: Instant) -> Result<(), Duration> {
        let Some(bucket) = self.bucket(rules) else {
            return Ok(());
        };
        match bucket.try_take(at) {
            true => Ok(()),
            false => Err(bucket.wait_for(1, at)),
        }
    }

    /// Records the result of an attempt. Returns true if the stored state changed.
    pub fn record_result(
        &mut self,
        permit: CircuitPermit,
        signal: &AttemptSignal,
        reason: &str,
        rules: &AdmissionRules,
        now: DateTime<Utc>,
        jitter: f64,
    ) -> bool {
        let before = self.state();
        let probed = self.circuit.awaits(permit);
        self.circuit
            .record_result(permit, signal.circuit, reason, &rules.circuit, now, jitter);
        if let Some(until) = signal.until.filter(|until| *until > now) {
            if self.held.as_ref().is_none_or(|held| held.until < until) {
                self.hold(until, reason, now);
            }
        } else if probed && self.held.is_some() {
            match signal.circuit {
                CircuitSignal::Alive => self.held = None,
                // From now on the circuit schedules the probes.
                CircuitSignal::Failing if self.circuit.open().is_some() => self.held = None,
                CircuitSignal::Failing => {
                    let wait = rules.circuit.wait(1, jitter);
                    let max = TimeDelta::from_std(rules.max_retry_after);
                    self.hold(now + max.map_or(wait, |max| wait.min(max)), reason, now);
                }
                CircuitSignal::Nothing => {}
            }
        }
        self.state() != before
    }

    fn hold(&mut self, until: DateTime<Utc>, reason: &str, now: DateTime<Utc>) {
        self.held = Some(RetryAfterPause {
            since: self.held.take().map_or(now, |held| held.since),
            until,
            reason: reason.to_owned(),
        });
    }

    /// Releases a permit without a result.
    pub fn release(&mut self, permit: CircuitPermit) {
        self.circuit.release(permit);
    }
}

#[cfg(test)]
mod tests;
