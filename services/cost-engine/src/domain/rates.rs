//! Hourly rates of a node over time.

use super::Micros;
use super::calendar::Calendar;

/// A price of one node per hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rate {
    /// What the site charges.
    pub per_hour: Micros,
    /// Price before discounts.
    pub list: Micros,
}

impl Rate {
    /// A rate without a discount.
    pub const fn flat(per_hour: Micros) -> Self {
        Self {
            per_hour,
            list: per_hour,
        }
    }
}

/// A rate and its validity `[from, to)`. Unbounded where a bound is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatePeriod {
    /// First second. `None` is unbounded.
    pub from: Option<i64>,
    /// First second after. `None` is unbounded.
    pub to: Option<i64>,
    /// The rate.
    pub rate: Rate,
}

impl RatePeriod {
    fn begin(&self) -> i64 {
        self.from.unwrap_or(i64::MIN)
    }

    fn finish(&self) -> i64 {
        self.to.unwrap_or(i64::MAX)
    }
}

/// A rate at certain times of the week.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarRate {
    /// The times.
    pub calendar: Calendar,
    /// Rate and validity.
    pub period: RatePeriod,
}

/// The rates of one node type in one market. At times of the week with a rate of their own, the first such rate counts, else that of the
/// period. Periods may have gaps, but no overlaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateSchedule {
    periods: Vec<RatePeriod>,
    calendar: Vec<CalendarRate>,
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
        self.periods
            .retain(|period| period.rate.per_hour != Micros(0));
        self
    }

    /// Adds rates at times of the week, in order of precedence.
    #[must_use]
    pub fn with_calendar(mut self, calendar: Vec<CalendarRate>) -> Self {
        self.calendar = calendar;
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
            calendar: Vec::new(),
        })
    }

    /// True if there is no rate.
    pub fn is_empty(&self) -> bool {
        self.periods.is_empty() && self.calendar.is_empty()
    }

    /// The rate at a moment.
    pub fn at(&self, time: i64) -> Option<Rate> {
        self.piece(time).0
    }

    /// The rate at a moment, and a moment until which it is the same.
    fn piece(&self, time: i64) -> (Option<Rate>, i64) {
        let after = self
            .periods
            .partition_point(|period| period.begin() <= time);
        let current = self.periods[..after]
            .last()
            .filter(|period| time < period.finish());
        let mut until = match current {
            Some(period) => period.finish(),
            None => self.periods.get(after).map_or(i64::MAX, RatePeriod::begin),
        };
        for entry in &self.calendar {
            if time < entry.period.begin() {
                until = until.min(entry.period.begin());
            } else if time < entry.period.finish() {
                until = until
                    .min(entry.period.finish())
                    .min(entry.calendar.next_change(time));
                if entry.calendar.covers(time) {
                    return (Some(entry.period.rate), until);
                }
            }
        }
        (current.map(|period| period.rate), until)
    }

    /// The rates within an interval, each with its seconds.
    ///
    /// # Errors
    /// The first second without a price.
    pub fn within(&self, from: i64, to: i64) -> Result<Vec<(Rate, u64)>, i64> {
        let mut pieces = Vec::new();
        let mut now = from;
        while now < to {
            let (rate, until) = self.piece(now);
            let until = until.min(to);
            pieces.push((rate.ok_or(now)?, now.abs_diff(until)));
            now = until;
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(rate: i64) -> Rate {
        Rate::flat(Micros(rate))
    }

    fn period(from: Option<i64>, to: Option<i64>, rate: i64) -> RatePeriod {
        RatePeriod {
            from,
            to,
            rate: flat(rate),
        }
    }

    #[test]
    fn the_new_price_counts_from_the_second_of_the_change() {
        let schedule =
            RateSchedule::new(&[period(Some(100), None, 2), period(None, Some(100), 1)]).unwrap();
        assert_eq!(schedule.at(99), Some(flat(1)));
        assert_eq!(schedule.at(100), Some(flat(2)));
        assert_eq!(
            schedule.within(90, 130),
            Ok(vec![(flat(1), 10), (flat(2), 30)])
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
