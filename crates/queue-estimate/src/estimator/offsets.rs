//! Offsets that calibrate the estimates of each source, and whether a source is left out.

use super::{BOUNDS, BUCKETS, CLASSES, Estimate, Estimator, MIN_PAIRS, MIX, RAW, cell, log_loss};
use crate::calibration;
use crate::queue::Seconds;

/// P10, in percent.
const EARLY: u32 = 10;

/// Offsets of all windows at one moment.
pub(super) struct Offsets<'a> {
    estimator: &'a Estimator,
    now: Seconds,
    open: Vec<Vec<&'a Estimate>>,
    cached: Vec<Option<Option<i32>>>,
    cached_early: Vec<Option<Option<i32>>>,
    lost: [Option<bool>; 16],
}

impl<'a> Offsets<'a> {
    pub(super) fn new(estimator: &'a Estimator, now: Seconds) -> Self {
        let mut open = vec![Vec::new(); BUCKETS];
        for estimate in estimator.open() {
            open[usize::from(estimate.bucket)].push(estimate);
        }
        Self {
            estimator,
            now,
            open,
            cached: vec![None; 4 * 2 * BUCKETS],
            cached_early: vec![None; BUCKETS],
            lost: [None; 16],
        }
    }

    /// Finished estimates of a bucket, or of all if it has few.
    pub(super) fn finished(&self, bucket: usize) -> usize {
        let of = |bucket| self.estimator.windows[cell(MIX, 1, bucket)].finished();
        match of(bucket) {
            few if few < calibration::MIN_SCORES => (0..BUCKETS).map(of).sum(),
            enough => enough,
        }
    }

    /// Offset of a source for a bound.
    pub(super) fn of(&mut self, source: usize, bound: usize, bucket: usize) -> Option<i32> {
        if let Some(cached) = self.cached[cell(source, bound, bucket)] {
            return cached;
        }
        let offset = self.quantile(source, bound, bucket, BOUNDS[bound]);
        self.cached[cell(source, bound, bucket)] = Some(offset);
        offset
    }

    /// Offset of the mixed P50 below which one in ten was.
    pub(super) fn early(&mut self, bucket: usize) -> Option<i32> {
        if let Some(cached) = self.cached_early[bucket] {
            return cached;
        }
        let offset = self.quantile(MIX, 0, bucket, EARLY);
        self.cached_early[bucket] = Some(offset);
        offset
    }

    fn quantile(&self, source: usize, bound: usize, bucket: usize, share: u32) -> Option<i32> {
        let windows = &self.estimator.windows;
        let kind = bucket / CLASSES * CLASSES;
        let pooled = if windows[cell(source, bound, bucket)].finished() < calibration::MIN_SCORES {
            0..BUCKETS
        } else if source == MIX {
            // Its parts are calibrated by class.
            kind..kind + CLASSES
        } else {
            bucket..bucket + 1
        };
        let mut scores = Vec::new();
        for bucket in pooled {
            scores.extend(windows[cell(source, bound, bucket)].scores());
            scores.extend(self.open[bucket].iter().filter_map(|open| {
                let raw = open.sources[source][bound]?;
                Some((calibration::score(raw, self.now - open.made_at), true))
            }));
        }
        calibration::quantile(&mut scores, share)
    }

    /// True if a source lost against raw history: over the last estimates that are finished, or still open beyond their bound.
    pub(super) fn has_lost(&mut self, source: usize, bound: usize, later: usize) -> bool {
        let index = (source * 2 + bound) * 2 + later;
        *self.lost[index].get_or_insert_with(|| {
            let finished = &self.estimator.paired_losses[index].losses;
            let buckets = later * CLASSES..(later + 1) * CLASSES;
            let open = self.open[buckets].iter().flatten().filter_map(|open| {
                let waited = self.now - open.made_at;
                let own = open.calibrated[source][bound]?;
                let raw = open.calibrated[RAW][bound]?;
                let loss = |estimate: Seconds| {
                    if waited > estimate {
                        log_loss(estimate, waited, bound)
                    } else {
                        0
                    }
                };
                (waited > own || waited > raw).then(|| (loss(own), loss(raw)))
            });
            let (mut own, mut raw, mut count) = (0, 0, 0);
            for (own_loss, raw_loss) in finished.iter().copied().chain(open) {
                own += own_loss;
                raw += raw_loss;
                count += 1;
            }
            count >= MIN_PAIRS && own > raw
        })
    }
}
