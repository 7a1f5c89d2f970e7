//! Medians and percentiles.

use std::time::Duration;

/// Samples, sorted.
pub struct Sorted(Vec<f64>);

impl Sorted {
    pub fn new(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        Self(samples)
    }

    /// Milliseconds of durations.
    pub fn milliseconds(samples: impl IntoIterator<Item = Duration>) -> Self {
        Self::new(samples.into_iter().map(|sample| sample.as_secs_f64() * 1e3))
    }

    /// Nearest rank. NaN without samples.
    pub fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1) - 1;
        self.0.get(rank).copied().unwrap_or(f64::NAN)
    }

    pub fn median(&self) -> f64 {
        self.percentile(50)
    }

    pub fn p99(&self) -> f64 {
        self.percentile(99)
    }
}
