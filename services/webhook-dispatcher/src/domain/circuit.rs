//! Whether an endpoint is tried at all.
//!
//! - Closed: everything is sent.
//! - It opens after `failure_threshold` failures in a row that no delivery is to blame for: no connection, no answer in time, a 5xx and the like.
//!   While it is open nothing is sent.
//! - After a while it is half-open: one delivery is let through, the probe. Any answer that comes from a receiver at work closes the
//!   circuit, a failure opens it again for longer.
//!
//! The wait before the n-th probe lies between half of initial_interval × multiplier^(n-1) and all of it, at most `max_interval`: long enough to leave a
//! receiver alone, and not the same for all endpoints of one that went down. Requests that were under way when the circuit opened may
//! close it, but fail without a consequence.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

/// No wait before a probe is longer, so that a receiver that is back is found out soon.
pub const LONGEST: Duration = Duration::from_secs(5 * 60);

/// When a circuit opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitPolicy {
    /// So many failures in a row open it; 0: it never opens.
    pub failure_threshold: u32,
    /// Upper bound of the wait before the first probe.
    pub initial_interval: Duration,
    /// Factor between these bounds.
    pub multiplier: u32,
    /// Upper bound of every wait.
    pub max_interval: Duration,
}

impl CircuitPolicy {
    /// How long nothing is sent before a probe.
    pub(super) fn wait(&self, openings: u32, jitter: f64) -> TimeDelta {
        let factor = self.multiplier.saturating_pow(openings.saturating_sub(1));
        let bound = self
            .initial_interval
            .saturating_mul(factor)
            .min(self.max_interval);
        let wait = bound.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
        TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX)
    }
}

/// What an attempt says of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitSignal {
    /// The receiver is at work, whatever it thinks of this delivery.
    Alive,
    /// It is not, or cannot be reached.
    Failing,
    /// Nothing: no request was made.
    Nothing,
}

/// An open circuit. As JSON it survives restarts and goes to the next dispatcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCircuit {
    /// Since when.
    pub since: DateTime<Utc>,
    /// When the next probe may be sent.
    pub until: DateTime<Utc>,
    /// How often it has opened in a row.
    pub openings: u32,
    /// What the last failure was.
    pub reason: String,
}

impl OpenCircuit {
    /// True if a probe may be sent. A clock that was set back does not keep the circuit open.
    pub fn is_due(&self, now: DateTime<Utc>, longest: Duration) -> bool {
        let longest = TimeDelta::from_std(longest).unwrap_or(TimeDelta::MAX);
        now >= self.until || self.until - now > longest
    }
}

/// The right to make one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitPermit {
    /// The circuit was closed.
    Regular,
    /// The one attempt that an open circuit lets through.
    Probe(u64),
}

/// The circuit of one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Circuit {
    failures: u32,
    open: Option<OpenCircuit>,
    probe: Option<u64>,
    probes: u64,
}

impl Circuit {
    /// One that was open when it was last heard of.
    pub fn opened(open: Option<OpenCircuit>) -> Self {
        Self {
            open,
            ..Self::default()
        }
    }

    /// What is known of it while it is open.
    pub const fn open(&self) -> Option<&OpenCircuit> {
        self.open.as_ref()
    }

    /// True if [`Circuit::enter`] would let somebody in.
    pub fn lets_in(&self, policy: &CircuitPolicy, now: DateTime<Utc>) -> bool {
        match &self.open {
            None => true,
            Some(open) => self.probe.is_none() && open.is_due(now, policy.max_interval),
        }
    }

    /// True while a probe is under way.
    pub const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Asks for the right to make an attempt.
    pub fn enter(&mut self, policy: &CircuitPolicy, now: DateTime<Utc>) -> Option<CircuitPermit> {
        if !self.lets_in(policy, now) {
            return None;
        }
        match self.open {
            None => Some(CircuitPermit::Regular),
            Some(_) => Some(self.probe()),
        }
    }

    /// The right to make an attempt that others wait for, whether the circuit is open or not.
    pub(super) fn probe(&mut self) -> CircuitPermit {
        self.probes += 1;
        self.probe = Some(self.probes);
        CircuitPermit::Probe(self.probes)
    }

    /// True for the probe that others wait for.
    pub(super) fn awaits(&self, pass: CircuitPermit) -> bool {
        matches!(pass, CircuitPermit::Probe(number) if self.probe == Some(number))
    }

    /// What came of an attempt; `jitter` is a random number in 0..1.
    pub fn ended(
        &mut self,
        pass: CircuitPermit,
        sign: CircuitSignal,
        reason: &str,
        policy: &CircuitPolicy,
        now: DateTime<Utc>,
        jitter: f64,
    ) {
        let probed = self.abandon(pass);
        match (sign, &self.open) {
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
            // It was under way when the circuit opened.
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

    /// An attempt that nothing came of: another probe may be sent. True if it was the probe.
    pub fn abandon(&mut self, pass: CircuitPermit) -> bool {
        let probed = self.awaits(pass);
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
        initial_interval: Duration::from_secs(10),
        multiplier: 4,
        max_interval: Duration::from_secs(300),
    };

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_763_760_000 + seconds, 0).unwrap()
    }

    impl Circuit {
        fn attempt(&mut self, sign: CircuitSignal, now: DateTime<Utc>, jitter: f64) -> bool {
            let Some(pass) = self.enter(&POLICY, now) else {
                return false;
            };
            self.ended(pass, sign, "status 503", &POLICY, now, jitter);
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
        let [early, late] = [0; 2].map(|_| circuit.enter(&POLICY, at(0)).unwrap());
        circuit.fail(3, 0);
        circuit.ended(early, CircuitSignal::Failing, "", &POLICY, at(1), 1.0);
        assert_eq!(circuit.open().unwrap().openings, 1);
        let probe = circuit.enter(&POLICY, at(10)).unwrap();
        assert_eq!(circuit.enter(&POLICY, at(10)), None);
        assert!(circuit.is_probing());
        assert!(circuit.abandon(probe), "as if it had never been");
        let probe = circuit.enter(&POLICY, at(10)).unwrap();
        circuit.ended(probe, CircuitSignal::Nothing, "", &POLICY, at(11), 1.0);
        let probe = circuit.enter(&POLICY, at(11)).unwrap();
        circuit.ended(late, CircuitSignal::Alive, "", &POLICY, at(12), 1.0);
        assert_eq!(circuit.open(), None);
        circuit.ended(probe, CircuitSignal::Failing, "", &POLICY, at(13), 1.0);
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
            circuit.ended(
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
        /// Attempts that begin and end in any order, against the rules.
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
                    let pass = circuit.enter(&POLICY, at(now));
                    prop_assert_eq!(pass.is_some(), lets_in);
                    let probes = under_way.iter().filter(|pass| matches!(pass, CircuitPermit::Probe(_))).count();
                    match (&before, pass) {
                        (None, pass) => prop_assert_eq!(pass, Some(CircuitPermit::Regular)),
                        (Some(open), Some(pass)) => {
                            prop_assert!(matches!(pass, CircuitPermit::Probe(_)) && at(now) >= open.until);
                        }
                        (Some(open), None) => prop_assert!(at(now) < open.until || probes > 0),
                    }
                    under_way.extend(pass);
                    continue;
                }
                if under_way.is_empty() {
                    continue;
                }
                let pass = under_way.swap_remove(which % under_way.len());
                let sign = [CircuitSignal::Alive, CircuitSignal::Failing, CircuitSignal::Failing, CircuitSignal::Nothing][usize::from(what - 2)];
                circuit.ended(pass, sign, "", &POLICY, at(now), jitter);
                match (sign, before, circuit.open()) {
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
