//! What follows an attempt.
//!
//! Some formats also evaluate the response body. For the others:
//!
//! - 2xx: delivered.
//! - 410: the receiver is gone. The delivery is given up.
//! - 408, 409, 425, 429 and 5xx: the receiver may recover. Retried.
//! - Other statuses, including redirects: the same request would get the same response. Given up immediately.
//! - No response (DNS, connect, TLS, reset, deadline, forbidden address): retried.
//!
//! The wait before attempt n+1 is random between zero and `initial_interval` × `multiplier`^(n-1), at most
//! `max_interval`. This full jitter spreads the deliveries to an endpoint that recovers. A `Retry-After` makes the
//! wait longer, never shorter, up to `max_retry_after`. With `give_up_after`, the last attempt is made at the end of
//! that time.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// How often and when a delivery is attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum attempts, at least 1.
    pub max_attempts: u32,
    /// Upper bound of the wait after the first attempt.
    pub initial_interval: Duration,
    /// Factor between the bounds of consecutive waits.
    pub multiplier: u32,
    /// Upper bound of every wait.
    pub max_interval: Duration,
    /// Upper bound of a wait requested by the receiver.
    pub max_retry_after: Duration,
    /// No attempt is scheduled later than this after the delivery began. `None`: limited by `max_attempts` only.
    pub give_up_after: Option<Duration>,
}

impl RetryPolicy {
    /// Upper bound of the wait after an attempt, counted from 1.
    pub fn bound(&self, attempt: u32) -> Duration {
        let factor = self.multiplier.saturating_pow(attempt.saturating_sub(1));
        self.initial_interval
            .saturating_mul(factor)
            .min(self.max_interval)
    }
}

/// Result of an attempt, as evaluated by the endpoint's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Delivered.
    Delivered,
    /// The receiver may recover, or did not respond.
    Retry {
        /// The wait requested by the receiver.
        after: Option<RetryAfter>,
    },
    /// Repeating the request would not help.
    Permanent {
        /// Explanation for users.
        reason: String,
    },
    /// The receiver accepts no more events.
    Gone {
        /// Explanation for users.
        reason: String,
    },
}

impl Outcome {
    /// Interprets a status alone.
    pub fn of_status(status: u16, after: Option<RetryAfter>) -> Self {
        match status {
            200..=299 => Self::Delivered,
            410 => Self::Gone {
                reason: "the receiver wants no more events".to_owned(),
            },
            408 | 409 | 425 | 429 | 500..=599 => Self::Retry { after },
            _ => Self::Permanent {
                reason: "sending it again would not help".to_owned(),
            },
        }
    }
}

/// The two forms of the `Retry-After` header (RFC 9110 §10.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    /// After this duration.
    Delay(Duration),
    /// At this time.
    At(DateTime<Utc>),
}

impl RetryAfter {
    /// Parses the header. `None` if it has neither form.
    pub fn parse(value: &str) -> Option<Self> {
        let value = value.trim();
        let is_number = value
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        if is_number && let Ok(seconds) = value.parse() {
            return Some(Self::fractional(seconds));
        }
        DateTime::parse_from_rfc2822(value)
            .ok()
            .map(|time| Self::At(time.to_utc()))
    }

    /// A delay in seconds. RFC 9110 permits whole seconds only, but Discord and others send fractions.
    pub fn fractional(seconds: f64) -> Self {
        Self::Delay(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
    }

    /// The time of the retry, at most `most` from now.
    pub fn at(self, now: DateTime<Utc>, max: Duration) -> DateTime<Utc> {
        let latest = TimeDelta::from_std(max)
            .ok()
            .and_then(|max| now.checked_add_signed(max))
            .unwrap_or(DateTime::<Utc>::MAX_UTC);
        match self {
            Self::Delay(delay) => TimeDelta::from_std(delay)
                .ok()
                .and_then(|delay| now.checked_add_signed(delay))
                .map_or(latest, |time| time.min(latest)),
            Self::At(time) => time.min(latest),
        }
    }
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
    let wait = policy.bound(attempt).mul_f64(jitter.clamp(0.0, 1.0));
    let at = now + TimeDelta::from_std(wait).unwrap_or(TimeDelta::days(7));
    let at = at.max(asked);
    // Make the last attempt at the end of the period, not before.
    Next::Retry {
        at: end.map_or(at, |end| at.min(end)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 5,
        initial_interval: Duration::from_secs(10),
        multiplier: 4,
        max_interval: Duration::from_secs(1_000),
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
        assert_eq!(
            RetryAfter::parse("1.5"),
            Some(RetryAfter::Delay(Duration::from_millis(1500)))
        );
        for nonsense in ["", "-1", "soon", ".", "1.5.1", "1e3"] {
            assert_eq!(RetryAfter::parse(nonsense), None, "{nonsense}");
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
                    prop_assert!((at - now()).to_std().unwrap() <= POLICY.bound(attempt));
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
