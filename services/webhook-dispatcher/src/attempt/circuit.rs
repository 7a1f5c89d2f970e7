//! The circuit breaker of an endpoint.
//!
//! - Closed: everything is sent.
//! - Open: nothing is sent. The circuit opens after `failure_threshold` consecutive failures of the receiver: no
//!   connection, a timeout, a 5xx and the like. Failures caused by a delivery's content do not count.
//! - Half-open: after a wait, one delivery is sent as a probe. Any response from a working receiver closes the
//!   circuit. A failure opens it again, for longer.
//!
//! The wait before the n-th probe is between half and all of `initial_interval` × `multiplier`^(n-1), at most
//! `max_interval`. The lower bound gives the receiver time to recover; the jitter spreads the probes of endpoints
//! that share a receiver. Requests that were in flight when the circuit opened may close it, but their failures have
//! no effect.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::attempt::retry::Intervals;

/// Maximum wait before a probe, so that a recovery is noticed soon.
pub const LONGEST: Duration = Duration::from_secs(5 * 60);

/// When a circuit opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitPolicy {
    /// Consecutive failures that open it. 0: never.
    pub failure_threshold: u32,
    /// Bounds of the waits before probes.
    pub intervals: Intervals,
}

impl CircuitPolicy {
    /// The wait before the next probe.
    pub(super) fn wait(&self, openings: u32, jitter: f64) -> TimeDelta {
        let bound = self.intervals.bound(openings);
        let wait = bound.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX)
    }
}

/// What an attempt reveals about the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitSignal {
    /// The receiver works, even if it rejected this delivery.
    Alive,
    /// The receiver fails or cannot be reached.
    Failing,
    /// Nothing: no request was made.
    Nothing,
}

/// State of an open circuit. Stored as JSON for restarts and other dispatchers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCircuit {
    /// When it opened.
    pub since: DateTime<Utc>,
    /// When the next probe may be sent.
    pub until: DateTime<Utc>,
    /// Times it has opened without closing in between.
    pub openings: u32,
    /// The last failure.
    pub reason: String,
}

impl OpenCircuit {
    /// True if a probe may be sent. A clock that was set back does not keep the circuit open.
    pub fn is_due(&self, now: DateTime<Utc>, longest: Duration) -> bool {
        let longest = TimeDelta::from_std(longest).unwrap_or(TimeDelta::MAX);
        now >= self.until || self.until - now > longest
    }
}

/// Permission to make one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitPermit {
    /// The circuit was closed.
    Regular,
    /// The probe of an open circuit, with its number.
    Probe(u64),
}

/// The circuit breaker of one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Circuit {
    failures: u32,
    open: Option<OpenCircuit>,
    probe: Option<u64>,
    probes: u64,
}

impl Circuit {
    /// Restores a circuit from its stored state.
    pub fn opened(open: Option<OpenCircuit>) -> Self {
        Self {
            open,
            ..Self::default()
        }
    }

    /// The state while the circuit is open.
    pub const fn open(&self) -> Option<&OpenCircuit> {
        self.open.as_ref()
    }

    /// True if [`Circuit::try_acquire`] would grant a permit.
    pub fn lets_in(&self, policy: &CircuitPolicy, now: DateTime<Utc>) -> bool {
        match &self.open {
            None => true,
            Some(open) => self.probe.is_none() && open.is_due(now, policy.intervals.max_interval),
        }
    }

    /// True while a probe is in flight.
    pub const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Requests permission for an attempt.
    pub fn try_acquire(
        &mut self,
        policy: &CircuitPolicy,
        now: DateTime<Utc>,
    ) -> Option<CircuitPermit> {
        if !self.lets_in(policy, now) {
            return None;
        }
        match self.open {
            None => Some(CircuitPermit::Regular),
            Some(_) => Some(self.probe()),
        }
    }

    /// Starts a probe, whether the circuit is open or not.
    pub(super) fn probe(&mut self) -> CircuitPermit {
        self.probes += 1;
        self.probe = Some(self.probes);
        CircuitPermit::Probe(self.probes)
    }

    /// True if this is the permit of the current probe.
    pub(super) fn awaits(&self, permit: CircuitPermit) -> bool {
        matches!(permit, CircuitPermit::Probe(number) if self.probe == Some(number))
    }

    /// Records the result of an attempt. `jitter` is a random number in 0..1.
    pub fn record_result(
        &mut self,
        permit: CircuitPermit,
        signal: CircuitSignal,
        reason: &str,
        policy: &CircuitPolicy,
        now: DateTime<Utc>,
        jitter: f64,
    ) {
        let probed = self.release(permit);
        match (signal, &self.open) {
            (CircuitSignal::Nothing, _) => {}
            (CircuitSignal::Alive, _) => {
                self.failures = 0;
                if self.open.take().is_some() {
                    self.probe = None;
                }
            }
            (CircuitSignal::Failing, Some(open)) if probed => {
                let openings = open.openings.saturating_add(1);
                self.open = Some(OpenCircuit {
                    since: open.since,
                    until: now + policy.wait(openings, jitter),
                    openings,
                    reason: reason.to_owned(),
                });
            }
            // The request was in flight when the circuit opened.
            (CircuitSignal::Failing, Some(_)) => {}
            (CircuitSignal::Failing, None) => {
                self.failures = self.failures.saturating_add(1);
                if policy.failure_threshold > 0 && self.failures >= policy.failure_threshold {
                    self.failures = 0;
                    self.open = Some(OpenCircuit {
                        since: now,
                        until: now + policy.wait(1, jitter),
                        openings: 1,
                        reason: reason.to_owned(),
                    });
                }
            }
        }
    }

    /// Releases a permit without a result, so that another probe may be sent. Returns true if it was the probe.
    pub fn release(&mut self, permit: CircuitPermit) -> bool {
        let probed = self.awaits(permit);
        if probed {
            self.probe = None;
        }
        probed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: CircuitPolicy = CircuitPolicy {
        failure_threshold: 3,
        intervals: Intervals {
            initial_interval: Duration::from_secs(10),
            multiplier: 4,
            max_interval: Duration::from_secs(300),
        },
    };

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_763_760_000 + seconds, 0).unwrap()
    }

    impl Circuit {
        fn attempt(&mut self, signal: CircuitSignal, now: DateTime<Utc>, jitter: f64) -> bool {
            let Some(permit) = self.try_acquire(&POLICY, now) else {
                return false;
            };
            self.record_result(permit, signal, "status 503", &POLICY, now, jitter);
            true
        }

        fn fail(&mut self, times: u32, now: i64) {
            for _ in 0..times {
                assert!(self.attempt(CircuitSignal::Failing, at(now), 1.0));
            }
        }
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_probes_ever_later() {
        let mut circuit = Circuit::default();
        circuit.fail(2, 0);
        assert!(circuit.attempt(CircuitSignal::Alive, at(0), 1.0));
        circuit.fail(2, 0);
        assert!(circuit.attempt(CircuitSignal::Nothing, at(0), 1.0));
        assert_eq!(circuit.open(), None, "never three in a row");
        circuit.fail(1, 0);
        let mut now = 0;
        for (wait, openings) in [(10, 1), (40, 2), (160, 3), (300, 4), (300, 5)] {
            let open = circuit.open().unwrap();
            assert_eq!((open.until, open.openings), (at(now + wait), openings));
            assert_eq!((open.since, open.reason.as_str()), (at(0), "status 503"));
            assert!(!circuit.attempt(CircuitSignal::Alive, at(now + wait - 1), 1.0));
            now += wait;
            circuit.fail(1, now);
        }
        assert!(circuit.attempt(CircuitSignal::Alive, at(now + 300), 1.0));
        assert_eq!(circuit.open(), None);
        circuit.fail(3, 1_000);
        assert_eq!(circuit.open().unwrap().openings, 1, "from the beginning");
    }

    #[test]
    fn one_probe_at_a_time_and_what_was_under_way_before_counts_only_for_good() {
        let mut circuit = Circuit::default();
        let [early, late] = [0; 2].map(|_| circuit.try_acquire(&POLICY, at(0)).unwrap());
        circuit.fail(3, 0);
        circuit.record_result(early, CircuitSignal::Failing, "", &POLICY, at(1), 1.0);
        assert_eq!(circuit.open().unwrap().openings, 1);
        let probe = circuit.try_acquire(&POLICY, at(10)).unwrap();
        assert_eq!(circuit.try_acquire(&POLICY, at(10)), None);
        assert!(circuit.is_probing());
        assert!(circuit.release(probe), "as if it had never been");
        let probe = circuit.try_acquire(&POLICY, at(10)).unwrap();
        circuit.record_result(probe, CircuitSignal::Nothing, "", &POLICY, at(11), 1.0);
        let probe = circuit.try_acquire(&POLICY, at(11)).unwrap();
        circuit.record_result(late, CircuitSignal::Alive, "", &POLICY, at(12), 1.0);
        assert_eq!(circuit.open(), None);
        circuit.record_result(probe, CircuitSignal::Failing, "", &POLICY, at(13), 1.0);
        assert_eq!(circuit.open(), None, "one failure of three");
    }

    #[test]
    fn it_is_carried_on_and_a_clock_that_goes_back_does_not_hold_it() {
        let mut circuit = Circuit::default();
        circuit.fail(3, 0);
        let text = serde_json::to_string(circuit.open().unwrap()).unwrap();
        let next = Circuit::opened(serde_json::from_str(&text).unwrap());
        assert!(!next.lets_in(&POLICY, at(9)) && next.lets_in(&POLICY, at(10)));
        assert!(next.lets_in(&POLICY, at(-3_600)));
        let never = CircuitPolicy {
            failure_threshold: 0,
            ..POLICY
        };
        let mut circuit = Circuit::default();
        for _ in 0..1_000 {
            circuit.record_result(
                CircuitPermit::Regular,
                CircuitSignal::Failing,
                "",
                &never,
                at(0),
                1.0,
            );
        }
        assert_eq!(circuit.open(), None);
    }

    proptest! {
        /// Attempts begin and end in random order. Checks the invariants after each step.
        #[test]
        fn the_rules_hold_for_any_order(steps in prop::collection::vec((0u8..6, 0usize..8, 0i64..400, 0.0f64..1.0), 1..200)) {
            let mut circuit = Circuit::default();
            let mut under_way: Vec<CircuitPermit> = Vec::new();
            let (mut now, mut row) = (0, 0);
            for (what, which, later, jitter) in steps {
                let before = circuit.open().cloned();
                if what < 2 {
                    now += later;
                    let lets_in = circuit.lets_in(&POLICY, at(now));
                    let permit = circuit.try_acquire(&POLICY, at(now));
                    prop_assert_eq!(permit.is_some(), lets_in);
                    let probes = under_way.iter().filter(|permit| matches!(permit, CircuitPermit::Probe(_))).count();
                    match (&before, permit) {
                        (None, permit) => prop_assert_eq!(permit, Some(CircuitPermit::Regular)),
                        (Some(open), Some(permit)) => {
                            prop_assert!(matches!(permit, CircuitPermit::Probe(_)) && at(now) >= open.until);
                        }
                        (Some(open), None) => prop_assert!(at(now) < open.until || probes > 0),
                    }
                    under_way.extend(permit);
                    continue;
                }
                if under_way.is_empty() {
                    continue;
                }
                let permit = under_way.swap_remove(which % under_way.len());
                let signal = [CircuitSignal::Alive, CircuitSignal::Failing, CircuitSignal::Failing, CircuitSignal::Nothing][usize::from(what - 2)];
                circuit.record_result(permit, signal, "", &POLICY, at(now), jitter);
                match (signal, before, circuit.open()) {
                    (CircuitSignal::Alive, _, after) => {
                        prop_assert_eq!(after, None);
                        row = 0;
                    }
                    (CircuitSignal::Nothing, before, after) => prop_assert_eq!(before.as_ref(), after),
                    (CircuitSignal::Failing, None, after) => {
                        row += 1;
                        prop_assert_eq!(after.is_some(), row >= 3);
                        if let Some(open) = after {
                            row = 0;
                            prop_assert!(open.until >= at(now + 5) && open.until <= at(now + 10));
                        }
                    }
                    (CircuitSignal::Failing, Some(before), after) => {
                        let after = after.unwrap();
                        let wait = after.until - at(now);
                        prop_assert!(*after == before
                            || (after.openings == before.openings + 1 && wait <= TimeDelta::seconds(300) && wait >= TimeDelta::seconds(20)));
                    }
                }
            }
        }
    }
}
