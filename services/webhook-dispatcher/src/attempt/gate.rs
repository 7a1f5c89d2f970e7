//! Admission of an endpoint: its circuit is not open, its receiver asked for no pause, and its rate limit is not
//! exhausted.
//!
//! The `Retry-After` of a 429 or 503 concerns the receiver, so it pauses the whole endpoint. After the pause one
//! delivery goes first, as a probe: sending the whole backlog would likely be refused again. A response lets the rest
//! follow. If the probe fails, the endpoint waits as before the first probe of an open circuit, or until its circuit
//! opens.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::attempt::circuit::{Circuit, CircuitPermit, CircuitPolicy, CircuitSignal};
use crate::attempt::rate::{Bucket, Limit};
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
    /// The rate limit is exhausted until this time.
    Limited(DateTime<Utc>),
    /// Closed until the probe ends.
    Probing,
}

/// The gate of one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    circuit: Circuit,
    held: Option<RetryAfterPause>,
    bucket: Bucket,
}

impl Gate {
    /// Restores a gate from its stored state.
    pub fn new(state: State) -> Self {
        Self {
            circuit: Circuit::opened(state.open),
            held: state.held,
            bucket: Bucket::default(),
        }
    }

    /// The state to store.
    pub fn state(&self) -> State {
        State {
            open: self.circuit.open().cloned(),
            held: self.held.clone(),
        }
    }

    /// Number of requests that would be admitted now.
    ///
    /// # Errors
    /// The reason, if there are none.
    pub fn available(&self, rules: &AdmissionRules, now: DateTime<Utc>) -> Result<usize, Closed> {
        let max = rules.max_retry_after;
        if let Some(held) = self.held.as_ref().filter(|held| !held.is_over(max, now)) {
            return Err(Closed::Until(held.until));
        }
        let available = match self.circuit.open() {
            _ if self.circuit.is_probing() => return Err(Closed::Probing),
            Some(open) if !open.is_due(now, rules.circuit.max_interval) => {
                return Err(Closed::Until(open.until));
            }
            Some(_) => 1,
            None if self.held.is_some() => 1,
            None => usize::MAX,
        };
        let Some(limit) = &rules.limit else {
            return Ok(available);
        };
        match self.bucket.left(limit, now) as usize {
            0 => Err(Closed::Limited(self.bucket.next(limit, now))),
            left => Ok(available.min(left)),
        }
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
    ) -> Option<CircuitPermit> {
        self.available(rules, now).ok()?;
        let permit = match self.held {
            Some(_) => self.circuit.probe(),
            None => self.circuit.try_acquire(&rules.circuit, now)?,
        };
        if let Some(limit) = &rules.limit {
            self.bucket.take(limit, now);
        }
        Some(permit)
    }

    /// Counts a request that is not subject to the gate. Returns the earliest time for it if the rate limit is
    /// exhausted.
    pub fn charge(
        &mut self,
        rules: &AdmissionRules,
        now: DateTime<Utc>,
    ) -> Result<(), DateTime<Utc>> {
        match &rules.limit {
            Some(limit) if !self.bucket.take(limit, now) => Err(self.bucket.next(limit, now)),
            _ => Ok(()),
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
