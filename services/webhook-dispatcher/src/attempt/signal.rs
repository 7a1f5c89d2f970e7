//! What an attempt says about its endpoint: for the circuit breaker, and as a pause that the receiver asks for.

use std::time::Duration;

use chrono::{DateTime, Utc};
use event_message::attempt_outcome::{Outcome, RetryAfter};

use crate::attempt::cause::Cause;
use crate::attempt::circuit::CircuitSignal;

/// What an attempt reveals about its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptSignal {
    /// For the circuit breaker.
    pub circuit: CircuitSignal,
    /// End of the pause that the receiver asks for.
    pub until: Option<DateTime<Utc>>,
}

impl AttemptSignal {
    /// Derives the signal from an outcome.
    pub fn of(
        outcome: &Outcome,
        cause: Option<Cause>,
        status: u16,
        max_retry_after: Duration,
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
        let until = after.map(|after: RetryAfter| after.at(now, max_retry_after));
        Self {
            circuit: signal,
            until,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);

    pub fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_763_760_000 + seconds, 0).unwrap()
    }

    pub fn signal(status: u16, after: Option<u32>, now: i64) -> AttemptSignal {
        let outcome = Outcome::of_status(
            status,
            after.map(|seconds| RetryAfter::fractional(seconds.into())),
        );
        AttemptSignal::of(
            &outcome,
            Cause::of_answer(&outcome, status),
            status,
            MAX_RETRY_AFTER,
            at(now),
        )
    }

    #[test]
    fn a_response_is_a_signal_about_the_endpoint() {
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
        let unsent = AttemptSignal::of(&unsent, Some(Cause::Content), 0, MAX_RETRY_AFTER, at(0));
        assert_eq!(unsent.circuit, CircuitSignal::Nothing);
        let unanswered = Outcome::Retry { after: None };
        for cause in [
            Cause::Unreachable,
            Cause::Timeout,
            Cause::Tls,
            Cause::Address,
        ] {
            let signal = AttemptSignal::of(&unanswered, Some(cause), 0, MAX_RETRY_AFTER, at(0));
            assert_eq!(signal.circuit, CircuitSignal::Failing);
        }
    }
}
