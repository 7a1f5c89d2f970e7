//! Admission of an endpoint: its circuit is not open, its receiver asked for no pause, and its rate limit is not
//! exhausted.
//!
//! The `Retry-After` of a 429 or 503 concerns the receiver, so it pauses the whole endpoint. After the pause one
//! delivery goes first, as a probe: sending the whole backlog would likely be refused again. A response lets the rest
//! follow. If the probe fails, the endpoint waits as before the first probe of an open circuit, or until its circuit
//! opens.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use event_message::outcome::{Outcome, RetryAfter};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::attempt::cause::Cause;
use crate::attempt::circuit::{Circuit, CircuitPermit, CircuitPolicy, CircuitSignal, OpenCircuit};
use crate::attempt::rate::{Bucket, Limit};

/// Key of the stored gate.
pub const STORED_GATE_KEY: &str = "gate";
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

/// A pause requested by the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = WebhookHold)]
pub struct RetryAfterPause {
    /// Start of the pause.
    pub since: DateTime<Utc>,
    /// End of the pause.
    pub until: DateTime<Utc>,
    /// The response that requested it.
    pub reason: String,
}

impl RetryAfterPause {
    /// True if a probe may be sent. A clock that was set back does not extend the pause.
    fn is_over(&self, max: Duration, now: DateTime<Utc>) -> bool {
        let max = TimeDelta::from_std(max).unwrap_or(TimeDelta::MAX);
        now >= self.until || self.until - now > max
    }
}

/// State of a gate that survives restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The circuit, while it is open.
    pub open: Option<OpenCircuit>,
    /// The pause requested by the receiver.
    pub held: Option<RetryAfterPause>,
}

/// The gate as stored.
#[derive(Debug, Deserialize, Serialize)]
pub struct StoredGate {
    /// Revision of the endpoint. The state is discarded if it differs.
    pub revision: i64,
    /// State of the circuit breaker and of the pause.
    pub state: State,
}

impl StoredGate {
    /// Reads the stored state. Returns the default if there is none, or if it is of another revision.
    pub fn read(text: Option<&String>, revision: i64) -> State {
        text.and_then(|text| serde_json::from_str::<Self>(text).ok())
            .filter(|stored| stored.revision == revision)
            .map(|stored| stored.state)
            .unwrap_or_default()
    }
}

/// What an attempt reveals about its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptSignal {
    circuit: CircuitSignal,
    until: Option<DateTime<Utc>>,
}

impl AttemptSignal {
    /// Derives the signal from an outcome.
    pub fn of(
        outcome: &Outcome,
        cause: Option<Cause>,
        status: u16,
        rules: &AdmissionRules,
        now: DateTime<Utc>,
    ) -> Self {
        let after = match outcome {
            Outcome::Retry { after } if cause == Some(Cause::Limited) || status == 503 => *after,
            _ => None,
        };
        let signal = match (outcome, cause) {
            (_, Some(Cause::Content)) => CircuitSignal::Nothing,
            // A receiver that sends `Retry-After` works.
            (Outcome::Retry { .. }, Some(Cause::Limited)) if after.is_some() => {
                CircuitSignal::Alive
            }
            (Outcome::Retry { .. }, _) => CircuitSignal::Failing,
            _ => CircuitSignal::Alive,
        };
        let until = after.map(|after: RetryAfter| after.at(now, rules.max_retry_after));
        Self {
            circuit: signal,
            until,
        }
    }
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
mod tests {
    use std::time::Duration;

    use chrono::TimeDelta;
    use proptest::prelude::*;

    use super::*;

    const RULES: AdmissionRules = AdmissionRules {
        circuit: CircuitPolicy {
            failure_threshold: 2,
            initial_interval: Duration::from_secs(10),
            multiplier: 2,
            max_interval: Duration::from_secs(60),
        },
        limit: None,
        max_retry_after: Duration::from_secs(3_600),
    };

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_763_760_000 + seconds, 0).unwrap()
    }

    fn signal(status: u16, after: Option<u32>, now: i64) -> AttemptSignal {
        let outcome = Outcome::of_status(
            status,
            after.map(|seconds| RetryAfter::fractional(seconds.into())),
        );
        AttemptSignal::of(
            &outcome,
            Cause::of_answer(&outcome, status),
            status,
            &RULES,
            at(now),
        )
    }

    #[test]
    fn an_answer_is_a_lesson_about_the_endpoint() {
        let signs = [
            (204, None, CircuitSignal::Alive, None),
            (404, None, CircuitSignal::Alive, None),
            (410, None, CircuitSignal::Alive, None),
            (500, None, CircuitSignal::Failing, None),
            (500, Some(9), CircuitSignal::Failing, None),
            (503, Some(9), CircuitSignal::Failing, Some(9)),
            (429, Some(9), CircuitSignal::Alive, Some(9)),
            (429, None, CircuitSignal::Failing, None),
        ];
        for (status, after, circuit, until) in signs {
            let until = until.map(at);
            assert_eq!(
                signal(status, after, 0),
                AttemptSignal { circuit, until },
                "{status}"
            );
        }
        let unsent = Outcome::Permanent {
            reason: String::new(),
        };
        let unsent = AttemptSignal::of(&unsent, Some(Cause::Content), 0, &RULES, at(0));
        assert_eq!(unsent.circuit, CircuitSignal::Nothing);
        let unanswered = Outcome::Retry { after: None };
        for cause in [
            Cause::Unreachable,
            Cause::Timeout,
            Cause::Tls,
            Cause::Address,
        ] {
            let signal = AttemptSignal::of(&unanswered, Some(cause), 0, &RULES, at(0));
            assert_eq!(signal.circuit, CircuitSignal::Failing);
        }
    }

    #[test]
    fn a_receiver_that_asks_for_a_pause_gets_it_from_the_whole_endpoint() {
        let mut gate = Gate::default();
        let permit = gate.try_acquire(&RULES, at(0)).unwrap();
        assert!(gate.record_result(
            permit,
            &signal(429, Some(30), 0),
            "slow",
            &RULES,
            at(0),
            1.0
        ));
        assert_eq!(gate.available(&RULES, at(29)), Err(Closed::Until(at(30))));
        assert_eq!(gate.try_acquire(&RULES, at(29)), None);
        // A request from before the pause asks for less: the longer pause counts.
        assert!(!gate.record_result(
            CircuitPermit::Regular,
            &signal(429, Some(5), 1),
            "",
            &RULES,
            at(1),
            1.0
        ));
        assert!(gate.record_result(
            CircuitPermit::Regular,
            &signal(503, Some(60), 1),
            "down",
            &RULES,
            at(1),
            1.0
        ));
        let held = gate.state().held.unwrap();
        assert_eq!(
            (held.since, held.until, held.reason.as_str()),
            (at(0), at(61), "down")
        );
        let mut next = Gate::new(gate.state());
        let permit = next.try_acquire(&RULES, at(61)).unwrap();
        assert!(next.record_result(permit, &signal(204, None, 61), "", &RULES, at(61), 1.0));
        assert_eq!(next.state(), State::default());
    }

    #[test]
    fn after_a_pause_one_goes_first_and_only_its_success_lets_the_rest_follow() {
        let mut gate = Gate::default();
        let early = gate.try_acquire(&RULES, at(0)).unwrap();
        let permit = gate.try_acquire(&RULES, at(0)).unwrap();
        gate.record_result(
            permit,
            &signal(429, Some(30), 0),
            "slow",
            &RULES,
            at(0),
            1.0,
        );
        // Before and after a restart.
        for mut gate in [gate.clone(), Gate::new(gate.state())] {
            assert_eq!(gate.available(&RULES, at(30)), Ok(1));
            let probe = gate.try_acquire(&RULES, at(30)).unwrap();
            assert!(matches!(probe, CircuitPermit::Probe(_)));
            assert_eq!(gate.available(&RULES, at(31)), Err(Closed::Probing));
            // A request sent before the pause does not end it.
            gate.record_result(early, &signal(204, None, 31), "", &RULES, at(31), 1.0);
            assert_eq!(gate.available(&RULES, at(31)), Err(Closed::Probing));
            // A second pause, then a failure without `Retry-After`.
            gate.record_result(
                probe,
                &signal(429, Some(20), 32),
                "slow",
                &RULES,
                at(32),
                1.0,
            );
            assert_eq!(gate.available(&RULES, at(51)), Err(Closed::Until(at(52))));
            let probe = gate.try_acquire(&RULES, at(52)).unwrap();
            gate.record_result(probe, &signal(500, None, 53), "down", &RULES, at(53), 1.0);
            assert_eq!(gate.available(&RULES, at(53)), Err(Closed::Until(at(63))));
            let probe = gate.try_acquire(&RULES, at(63)).unwrap();
            gate.release(probe);
            let probe = gate.try_acquire(&RULES, at(63)).unwrap();
            gate.record_result(probe, &signal(204, None, 64), "", &RULES, at(64), 1.0);
            assert_eq!(gate.available(&RULES, at(64)), Ok(usize::MAX));
            assert_eq!(gate.state(), State::default());
        }
    }

    #[test]
    fn a_probe_that_fails_may_open_the_circuit_and_a_clock_set_back_ends_a_pause() {
        let mut gate = Gate::default();
        let permit = gate.try_acquire(&RULES, at(0)).unwrap();
        gate.record_result(permit, &signal(503, Some(30), 0), "", &RULES, at(0), 1.0);
        assert_eq!(gate.available(&RULES, at(-4_000)), Ok(1));
        let probe = gate.try_acquire(&RULES, at(30)).unwrap();
        gate.record_result(probe, &signal(503, None, 30), "", &RULES, at(30), 1.0);
        let state = gate.state();
        assert!(state.open.is_some() && state.held.is_none(), "{state:?}");
    }

    #[test]
    fn a_half_open_circuit_has_room_for_one() {
        let mut gate = Gate::default();
        for _ in 0..2 {
            let permit = gate.try_acquire(&RULES, at(0)).unwrap();
            gate.record_result(permit, &signal(500, None, 0), "", &RULES, at(0), 1.0);
        }
        assert_eq!(gate.available(&RULES, at(9)), Err(Closed::Until(at(10))));
        assert_eq!(gate.available(&RULES, at(10)), Ok(1));
        let probe = gate.try_acquire(&RULES, at(10)).unwrap();
        assert_eq!(gate.available(&RULES, at(10)), Err(Closed::Probing));
        gate.release(probe);
        assert_eq!(gate.available(&RULES, at(10)), Ok(1));
    }

    proptest! {
        #[test]
        fn whatever_the_clock_said_when_it_closed_it_lets_one_in_within_its_own_waits(
            ahead in -40_000_000i64..40_000_000, status in prop::sample::select(vec![429u16, 500, 503]),
            after in prop::option::of(0u32..100_000), limited in any::<bool>(), jitter in 0.0f64..1.0,
        ) {
            let limit = Limit { rate: "30/m".parse().unwrap(), burst: 1 };
            let rules = AdmissionRules { limit: limited.then_some(limit), ..RULES };
            let mut gate = Gate::default();
            for _ in 0..2 {
                if let Some(permit) = gate.try_acquire(&rules, at(ahead)) {
                    gate.record_result(permit, &signal(status, after, ahead), "", &rules, at(ahead), jitter);
                }
            }
            let longest = rules.max_retry_after.max(rules.circuit.max_interval);
            let latest = at(0) + TimeDelta::from_std(longest).unwrap();
            for gate in [Gate::new(gate.state()), gate] {
                // A pause stored by a clock that was ahead ends as well.
                prop_assert!(gate.available(&rules, latest.max(at(ahead) + TimeDelta::from_std(longest).unwrap())).is_ok());
                if let Err(Closed::Until(until)) = gate.available(&rules, at(0)) {
                    prop_assert!(until <= latest);
                }
            }
        }

        #[test]
        fn room_is_what_can_enter_and_closed_until_says_when(
            steps in prop::collection::vec((0usize..6, 0i64..40, 0.0f64..1.0), 1..120), limited in any::<bool>(),
        ) {
            let limit = Limit { rate: "30/m".parse().unwrap(), burst: 3 };
            let rules = AdmissionRules { limit: limited.then_some(limit), ..RULES };
            let (mut gate, mut now, mut under_way) = (Gate::default(), 0, Vec::new());
            for (what, later, jitter) in steps {
                now += later;
                match gate.available(&rules, at(now)) {
                    Ok(available) => {
                        let mut trial = gate.clone();
                        for _ in 0..available.min(10) {
                            prop_assert!(trial.try_acquire(&rules, at(now)).is_some());
                        }
                        prop_assert!(available > 10 || trial.try_acquire(&rules, at(now)).is_none());
                    }
                    Err(closed) => {
                        prop_assert!(gate.clone().try_acquire(&rules, at(now)).is_none());
                        if let Closed::Until(until) = closed {
                            prop_assert!(until > at(now) && until <= at(now) + TimeDelta::seconds(120));
                        }
                    }
                }
                under_way.extend(gate.try_acquire(&rules, at(now)));
                let answers = [(204, None), (404, None), (500, None), (500, None), (503, Some(20)), (429, Some(120))];
                let (status, after) = answers[what];
                if let Some(permit) = (jitter < 0.7).then(|| under_way.pop()).flatten() {
                    let before = gate.state();
                    let changed = gate.record_result(permit, &signal(status, after, now), "", &rules, at(now), jitter);
                    prop_assert_eq!(changed, gate.state() != before);
                }
            }
        }
    }
}
