//! Rate limit of commands, however many doorbells arrive: a number per second, with bursts of at most one second's worth.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Period of the rate of commands.
const PERIOD: Duration = Duration::from_secs(1);

/// Limits the rate of commands; a caller beyond the limit waits.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    bucket: Mutex<LeakyBucket>,
}

impl RateLimiter {
    pub(crate) fn new(per_second: NonZeroU32) -> Self {
        Self {
            bucket: Mutex::new(LeakyBucket::new(per_second, PERIOD)),
        }
    }

    /// Waits for a permit.
    pub(crate) async fn acquire(&self) {
        let now = Instant::now();
        let wait = {
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take(now)
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

/// A bucket that holds the permits of one period (generic cell rate algorithm).
#[derive(Debug)]
pub struct LeakyBucket {
    every: Duration,
    period: Duration,
    /// When the bucket will be full again; `None` if it was never used.
    full_at: Option<Instant>,
}

impl LeakyBucket {
    /// A full bucket of this number of permits per period.
    pub fn new(permits: NonZeroU32, period: Duration) -> Self {
        Self {
            every: period / permits.get(),
            period,
            full_at: None,
        }
    }

    /// When the bucket will be full again if a permit is taken now.
    fn full_after(&self, now: Instant) -> Instant {
        self.full_at.map_or(now, |at| at.max(now)) + self.every
    }

    /// Takes a permit. Returns how long to wait for it.
    fn take(&mut self, now: Instant) -> Duration {
        let full_at = self.full_after(now);
        self.full_at = Some(full_at);
        (full_at - now).saturating_sub(self.period)
    }

    /// Takes a permit if there is one.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let full_at = self.full_after(now);
        let has_permit = full_at - now <= self.period;
        if has_permit {
            self.full_at = Some(full_at);
        }
        has_permit
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the pattern of queries, no second has more than two seconds' worth: the burst and the refill.
        #[test]
        fn no_second_admits_more_than_the_saved_and_new_permits(
            rate in 1_u32..50,
            pauses in proptest::collection::vec(0_u64..300, 1..300),
        ) {
            let mut bucket = LeakyBucket::new(NonZeroU32::new(rate).unwrap(), PERIOD);
            let begin = Instant::now();
            let mut now = begin;
            let mut begun: Vec<Duration> = Vec::new();
            for pause in pauses {
                now += Duration::from_millis(pause);
                begun.push(now + bucket.take(now) - begin);
            }
            for (n, first) in begun.iter().enumerate() {
                let within = begun[n..].iter().filter(|at| **at < *first + Duration::from_secs(1)).count();
                prop_assert!(within <= 2 * rate as usize + 1, "{within} in a second at {rate}");
            }
        }
    }

    #[test]
    fn a_second_of_rest_gives_a_second_of_turns() {
        let mut bucket = LeakyBucket::new(NonZeroU32::new(4).unwrap(), PERIOD);
        let now = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 250, 500]);
        let after_window = now + Duration::from_secs(10);
        assert!(bucket.take(after_window).is_zero());
    }
}
