//! Hourly rates of a node over time.

use std::fmt;

use super::Micros;

/// How a node was bought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Market {
    /// At the list price.
    #[default]
    OnDemand,
    /// At a lower price; the provider may reclaim the node.
    Spot,
}

impl Market {
    /// Name in price books and cost events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Spot => "spot",
        }
    }
}

impl fmt::Display for Market {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A rate and its validity `[from, to)`. Unbounded where a bound is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatePeriod {
    /// First second. `None` is unbounded.
    pub from: Option<i64>,
    /// First second after. `None` is unbounded.
    pub to: Option<i64>,
    /// Millionths per hour.
    pub per_hour: Micros,
}

impl RatePeriod {
    fn begin(&self) -> i64 {
        self.from.unwrap_or(i64::MIN)
    }

    fn finish(&self) -> i64 {
        self.to.unwrap_or(i64::MAX)
    }
}

/// The rates of one node type in one market, ordered by time. There may be gaps, but no overlaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateSchedule {
    periods: Vec<RatePeriod>,
}

/// Two periods overlap, or one ends before it begins. The positions are those of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// The period at this position is empty.
    Empty(usize),
    /// The periods at these positions overlap.
    Overlap(usize, usize),
}

impl RateSchedule {
    /// Removes periods with a rate of zero.
    #[must_use]
    pub fn without_zero(mut self) -> Self {
        self.periods.retain(|period| period.per_hour != Micros(0));
        self
    }

    /// Sorts the periods.
    ///
    /// # Errors
    /// If two overlap or one is empty.
    pub fn new(periods: &[RatePeriod]) -> Result<Self, ScheduleError> {
        let mut order: Vec<usize> = (0..periods.len()).collect();
        order.sort_by_key(|&at| periods[at].begin());
        if let Some(&at) = order
            .iter()
            .find(|&&at| periods[at].begin() >= periods[at].finish())
        {
            return Err(ScheduleError::Empty(at));
        }
        for pair in order.windows(2) {
            if periods[pair[0]].finish() > periods[pair[1]].begin() {
                return Err(ScheduleError::Overlap(
                    pair[0].min(pair[1]),
                    pair[0].max(pair[1]),
                ));
            }
        }
        Ok(Self {
            periods: order.into_iter().map(|at| periods[at]).collect(),
        })
    }

    /// True if there is no rate.
    pub fn is_empty(&self) -> bool {
        self.periods.is_empty()
    }

    /// The rate at a moment.
    pub fn at(&self, time: i64) -> Option<Micros> {
        self.periods
            .iter()
            .find(|period| period.begin() <= time && time < period.finish())
            .map(|period| period.per_hour)
    }

    /// The rates within an interval, each with its seconds.
    ///
    /// # Errors
    /// The first second without a price.
    pub fn within(&self, from: i64, to: i64) -> Result<Vec<(Micros, u64)>, i64> {
        let mut pieces = Vec::new();
        let mut now = from;
        for period in &self.periods {
            if now >= to {
                break;
            }
            if period.finish() <= now {
                continue;
            }
            if period.begin() > now {
                return Err(now);
            }
            let until = period.finish().min(to);
            pieces.push((period.per_hour, now.abs_diff(until)));
            now = until;
        }
        if now < to { Err(now) } else { Ok(pieces) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(from: Option<i64>, to: Option<i64>, rate: i64) -> RatePeriod {
        RatePeriod {
            from,
            to,
            per_hour: Micros(rate),
        }
    }

    #[test]
    fn the_new_price_counts_from_the_second_of_the_change() {
        let schedule =
            RateSchedule::new(&[period(Some(100), None, 2), period(None, Some(100), 1)]).unwrap();
        assert_eq!(schedule.at(99), Some(Micros(1)));
        assert_eq!(schedule.at(100), Some(Micros(2)));
        assert_eq!(
            schedule.within(90, 130),
            Ok(vec![(Micros(1), 10), (Micros(2), 30)])
        );
        assert_eq!(schedule.within(100, 100), Ok(vec![]));
    }

    #[test]
    fn a_gap_is_named_by_its_first_second() {
        let schedule =
            RateSchedule::new(&[period(Some(0), Some(10), 1), period(Some(20), Some(30), 1)])
                .unwrap();
        assert_eq!(schedule.within(5, 25), Err(10));
        assert_eq!(schedule.within(25, 35), Err(30));
        assert_eq!(schedule.within(-5, 5), Err(-5));
        assert_eq!(RateSchedule::default().within(1, 2), Err(1));
    }

    #[test]
    fn overlaps_and_empty_periods_are_refused() {
        assert_eq!(
            RateSchedule::new(&[period(None, Some(10), 1), period(Some(9), None, 1)]),
            Err(ScheduleError::Overlap(0, 1))
        );
        assert_eq!(
            RateSchedule::new(&[period(None, None, 1), period(None, None, 1)]),
            Err(ScheduleError::Overlap(0, 1))
        );
        assert_eq!(
            RateSchedule::new(&[period(Some(10), Some(10), 1)]),
            Err(ScheduleError::Empty(0))
        );
        assert!(RateSchedule::new(&[period(None, Some(10), 1), period(Some(10), None, 1)]).is_ok());
    }
}
