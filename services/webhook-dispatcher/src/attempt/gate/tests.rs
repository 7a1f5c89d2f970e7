use std::num::NonZeroU32;
use std::sync::LazyLock;

use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;
use crate::attempt::retry::Intervals;
use crate::attempt::signal::tests::{MAX_RETRY_AFTER, at, signal};

const RULES: AdmissionRules = AdmissionRules {
    circuit: CircuitPolicy {
        failure_threshold: 2,
        intervals: Intervals {
            initial_interval: Duration::from_secs(10),
            multiplier: 2,
            max_interval: Duration::from_secs(60),
        },
    },
    limit: None,
    max_retry_after: MAX_RETRY_AFTER,
};

/// The clock that is never set.
fn instant(now: DateTime<Utc>) -> Instant {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    *BEGIN + (now - at(-100_000_000)).to_std().unwrap()
}

impl Gate {
    fn has(&mut self, rules: &AdmissionRules, now: DateTime<Utc>) -> Result<usize, Closed> {
        self.available(rules, now, instant(now))
    }

    fn acquire(&mut self, rules: &AdmissionRules, now: DateTime<Utc>) -> Option<CircuitPermit> {
        self.try_acquire(rules, now, instant(now))
    }
}

#[test]
fn a_receiver_that_asks_for_a_pause_gets_it_from_the_whole_endpoint() {
    let mut gate = Gate::default();
    let permit = gate.acquire(&RULES, at(0)).unwrap();
    assert!(gate.record_result(
        permit,
        &signal(429, Some(30), 0),
        "slow",
        &RULES,
        at(0),
        1.0
    ));
    assert_eq!(gate.has(&RULES, at(29)), Err(Closed::Until(at(30))));
    assert_eq!(gate.acquire(&RULES, at(29)), None);
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
    let permit = next.acquire(&RULES, at(61)).unwrap();
    assert!(next.record_result(permit, &signal(204, None, 61), "", &RULES, at(61), 1.0));
    assert_eq!(next.state(), State::default());
}

#[test]
fn after_a_pause_one_goes_first_and_only_its_success_lets_the_rest_follow() {
    let mut gate = Gate::default();
    let early = gate.acquire(&RULES, at(0)).unwrap();
    let permit = gate.acquire(&RULES, at(0)).unwrap();
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
        assert_eq!(gate.has(&RULES, at(30)), Ok(1));
        let probe = gate.acquire(&RULES, at(30)).unwrap();
        assert!(matches!(probe, CircuitPermit::Probe(_)));
        assert_eq!(gate.has(&RULES, at(31)), Err(Closed::Probing));
        // A request sent before the pause does not end it.
        gate.record_result(early, &signal(204, None, 31), "", &RULES, at(31), 1.0);
        assert_eq!(gate.has(&RULES, at(31)), Err(Closed::Probing));
        // A second pause, then a failure without `Retry-After`.
        gate.record_result(
            probe,
            &signal(429, Some(20), 32),
            "slow",
            &RULES,
            at(32),
            1.0,
        );
        assert_eq!(gate.has(&RULES, at(51)), Err(Closed::Until(at(52))));
        let probe = gate.acquire(&RULES, at(52)).unwrap();
        gate.record_result(probe, &signal(500, None, 53), "down", &RULES, at(53), 1.0);
        assert_eq!(gate.has(&RULES, at(53)), Err(Closed::Until(at(63))));
        let probe = gate.acquire(&RULES, at(63)).unwrap();
        gate.release(probe);
        let probe = gate.acquire(&RULES, at(63)).unwrap();
        gate.record_result(probe, &signal(204, None, 64), "", &RULES, at(64), 1.0);
        assert_eq!(gate.has(&RULES, at(64)), Ok(usize::MAX));
        assert_eq!(gate.state(), State::default());
    }
}

#[test]
fn a_probe_that_fails_may_open_the_circuit_and_a_clock_set_back_ends_a_pause() {
    let mut gate = Gate::default();
    let permit = gate.acquire(&RULES, at(0)).unwrap();
    gate.record_result(permit, &signal(503, Some(30), 0), "", &RULES, at(0), 1.0);
    assert_eq!(gate.has(&RULES, at(-4_000)), Ok(1));
    let probe = gate.acquire(&RULES, at(30)).unwrap();
    gate.record_result(probe, &signal(503, None, 30), "", &RULES, at(30), 1.0);
    let state = gate.state();
    assert!(state.open.is_some() && state.held.is_none(), "{state:?}");
}

#[test]
fn a_half_open_circuit_has_room_for_one() {
    let mut gate = Gate::default();
    for _ in 0..2 {
        let permit = gate.acquire(&RULES, at(0)).unwrap();
        gate.record_result(permit, &signal(500, None, 0), "", &RULES, at(0), 1.0);
    }
    assert_eq!(gate.has(&RULES, at(9)), Err(Closed::Until(at(10))));
    assert_eq!(gate.has(&RULES, at(10)), Ok(1));
    let probe = gate.acquire(&RULES, at(10)).unwrap();
    assert_eq!(gate.has(&RULES, at(10)), Err(Closed::Probing));
    gate.release(probe);
    assert_eq!(gate.has(&RULES, at(10)), Ok(1));
}

proptest! {
    #[test]
    fn whatever_the_clock_said_when_it_closed_it_lets_one_in_within_its_own_waits(
        ahead in -40_000_000i64..40_000_000, status in prop::sample::select(vec![429u16, 500, 503]),
        after in prop::option::of(0u32..100_000), limited in any::<bool>(), jitter in 0.0f64..1.0,
    ) {
        let limit = Limit { rate: "30/m".parse().unwrap(), burst: NonZeroU32::MIN };
        let rules = AdmissionRules { limit: limited.then_some(limit), ..RULES };
        let mut gate = Gate::default();
        for _ in 0..2 {
            if let Some(permit) = gate.acquire(&rules, at(ahead)) {
                gate.record_result(permit, &signal(status, after, ahead), "", &rules, at(ahead), jitter);
            }
        }
        let longest = rules.max_retry_after.max(rules.circuit.intervals.max_interval);
        let latest = at(0) + TimeDelta::from_std(longest).unwrap();
        for mut gate in [Gate::new(gate.state()), gate] {
            // A pause stored by a clock that was ahead ends as well.
            prop_assert!(gate.has(&rules, latest.max(at(ahead) + TimeDelta::from_std(longest).unwrap())).is_ok());
            if let Err(Closed::Until(until)) = gate.has(&rules, at(0)) {
                prop_assert!(until <= latest);
            }
        }
    }

    #[test]
    fn room_is_what_can_enter_and_closed_until_says_when(
        steps in prop::collection::vec((0usize..6, 0i64..40, 0.0f64..1.0), 1..120), limited in any::<bool>(),
    ) {
        let limit = Limit { rate: "30/m".parse().unwrap(), burst: NonZeroU32::new(3).unwrap() };
        let rules = AdmissionRules { limit: limited.then_some(limit), ..RULES };
        let (mut gate, mut now, mut under_way) = (Gate::default(), 0, Vec::new());
        for (what, later, jitter) in steps {
            now += later;
            match gate.has(&rules, at(now)) {
                Ok(available) => {
                    let mut trial = gate.clone();
                    for _ in 0..available.min(10) {
                        prop_assert!(trial.acquire(&rules, at(now)).is_some());
                    }
                    prop_assert!(available > 10 || trial.acquire(&rules, at(now)).is_none());
                }
                Err(closed) => {
                    prop_assert!(gate.clone().acquire(&rules, at(now)).is_none());
                    if let Closed::Until(until) = closed {
                        prop_assert!(until > at(now) && until <= at(now) + TimeDelta::seconds(120));
                    }
                }
            }
            under_way.extend(gate.acquire(&rules, at(now)));
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
