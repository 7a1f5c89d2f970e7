//! Rate limits by the generic cell rate algorithm (ITU-T I.371): a bucket of permits that fills at a constant rate, stored as a single
//! time.
//!
//! - [`LeakyBucket`]: the state of one limit. The time is an argument.
//! - [`RateLimiter`]: a limit per second that makes its callers wait.
//! - [`Rate`], [`Limit`]: a limit as written, such as `10/s`.
//!
//! Deliberately absent: limits per user, which keep a bucket for each, and limits on concurrency.

mod rate;

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub use rate::{InvalidRate, Limit, Rate};

/// Period of the rate of a [`RateLimiter`].
const PERIOD: Duration = Duration::from_secs(1);

/// Permits per second, with bursts of at most one second's worth. A caller beyond the limit waits.
#[derive(Debug)]
pub struct RateLimiter {
    bucket: Mutex<LeakyBucket>,
}

impl RateLimiter {
    /// A limiter with the permits of one second.
    pub fn new(per_second: NonZeroU32) -> Self {
        Self {
            bucket: Mutex::new(LeakyBucket::new(per_second, PERIOD)),
        }
    }

    /// Waits for a permit.
    pub async fn acquire(&self) {
        let now = Instant::now();
        let wait = {
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take(1, now)
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

/// A bucket that holds the permits of one period.
#[derive(Clone, Debug)]
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

    /// When the bucket will be full again if permits are taken now. More than it holds are as many as it holds.
    fn full_after(&self, permits: u32, now: Instant) -> Instant {
        let refill = (self.every * permits).min(self.period);
        self.full_at.map_or(now, |at| at.max(now)) + refill
    }

    /// How long to wait until there are so many permits.
    pub fn wait_for(&self, permits: u32, now: Instant) -> Duration {
        (self.full_after(permits, now) - now).saturating_sub(self.period)
    }

    /// Takes permits. Returns how long to wait for them.
    pub fn take(&mut self, permits: u32, now: Instant) -> Duration {
        let wait = self.wait_for(permits, now);
        self.full_at = Some(self.full_after(permits, now));
        wait
    }

    /// How many permits there are.
    pub fn available(&self, now: Instant) -> u32 {
        let missing = self.full_at.map_or(Duration::ZERO, |at| at - now);
        let refilled = self.period.saturating_sub(missing).as_nanos();
        u32::try_from(refilled / self.every.as_nanos().max(1)).unwrap_or(u32::MAX)
    }

    /// Puts back permits that were taken and not used.
    pub fn put_back(&mut self, permits: u32) {
        let refill = (self.every * permits).min(self.period);
        self.full_at = self.full_at.and_then(|at| at.checked_sub(refill));
    }

    /// Takes a permit if there is one.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let has_permit = self.wait_for(1, now).is_zero();
        if has_permit {
            self.take(1, now);
        }
        has_permit
    }

    /// True if every permit is there.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|at| at <= now)
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
                begun.push(now + bucket.take(1, now) - begin);
            }
            for (n, first) in begun.iter().enumerate() {
                let within = begun[n..].iter().filter(|at| **at < *first + Duration::from_secs(1)).count();
                prop_assert!(within <= 2 * rate as usize + 1, "{within} in a second at {rate}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_window_admits_more_than_a_burst_and_its_pace(
            every in 1_u32..2_000, burst in 1_u32..20, pauses in proptest::collection::vec(0_u64..2_000, 1..300),
        ) {
            let every = Duration::from_millis(every.into());
            let mut bucket = LeakyBucket::new(NonZeroU32::new(burst).unwrap(), every * burst);
            let mut now = Instant::now();
            let mut taken: Vec<Instant> = Vec::new();
            for pause in pauses {
                now += Duration::from_millis(pause);
                let (available, wait) = (bucket.available(now), bucket.wait_for(1, now));
                prop_assert!(available <= burst);
                prop_assert_eq!(available > 0, wait.is_zero(), "{} permits, wait {:?}", available, wait);
                // After the predicted wait there is indeed a permit.
                prop_assert!(bucket.available(now + wait) > 0);
                prop_assert_eq!(bucket.try_take(now), available > 0);
                prop_assert_eq!(bucket.available(now), available.saturating_sub(1));
                taken.extend((available > 0).then_some(now));
            }
            for (n, first) in taken.iter().enumerate() {
                for (count, last) in (1..).zip(&taken[n..]) {
                    let paced = (*last - *first).as_millis() / every.as_millis();
                    prop_assert!(count <= u128::from(burst) + paced + 1, "{count} in {:?}", *last - *first);
                }
            }
        }
    }

    #[test]
    fn a_burst_is_followed_by_the_pace() {
        let mut bucket =
            LeakyBucket::new(NonZeroU32::new(3).unwrap(), Duration::from_millis(1_500));
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut taken = Vec::new();
        for now in (0..3_000).step_by(100) {
            while bucket.try_take(at(now)) {
                taken.push(now);
            }
        }
        assert_eq!(taken, [0, 0, 0, 500, 1_000, 1_500, 2_000, 2_500]);
        assert_eq!(bucket.wait_for(1, at(2_999)), Duration::from_millis(1));
        assert_eq!(bucket.available(at(100_000)), 3, "never more than a burst");
    }

    #[test]
    fn a_second_of_rest_gives_a_second_of_permits() {
        let mut bucket = LeakyBucket::new(NonZeroU32::new(4).unwrap(), PERIOD);
        let now = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| bucket.take(1, now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 250, 500]);
        let after_window = now + Duration::from_secs(10);
        assert!(bucket.take(1, after_window).is_zero());
    }

    #[test]
    fn more_permits_than_the_bucket_holds_empty_it() {
        let mut bucket = LeakyBucket::new(NonZeroU32::new(4).unwrap(), PERIOD);
        let now = Instant::now();
        assert!(bucket.is_full(now));
        assert_eq!(bucket.take(3, now), Duration::ZERO);
        assert_eq!(bucket.wait_for(1, now), Duration::ZERO);
        assert_eq!(bucket.wait_for(u32::MAX, now).as_millis(), 750);
        let refilled = now + Duration::from_millis(750);
        assert!(bucket.is_full(refilled) && !bucket.is_full(now));
        assert_eq!(bucket.take(u32::MAX, refilled), Duration::ZERO);
        assert!(!bucket.try_take(refilled));
        bucket.put_back(1);
        assert!(bucket.try_take(refilled) && !bucket.try_take(refilled));
        bucket.put_back(u32::MAX);
        assert!(bucket.is_full(refilled));
    }
}
