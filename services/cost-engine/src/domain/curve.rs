//! The cost of a run over time, and its parts by cumulative rounding.
//!
//! The exact cost since the start grows linearly between changes of the rate. A part of a run (a month, the time until now) is the
//! difference of two rounded costs since the start. Parts therefore always add up to the rounded cost of the run, which separately
//! rounded parts do not.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_traits::{ToPrimitive as _, Zero as _};

use super::money::{Exact, integer, round_half_even};
use super::{Micros, PriceError};

const SECONDS_PER_HOUR: u64 = 3600;

/// Adds up the rates of a run's nodes.
#[derive(Debug, Default)]
pub(super) struct CurveBuilder {
    /// Changes of the rate per hour, by time.
    changes: BTreeMap<i64, Exact>,
}

impl CurveBuilder {
    /// Adds a rate per hour in `[from, to)`.
    pub fn add(&mut self, from: i64, to: i64, per_hour: Exact) {
        if from < to {
            *self.changes.entry(from).or_default() += &per_hour;
            *self.changes.entry(to).or_default() -= per_hour;
        }
    }

    pub fn finish(self) -> CostCurve {
        let (mut cost, mut rate, mut segments) = (Exact::zero(), Exact::zero(), Vec::new());
        let mut last = 0;
        for (at, change) in self.changes {
            cost += &rate * integer(at.abs_diff(last));
            rate += change / integer(SECONDS_PER_HOUR);
            last = at;
            segments.push(Segment {
                at,
                cost: cost.clone(),
                per_second: rate.clone(),
            });
        }
        CostCurve::new(segments)
    }
}

/// Cost of a run since its start, at every moment. Before the first known second it is zero, after the last one it stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostCurve {
    segments: Vec<Segment>,
    /// The same in integers. `None` if they do not fit.
    integers: Option<IntegerCurve>,
}

/// A part of a curve with one rate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    at: i64,
    /// Cost until then.
    cost: Exact,
    /// Rate from then on.
    per_second: Exact,
}

/// Costs and rates of the segments with a common denominator.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IntegerCurve {
    denominator: i128,
    segments: Vec<(i128, i128)>,
}

impl CostCurve {
    fn new(segments: Vec<Segment>) -> Self {
        Self {
            integers: IntegerCurve::new(&segments),
            segments,
        }
    }

    /// The curve with a surcharge or discount.
    #[must_use]
    pub fn times(self, factor: &Exact) -> Self {
        let times = |segment: Segment| Segment {
            at: segment.at,
            cost: segment.cost * factor,
            per_second: segment.per_second * factor,
        };
        Self::new(self.segments.into_iter().map(times).collect())
    }

    /// Cost from the start until a moment, rounded.
    ///
    /// # Errors
    /// If the amount does not fit 64 bits.
    pub fn until(&self, time: i64) -> Result<Micros, PriceError> {
        let after = self.segments.partition_point(|segment| segment.at <= time);
        let Some(position) = after.checked_sub(1) else {
            return Ok(Micros::ZERO);
        };
        let segment = &self.segments[position];
        let seconds = time.abs_diff(segment.at);
        if let Some(rounded) = self
            .integers
            .as_ref()
            .and_then(|integers| integers.rounded(position, seconds))
        {
            return Ok(rounded);
        }
        round_half_even(&(&segment.cost + &segment.per_second * integer(seconds)))
    }

    /// Rates per hour, rounded, each with the second from which it applies. Without the end, after which the rate is zero.
    ///
    /// # Errors
    /// If a rate does not fit 64 bits.
    pub fn rates_per_hour(&self) -> Result<Vec<(i64, Micros)>, PriceError> {
        let held = self.segments.split_last().map_or(&[][..], |(_, held)| held);
        held.iter()
            .map(|segment| {
                let per_hour = &segment.per_second * integer(SECONDS_PER_HOUR);
                Ok((segment.at, round_half_even(&per_hour)?))
            })
            .collect()
    }

    /// Cost in `[from, to)`. Parts of adjacent intervals add up to the part of their union.
    ///
    /// # Errors
    /// If the amount does not fit 64 bits.
    pub fn part(&self, from: i64, to: i64) -> Result<Micros, PriceError> {
        Ok(self.until(to)?.saturating_sub(self.until(from)?))
    }
}

impl IntegerCurve {
    fn new(segments: &[Segment]) -> Option<Self> {
        let denominator = segments
            .iter()
            .flat_map(|segment| [segment.cost.denom(), segment.per_second.denom()])
            // Their least common multiple: a fraction is in lowest terms.
            .fold(BigInt::from(1), |common, denominator| {
                Exact::new(common, denominator.clone()).numer() * denominator
            });
        let scaled = |exact: &Exact| (exact.numer() * (&denominator / exact.denom())).to_i128();
        let segments = segments
            .iter()
            .map(|segment| Some((scaled(&segment.cost)?, scaled(&segment.per_second)?)))
            .collect::<Option<_>>()?;
        Some(Self {
            denominator: denominator.to_i128()?,
            segments,
        })
    }

    /// `None` if a number is too large for this.
    fn rounded(&self, position: usize, seconds: u64) -> Option<Micros> {
        let (cost, per_second) = self.segments[position];
        let exact = per_second
            .checked_mul(i128::from(seconds))?
            .checked_add(cost)?;
        let floor = exact.div_euclid(self.denominator);
        let rest = exact.rem_euclid(self.denominator);
        let twice = rest.checked_mul(2)?;
        let up = twice > self.denominator || (twice == self.denominator && floor % 2 != 0);
        i64::try_from(floor + i128::from(up)).ok().map(Micros)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::money::ratio;

    fn flat(from: i64, to: i64, per_hour: i64, share: (i64, i64)) -> CostCurve {
        let mut builder = CurveBuilder::default();
        builder.add(
            from,
            to,
            integer(per_hour) * ratio(share.0, share.1).unwrap(),
        );
        builder.finish()
    }

    fn time(text: &str) -> i64 {
        chrono::DateTime::parse_from_rfc3339(text)
            .unwrap()
            .timestamp()
    }

    #[test]
    fn a_run_over_the_end_of_a_month_is_in_both_months() {
        let (from, to) = (time("2026-10-31T23:00:07Z"), time("2026-11-01T01:30:00Z"));
        let curve = flat(from, to, 1_000_001, (3, 8));
        let month = time("2026-11-01T00:00:00Z");
        assert_eq!(curve.until(to), Ok(Micros(936_772)));
        assert_eq!(curve.part(i64::MIN, month), Ok(Micros(374_271)));
        assert_eq!(curve.part(month, i64::MAX), Ok(Micros(562_501)));
    }

    #[test]
    fn parts_rounded_cumulatively_add_up() {
        let curve = flat(0, 1802, 1_000_001, (3, 8));
        assert_eq!(curve.until(1802), Ok(Micros(187_709)));
        assert_eq!(curve.part(0, 2), Ok(Micros(208)));
        assert_eq!(curve.part(2, 1802), Ok(Micros(187_501)));
        // Rounded alone, the second part would be one less.
        let alone = flat(2, 1802, 1_000_001, (3, 8));
        assert_eq!(alone.until(1802), Ok(Micros(187_500)));
    }

    #[test]
    fn outside_the_run_nothing_is_added() {
        let curve = flat(100, 3700, 5, (1, 1));
        assert_eq!(curve.until(99), Ok(Micros(0)));
        assert_eq!(curve.until(3700), Ok(Micros(5)));
        assert_eq!(curve.part(3700, 9999), Ok(Micros(0)));
        assert_eq!(CostCurve::default().until(5), Ok(Micros(0)));
    }

    proptest! {
        #[test]
        fn parts_add_up_however_a_run_is_cut_and_integers_agree_with_fractions(
            rates in prop::collection::vec((0i64..2000, 1i64..2000, 0i64..9_000_000, 1i64..9, 1i64..300_000), 0..6),
            mut cuts in prop::collection::vec(-100i64..5000, 0..8),
        ) {
            let mut builder = CurveBuilder::default();
            for (from, seconds, rate, above, below) in rates {
                builder.add(from, from + seconds, integer(rate) * ratio(above, below).unwrap());
            }
            let curve = builder.finish();
            let exact = CostCurve { integers: None, ..curve.clone() };
            cuts.extend([i64::MIN, i64::MAX]);
            cuts.sort_unstable();
            let mut sum = Micros::ZERO;
            for cut in cuts.windows(2) {
                let part = curve.part(cut[0], cut[1]).unwrap();
                prop_assert!(part >= Micros::ZERO);
                prop_assert_eq!(Ok(part), exact.part(cut[0], cut[1]));
                sum = sum + part;
            }
            prop_assert_eq!(Ok(sum), curve.until(4001));
        }
    }
}
