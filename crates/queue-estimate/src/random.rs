//! Random numbers that follow from a seed: the same input gives the same estimate everywhere.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence that follows from these numbers.
    pub fn seeded(parts: &[u64]) -> Self {
        let mut random = Self(0);
        for part in parts {
            random.0 ^= *part;
            random.0 = random.next_u64();
        }
        random
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is above 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.next_u64()) * bound as u128;
        (product >> 64) as usize
    }

    /// A share in millionths, from 0 to 999,999.
    pub fn millionths(&mut self) -> i64 {
        self.below(1_000_000) as i64
    }
}
