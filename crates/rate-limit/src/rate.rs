//! A rate limit as written: `10/s`.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use crate::LeakyBucket;

/// Maximum requests per second.
const MAX_RATE: u32 = 10_000;

/// A number of requests per unit of time, as in `10/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests per second, minute or hour, as written.
    pub count: NonZeroU32,
    /// Interval between two requests.
    every: Duration,
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
            let seconds = match unit {
                "s" => 1,
                "m" => 60,
                "h" => 3_600,
                _ => return None,
            };
            let count: NonZeroU32 = count.parse().ok()?;
            let every = Duration::from_secs(seconds) / count.get();
            (count.get() <= MAX_RATE).then_some(Self { count, every })
        };
        read().ok_or_else(|| InvalidRate(text.to_owned()))
    }
}

/// A rate and its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Sustained rate.
    pub rate: Rate,
    /// Requests permitted at once after a pause.
    pub burst: NonZeroU32,
}

impl Limit {
    /// A full bucket.
    pub fn bucket(&self) -> LeakyBucket {
        LeakyBucket::new(self.burst, self.rate.every * self.burst.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        for (text, count, every) in [
            ("10/s", 10, Duration::from_millis(100)),
            ("1/m", 1, Duration::from_secs(60)),
            ("10000/s", 10_000, Duration::from_micros(100)),
            ("100/h", 100, Duration::from_secs(36)),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.count.get(), rate.every), (count, every));
        }
        for text in [
            "", "10", "0/s", "10001/s", "-1/s", "1.5/s", "1/d", "1/", "/s", " 1/s", "1/S",
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("as 10/s"), "{error}");
        }
    }
}
