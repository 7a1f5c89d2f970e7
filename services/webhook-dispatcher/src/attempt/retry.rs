//! What follows an attempt.
//!
//! The wait before attempt n+1 is random between zero and `initial_interval` × `multiplier`^(n-1), at most
//! `max_interval`. This full jitter spreads the deliveries to an endpoint that recovers. A `Retry-After` makes the
//! wait longer, never shorter, up to `max_retry_after`. With `give_up_after`, the last attempt is made at the end of
//! that time.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use event_message::attempt_outcome::Outcome;
use serde::{Deserialize, Serialize};

/// `[webhook-dispatcher.retry]`: bounds of waits that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Intervals {
    /// Upper bound of the first wait.
    #[serde(with = "humantime_serde")]
    pub initial_interval: Duration,
    /// Factor between the bounds of consecutive waits.
    pub multiplier: u32,
    /// Upper bound of every wait.
    #[serde(with = "humantime_serde")]
    pub max_interval: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Self {
            initial_interval: Duration::from_secs(10),
            multiplier: 4,
            max_interval: Duration::from_secs(30 * 60 * 60),
        }
    }
}

impl Intervals {
    /// Upper bound of a wait, counted from 1.
    pub fn bound(&self, number: u32) -> Duration {
        let factor = self.multiplier.saturating_pow(number.saturating_sub(1));
        self.initial_interval
            .saturating_mul(factor)
            .min(self.max_interval)
    }
}

/// How often and when a delivery is attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum attempts, at least 1.
    pub max_attempts: u32,
    /// Bounds of the waits after attempts.
    pub intervals: Intervals,
    /// Upper bound of a wait requested by the receiver.
    pub max_retry_after: Duration,
    /// No attempt is scheduled later than this after the delivery began. `None`: limited by `max_attempts` only.
    pub give_up_after: Option<Duration>,
}

/// The next step for a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is delivered.
    Delivered,
    /// Schedule another attempt.
    Retry {
        /// When the attempt is due.
        at: DateTime<Utc>,
    },
    /// Give up: the delivery becomes a dead letter.
    GiveUp {
        /// Explanation for users.
        reason: String,
    },
}

/// Decides the next step after an attempt. `attempt` counts from 1, `began` is the start of the delivery, and
/// `jitter` is a random number in 0..1.
pub fn next_attempt(
    policy: &RetryPolicy,
    attempt: u32,
    began: DateTime<Utc>,
    outcome: &Outcome,
    now: DateTime<Utc>,
    jitter: f64,
) -> Next {
    let retry_after = match outcome {
        Outcome::Delivered => return Next::Delivered,
        Outcome::Permanent { reason } | Outcome::Gone { reason } => {
            return Next::GiveUp {
                reason: reason.clone(),
            };
        }
        Outcome::Retry { after } => *after,
    };
    if attempt >= policy.max_attempts {
        return Next::GiveUp {
            reason: format!("attempt {attempt} of {} failed", policy.max_attempts),
        };
    }
    // A start in the future was written by a clock that was ahead: count from now.
    let began = began.min(now);
    let end = policy
        .give_up_after
        .and_then(|after| began.checked_add_signed(TimeDelta::from_std(after).ok()?));
    let asked = retry_after.map_or(now, |after| after.at(now, policy.max_retry_after));
    if let Some(end) = end.filter(|end| now >= *end || asked > *end) {
        let after = (end - began).to_std().unwrap_or_default();
        return Next::GiveUp {
            reason: format!(
                "given up after {}, attempt {attempt} of {}",
                humantime::format_duration(after),
                policy.max_attempts
            ),
        };
    }
    let bound = policy.intervals.bound(attempt);
    let wait = bound.mul_f64(jitter.clamp(0.0, 1.0));
    let at = now + TimeDelta::from_std(wait).unwrap_or(TimeDelta::days(7));
    let at = at.max(asked);
    // Make the last attempt at the end of the period, not before.
    Next::Retry {
        at: end.map_or(at, |end| at.min(end)),
    }
}

#[cfg(test)]
mod tests {
    use event_message::attempt_outcome::RetryAfter;
    use proptest::prelude::*;

    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 5,
        intervals: Intervals {
            initial_interval: Duration::from_secs(10),
            multiplier: 4,
            max_interval: Duration::from_secs(1_000),
        },
        max_retry_after: Duration::from_secs(7 * 24 * 60 * 60),
        give_up_after: None,
    };

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_763_760_000, 0).unwrap()
    }

    fn status(code: u16) -> Outcome {
        Outcome::of_status(code, None)
    }

    fn seconds(next: &Next) -> i64 {
        match next {
            Next::Retry { at } => (*at - now()).num_seconds(),
            other => panic!("no retry: {other:?}"),
        }
    }

    #[test]
    fn statuses_decide() {
        for code in [200, 201, 202, 204, 299] {
            assert_eq!(
                next_attempt(&POLICY, 1, now(), &status(code), now(), 0.5),
                Next::Delivered,
                "{code}"
            );
        }
        for code in [408, 409, 425, 429, 500, 502, 503, 504, 599] {
            assert!(
                matches!(
                    next_attempt(&POLICY, 1, now(), &status(code), now(), 0.5),
                    Next::Retry { .. }
                ),
                "{code}"
            );
        }
        for code in [100, 301, 302, 307, 400, 401, 403, 404, 410, 413, 422] {
            assert!(
                matches!(
                    next_attempt(&POLICY, 1, now(), &status(code), now(), 0.5),
                    Next::GiveUp { .. }
                ),
                "{code}"
            );
        }
        assert!(matches!(
            next_attempt(
                &POLICY,
                1,
                now(),
                &Outcome::Retry { after: None },
                now(),
                0.5
            ),
            Next::Retry { .. }
        ));
    }

    #[test]
    fn both_forms_of_retry_after_are_obeyed() {
        let after = |value: &str| Outcome::of_status(429, RetryAfter::parse(value));
        assert_eq!(
            seconds(&next_attempt(&POLICY, 1, now(), &after("3600"), now(), 0.9)),
            3600
        );
        assert_eq!(
            seconds(&next_attempt(
                &POLICY,
                1,
                now(),
                &after("Fri, 21 Nov 2025 22:00:00 GMT"),
                now(),
                0.9
            )),
            2400
        );
        assert_eq!(
            seconds(&next_attempt(&POLICY, 1, now(), &after("1"), now(), 0.9)),
            9,
            "never sooner than our own wait"
        );
        assert_eq!(
            seconds(&next_attempt(
                &POLICY,
                1,
                now(),
                &after("99999999999"),
                now(),
                0.9
            )),
            7 * 86_400,
            "nor for ever"
        );
        let policy = RetryPolicy {
            max_retry_after: Duration::from_secs(60),
            ..POLICY
        };
        for value in ["3600", "Fri, 21 Nov 2025 22:00:00 GMT"] {
            let next = next_attempt(&policy, 1, now(), &after(value), now(), 0.9);
            assert_eq!(seconds(&next), 60, "cut to what the endpoint allows");
        }
    }

    proptest! {
        #[test]
        fn with_an_end_the_last_attempt_is_at_it(
            age in 0i64..2_000, end in 1u64..2_000, attempt in 1u32..6, jitter in 0.0f64..1.0, asked in prop::option::of(0u32..2_000),
        ) {
            let policy = RetryPolicy { give_up_after: Some(Duration::from_secs(end)), ..POLICY };
            let began = now() - TimeDelta::seconds(age);
            let end = began + TimeDelta::seconds(end.cast_signed());
            let asked = asked.map(|seconds| RetryAfter::fractional(seconds.into()));
            let outcome = Outcome::of_status(503, asked);
            match (next_attempt(&policy, attempt, began, &outcome, now(), jitter), next_attempt(&POLICY, attempt, began, &outcome, now(), jitter)) {
                (Next::Retry { at }, Next::Retry { at: without }) => {
                    prop_assert!(now() < end);
                    prop_assert_eq!(at, without.min(end));
                    prop_assert!(asked.is_none_or(|asked| at >= asked.at(now(), POLICY.max_retry_after)));
                }
                (Next::GiveUp { .. }, Next::Retry { .. }) => {
                    prop_assert!(now() >= end || asked.is_some_and(|asked| asked.at(now(), POLICY.max_retry_after) > end));
                }
                (given_up, without) => prop_assert_eq!(given_up, without),
            }
        }

        #[test]
        fn waits_stay_in_their_bounds_and_attempts_end(attempt in 1u32..200, jitter in 0.0f64..1.0, code in 500u16..600) {
            match next_attempt(&POLICY, attempt, now(), &status(code), now(), jitter) {
                Next::Retry { at } => {
                    prop_assert!(attempt < POLICY.max_attempts);
                    prop_assert!(at >= now() && at <= now() + TimeDelta::seconds(1_000));
                    prop_assert!((at - now()).to_std().unwrap() <= POLICY.intervals.bound(attempt));
                }
                Next::GiveUp { .. } => prop_assert!(attempt >= POLICY.max_attempts),
                Next::Delivered => prop_assert!(false, "{code} delivered"),
            }
        }

        #[test]
        fn any_header_is_read_or_ignored(value in "\\PC{0,40}") {
            let answer = Outcome::of_status(503, RetryAfter::parse(&value));
            let Next::Retry { at } = next_attempt(&POLICY, 1, now(), &answer, now(), 0.0) else { panic!("gave up") };
            prop_assert!(at >= now() && at <= now() + TimeDelta::days(7));
        }
    }
}
