//! Rate limit of commands, however many doorbells arrive: a number per second, with bursts of at most one second's worth.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Limits the rate of commands; a caller beyond the limit waits.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    bucket: Mutex<LeakyBucket>,
}

impl RateLimiter {
    pub(crate) fn new(per_second: NonZeroU32) -> Self {
        Self {
            bucket: Mutex::new(LeakyBucket::new(per_second)),
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

/// A bucket with a capacity of one second's permits (generic cell rate algorithm).
#[derive(Debug)]
struct LeakyBucket {
    every: Duration,
    /// When the bucket will be full again; `None` if it was never used.
    full_at: Option<Instant>,
}

impl LeakyBucket {
    fn new(per_second: NonZeroU32) -> Self {
        Self {
            every: Duration::from_secs(1) / per_second.get(),
            full_at: None,
        }
    }

    /// Takes a permit. Returns how long to wait for it.
    fn take(&mut self, now: Instant) -> Duration {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.every;
        self.full_at = Some(full_at);
        (full_at - now).saturating_sub(Duration::from_secs(1))
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
            let mut bucket = LeakyBucket::new(NonZeroU32::new(rate).unwrap());
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
        let mut bucket = LeakyBucket::new(NonZeroU32::new(4).unwrap());
        let now = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 250, 500]);
        let after_window = now + Duration::from_secs(10);
        assert!(bucket.take(after_window).is_zero());
    }
}
