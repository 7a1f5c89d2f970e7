//! Rate limits of endpoints.
//!
//! The generic cell rate algorithm (ITU-T I.371): a bucket of `burst` tokens that fills at a constant rate, stored as
//! a single time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// Maximum requests per second.
const MAX_RATE: u32 = 10_000;

/// Units of a rate and their seconds.
const UNITS: [(&str, u64); 3] = [("s", 1), ("m", 60), ("h", 3_600)];

/// A number of requests per unit of time, as in `10/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    seconds: u64,
}

/// Not a rate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no rate; a whole number from 1 to {MAX_RATE} a second, minute or hour, as 10/s, 30/m or 100/h"
)]
pub struct InvalidRate(String);

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let read = || {
            let (count, unit) = text.split_once('/')?;
            let (_, seconds) = UNITS.into_iter().find(|(word, _)| *word == unit)?;
            let count = count.parse().ok().filter(|n| (1..=MAX_RATE).contains(n))?;
            Some(Self { count, seconds })
        };
        read().ok_or_else(|| InvalidRate(text.to_owned()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, seconds)| *seconds == self.seconds);
        write!(f, "{}/{}", self.count, unit.map_or("", |(word, _)| word))
    }
}

impl Rate {
    /// Requests per second, minute or hour, as written.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Interval between two requests.
    fn interval(self) -> TimeDelta {
        let interval = Duration::from_secs(self.seconds) / self.count;
        TimeDelta::from_std(interval).unwrap_or(TimeDelta::MAX)
    }
}

/// A rate and its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Sustained rate.
    pub rate: Rate,
    /// Requests permitted at once after a pause, at least 1.
    pub burst: u32,
}

impl Limit {
    fn depth(&self) -> TimeDelta {
        self.rate.interval() * i32::try_from(self.burst).unwrap_or(i32::MAX)
    }
}

/// The tokens that are left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// When the bucket will be full.
    full_at: Option<DateTime<Utc>>,
}

impl Bucket {
    /// Time until the bucket is full. Never longer than for an empty bucket, even if the clock was set back.
    fn missing(&self, limit: &Limit, now: DateTime<Utc>) -> TimeDelta {
        let missing = self.full_at.map_or(TimeDelta::zero(), |at| at - now);
        missing.clamp(TimeDelta::zero(), limit.depth())
    }

    /// Requests permitted now.
    pub fn left(&self, limit: &Limit, now: DateTime<Utc>) -> u32 {
        let spare = limit.depth() - self.missing(limit, now);
        let count = spare.num_nanoseconds().unwrap_or(i64::MAX)
            / limit
                .rate
                .interval()
                .num_nanoseconds()
                .unwrap_or(i64::MAX)
                .max(1);
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// When the next request is permitted.
    pub fn next(&self, limit: &Limit, now: DateTime<Utc>) -> DateTime<Utc> {
        let spare = limit.depth() - self.missing(limit, now);
        now + (limit.rate.interval() - spare).max(TimeDelta::zero())
    }

    /// Takes a token. Returns false if there is none.
    pub fn take(&mut self, limit: &Limit, now: DateTime<Utc>) -> bool {
        if self.left(limit, now) == 0 {
            return false;
        }
        self.full_at = Some(now + self.missing(limit, now) + limit.rate.interval());
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(1_763_760_000_000 + millis).unwrap()
    }

    #[test]
    fn rates_are_read_and_written() {
        for text in ["10/s", "1/m", "10000/s", "100/h"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for text in [
            "", "10", "0/s", "10001/s", "-1/s", "1.5/s", "1/d", "1/", "/s", " 1/s", "1/S",
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("as 10/s"), "{error}");
        }
    }

    #[test]
    fn a_burst_and_then_the_pace() {
        let limit = Limit {
            rate: "2/s".parse().unwrap(),
            burst: 3,
        };
        let mut bucket = Bucket::default();
        let mut taken = Vec::new();
        for now in (0..3_000).step_by(100) {
            while bucket.take(&limit, at(now)) {
                taken.push(now);
            }
        }
        assert_eq!(taken, [0, 0, 0, 500, 1_000, 1_500, 2_000, 2_500]);
        assert_eq!(bucket.next(&limit, at(2_999)), at(3_000));
        assert_eq!(
            bucket.left(&limit, at(100_000)),
            3,
            "never more than a burst"
        );
        assert_eq!(
            bucket.next(&limit, at(-1_000_000)),
            at(-1_000_000 + 500),
            "the clock was set back"
        );
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_a_burst_and_its_pace(
            count in 1u32..50, unit in 0usize..3, burst in 1u32..20, pauses in prop::collection::vec(0i64..2_000, 1..300),
        ) {
            let rate = Rate { count, seconds: UNITS[unit].1 };
            let limit = Limit { rate, burst };
            let (mut bucket, mut now, mut taken) = (Bucket::default(), 0, Vec::new());
            for pause in pauses {
                now += pause;
                let (left, next) = (bucket.left(&limit, at(now)), bucket.next(&limit, at(now)));
                prop_assert!(left <= burst);
                prop_assert_eq!(left > 0, next <= at(now), "{} left, next {}", left, next);
                // At the predicted time a request is indeed permitted.
                prop_assert!(bucket.left(&limit, next) > 0);
                if bucket.take(&limit, at(now)) {
                    prop_assert_eq!(bucket.left(&limit, at(now)), left - 1);
                    taken.push(now);
                } else {
                    prop_assert_eq!(left, 0);
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, to) in taken.iter().enumerate().skip(first) {
                    let inside = i64::try_from(last - first + 1).unwrap();
                    let paced = (to - from) * 1_000_000 / rate.interval().num_nanoseconds().unwrap();
                    prop_assert!(inside <= i64::from(burst) + paced + 1, "{inside} in {} ms", to - from);
                }
            }
        }
    }
}
