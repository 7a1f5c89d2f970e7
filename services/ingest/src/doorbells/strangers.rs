//! How many jobs that nobody has heard of may be asked for. Such a doorbell is of a job submitted since the last sweep, or forged.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// A bucket that holds a minute's worth.
#[derive(Debug)]
pub struct Strangers {
    per_minute: NonZeroU32,
    left: u32,
    /// When one more is let in.
    refilled: Option<Instant>,
}

impl Strangers {
    /// Full.
    pub const fn new(per_minute: NonZeroU32) -> Self {
        Self {
            per_minute,
            left: per_minute.get(),
            refilled: None,
        }
    }

    /// Whether one more may be asked for.
    pub fn admit(&mut self, now: Instant) -> bool {
        let every = Duration::from_secs(60) / self.per_minute.get();
        let refilled = *self.refilled.get_or_insert(now);
        let more = now.saturating_duration_since(refilled).as_nanos() / every.as_nanos().max(1);
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(more).min(self.per_minute.get());
        // The rest of an interval counts for the next one.
        self.refilled = Some(if self.left == self.per_minute.get() {
            now
        } else {
            refilled + every * more
        });
        let Some(left) = self.left.checked_sub(1) else {
            return false;
        };
        self.left = left;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_minute_lets_in_what_was_saved_and_what_came_in(
            per_minute in 1_u32..500,
            pauses in proptest::collection::vec(0_u64..2_000, 1..1_000),
        ) {
            let mut strangers = Strangers::new(NonZeroU32::new(per_minute).unwrap());
            let begin = Instant::now();
            let mut now = begin;
            let mut admitted = Vec::new();
            for pause in pauses {
                now += Duration::from_millis(pause);
                if strangers.admit(now) {
                    admitted.push(now);
                }
            }
            prop_assert!(!admitted.is_empty());
            for (n, first) in admitted.iter().enumerate() {
                let within = admitted[n..].iter().filter(|at| **at < *first + Duration::from_secs(60)).count();
                prop_assert!(within <= 2 * per_minute as usize + 1);
            }
        }
    }

    #[test]
    fn a_flood_uses_up_the_minute_and_time_gives_it_back() {
        let mut strangers = Strangers::new(NonZeroU32::new(60).unwrap());
        let now = Instant::now();
        let flood = (0..10_000).filter(|_| strangers.admit(now)).count();
        assert_eq!(flood, 60);
        let later = now + Duration::from_millis(2_500);
        let admitted: Vec<bool> = (0..3).map(|_| strangers.admit(later)).collect();
        assert_eq!(admitted, [true, true, false]);
        assert!(strangers.admit(now + Duration::from_millis(3_100)));
    }
}
