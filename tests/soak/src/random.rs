//! Random numbers that never change for a seed.
//!
//! SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). Implemented here because a crate may change
//! its generator with any release, which would invalidate recorded seeds.

use std::time::Duration;

/// The generator.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both inclusive.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        let span = u64::from(high.saturating_sub(low)) + 1;
        // The bias of the remainder is negligible for such small numbers.
        low + u32::try_from(self.next() % span).unwrap_or(0)
    }

    pub(super) fn time(&mut self, low: Duration, high: Duration) -> Duration {
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        Duration::from_millis(self.between(millis(low), millis(high)).into())
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.between(1, 100) <= percent
    }

    /// Picks one of these.
    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let last = u32::try_from(from.len().checked_sub(1)?).ok()?;
        from.get(self.between(0, last) as usize).copied()
    }

    /// Shuffles them.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.between(0, u32::try_from(last).unwrap_or(u32::MAX));
            items.swap(last, other as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        // The published first outputs for the state 0.
        let mut random = Random::new(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn numbers_keep_within_their_bounds() {
        let mut random = Random::new(7);
        let drawn: Vec<u32> = (0..1000).map(|_| random.between(3, 5)).collect();
        assert!([3, 4, 5].iter().all(|number| drawn.contains(number)));
        assert!(drawn.iter().all(|number| (3..=5).contains(number)));
    }
}
