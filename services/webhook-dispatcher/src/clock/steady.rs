//! Limits the effect of a host clock that is temporarily ahead: a wrong NTP server, or a virtual machine's first
//! minute.
//!
//! - [`SteadyClock`]: the time of day, except that a step ahead counts only once it has lasted. A minute of wrong
//!   time thus schedules nothing for next week, expires nothing, pauses no endpoint and deletes nothing. A step back
//!   counts immediately, as it ends a wrong time.
//! - [`keeps_pace`]: whether a clock advanced as time did.
//!
//! A clock that is wrong for longer than [`SETTLE_TIME`] is trusted: this process has no better source.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use event_message::schedule::MAX_DRIFT;

/// How long a step ahead must last before it counts.
pub const SETTLE_TIME: Duration = Duration::from_secs(10 * 60);

/// The time of day, without short steps ahead.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    time: DateTime<Utc>,
    at: Instant,
    ahead_since: Option<Instant>,
}

impl SteadyClock {
    /// Starts with a reading of the host's clock.
    pub const fn new(time: DateTime<Utc>, at: Instant) -> Self {
        Self {
            time,
            at,
            ahead_since: None,
        }
    }

    /// The time for this reading of the host's clock.
    pub fn read(&mut self, host: DateTime<Utc>, at: Instant) -> DateTime<Utc> {
        let passed = TimeDelta::from_std(at.saturating_duration_since(self.at));
        let expected = self.time + passed.unwrap_or_default();
        let is_ahead = host - expected > MAX_DRIFT;
        let since = is_ahead.then(|| *self.ahead_since.get_or_insert(at));
        let is_believed =
            since.is_none_or(|since| at.saturating_duration_since(since) >= SETTLE_TIME);
        self.ahead_since = since.filter(|_| !is_believed);
        self.time = if is_believed { host } else { expected };
        self.at = at;
        self.time
    }
}

/// True if the clock was not set between two readings.
pub fn keeps_pace(before: (DateTime<Utc>, Instant), after: (DateTime<Utc>, Instant)) -> bool {
    let passed = TimeDelta::from_std(after.1.saturating_duration_since(before.1));
    (after.0 - before.0 - passed.unwrap_or_default()).abs() <= MAX_DRIFT
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(1_763_760_000 + seconds)
    }

    const DAY: i64 = 24 * 60 * 60;

    #[test]
    fn a_step_ahead_counts_once_it_has_lasted_and_a_step_back_at_once() {
        let start = Instant::now();
        let mut clock = SteadyClock::new(time(0), start);
        let mut read = |host, at: u64| clock.read(time(host), start + Duration::from_secs(at));
        assert_eq!(read(30, 30), time(30));
        // Twenty days ahead for a minute.
        assert_eq!(read(20 * DAY + 60, 60), time(60));
        assert_eq!(read(20 * DAY + 120, 120), time(120));
        assert_eq!(read(125, 125), time(125));
        // It stays ahead.
        assert_eq!(read(DAY + 200, 200), time(200));
        assert_eq!(read(DAY + 799, 799), time(799));
        assert_eq!(read(DAY + 800, 800), time(DAY + 800));
        assert_eq!(read(900, 900), time(900));
    }

    #[test]
    fn a_clock_that_is_kept_right_is_followed() {
        let start = Instant::now();
        let mut clock = SteadyClock::new(time(0), start);
        for (host, at) in [(59, 0), (58, 10), (100, 41), (99, 42)] {
            let at = start + Duration::from_secs(at);
            assert_eq!(clock.read(time(host), at), time(host));
        }
    }

    #[test]
    fn a_clock_that_was_set_does_not_keep_pace() {
        let start = Instant::now();
        let reading = |host, at: u64| (time(host), start + Duration::from_secs(at));
        let before = reading(0, 0);
        assert!(keeps_pace(before, reading(3_600, 3_600)));
        assert!(keeps_pace(before, reading(3_570, 3_600)));
        assert!(!keeps_pace(before, reading(20 * DAY, 3_600)));
        assert!(!keeps_pace(before, reading(-20 * DAY, 3_600)));
    }

    proptest! {
        #[test]
        fn a_step_ahead_that_does_not_last_is_not_seen(
            readings in prop::collection::vec((1_u64..120, any::<bool>(), 0_i64..30, 1_i64..40), 1..60),
        ) {
            let start = Instant::now();
            let (mut clock, mut passed, mut wrong_for) = (SteadyClock::new(time(0), start), 0, 0);
            for (seconds, is_wrong, drift, days) in readings {
                passed += seconds;
                // Longest time the clock may have been wrong: since the previous reading.
                wrong_for = if is_wrong { wrong_for + seconds } else { 0 };
                let right = i64::try_from(passed).unwrap();
                let host = time(right + if is_wrong { days * DAY } else { drift });
                let read = clock.read(host, start + Duration::from_secs(passed));
                if !is_wrong {
                    prop_assert_eq!(read, host);
                } else if wrong_for <= SETTLE_TIME.as_secs() {
                    prop_assert!((read - time(right)).abs() < TimeDelta::seconds(30));
                }
            }
        }
    }
}
