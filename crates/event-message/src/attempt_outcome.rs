//! The result of an attempt.
//!
//! Some formats also evaluate the response body. For the others:
//!
//! - 2xx: delivered.
//! - 410: the receiver is gone. The delivery is given up.
//! - 408, 409, 425, 429 and 5xx: the receiver may recover. Retried.
//! - Other statuses, including redirects: the same request would get the same response. Given up immediately.
//! - No response (DNS, connect, TLS, reset, deadline, forbidden address): retried.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

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

    /// The time of the retry, at most `max` from now.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_retry_after_are_read() {
        assert_eq!(
            RetryAfter::parse("1.5"),
            Some(RetryAfter::Delay(Duration::from_millis(1500)))
        );
        let at = DateTime::from_timestamp(1_763_762_400, 0).unwrap();
        assert_eq!(
            RetryAfter::parse("Fri, 21 Nov 2025 22:00:00 GMT"),
            Some(RetryAfter::At(at))
        );
        for nonsense in ["", "-1", "soon", ".", "1.5.1", "1e3"] {
            assert_eq!(RetryAfter::parse(nonsense), None, "{nonsense}");
        }
    }
}
