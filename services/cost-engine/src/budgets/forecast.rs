//! The use of a budget at the end of its period, by the daily costs of the last weeks. Pure: equal inputs give equal results.
//!
//! Every remaining day is drawn from the past days of the same weekday, some hundred times. What running jobs cost is part of the past
//! days, and so of the drawn ones.

use chrono::Weekday;
use sha2::{Digest as _, Sha256};

use crate::domain::Micros;

/// Number of past days that are drawn from.
pub const PAST_DAYS: usize = 28;
/// Fewest past days of a forecast.
const MIN_DAYS: usize = 3;
/// Number of drawn continuations.
const DRAWS: usize = 400;

/// A day of the period that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingDay {
    /// Its weekday.
    pub weekday: Weekday,
    /// Start of its remaining part in Unix seconds.
    pub from: i64,
    /// Length of the remaining part in thousandths of the day.
    pub per_mille: u16,
}

/// What the rest of the period will cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Exceeded with a probability of one half.
    pub rest_p50: Micros,
    /// Exceeded with a probability of one tenth.
    pub rest_p90: Micros,
    /// When the amount is used up with a probability of one half, in Unix seconds. `None` if it lasts.
    pub exhausted_p50: Option<i64>,
    /// When it is used up with a probability of one tenth.
    pub exhausted_p90: Option<i64>,
}

/// Draws the rest of a period. `past` are the costs of the last days, oldest first. `left` is what is not yet used of the amount. `None`
/// with fewer than three days since the first cost.
pub fn forecast(
    seed: &str,
    past: &[(Weekday, Micros)],
    days: &[RemainingDay],
    left: Micros,
) -> Option<Forecast> {
    let first = past.iter().position(|(_, cost)| *cost > Micros::ZERO)?;
    let past = &past[first..];
    if past.len() < MIN_DAYS {
        return None;
    }
    let all: Vec<i64> = past.iter().map(|(_, cost)| cost.0).collect();
    let of_weekday = |weekday: Weekday| -> Vec<i64> {
        let same = past.iter().filter(|(day, _)| *day == weekday);
        let same: Vec<i64> = same.map(|(_, cost)| cost.0).collect();
        if same.is_empty() { all.clone() } else { same }
    };
    let choices: Vec<Vec<i64>> = days.iter().map(|day| of_weekday(day.weekday)).collect();
    let mut random = Random::new(seed);
    let mut rests = Vec::with_capacity(DRAWS);
    let mut ends = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        let (mut rest, mut end) = (0i64, None);
        for (day, choices) in days.iter().zip(&choices) {
            let cost = i128::from(choices[random.below(choices.len())]);
            let cost = cost * i128::from(day.per_mille) / 1000;
            rest = rest.saturating_add(i64::try_from(cost).unwrap_or(i64::MAX));
            if rest >= left.0 && end.is_none() {
                end = Some(day.from);
            }
        }
        rests.push(rest);
        ends.push(end.unwrap_or(i64::MAX));
    }
    rests.sort_unstable();
    ends.sort_unstable();
    let lasts = |end: i64| (end < i64::MAX).then_some(end);
    Some(Forecast {
        rest_p50: Micros(rests[DRAWS / 2 - 1]),
        rest_p90: Micros(rests[DRAWS * 9 / 10 - 1]),
        exhausted_p50: lasts(ends[DRAWS / 2 - 1]),
        exhausted_p90: lasts(ends[DRAWS / 10 - 1]),
    })
}

/// SplitMix64: reproducible, and good enough to draw days.
struct Random(u64);

impl Random {
    fn new(seed: &str) -> Self {
        let digest = Sha256::digest(seed);
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest[..8]);
        Self(u64::from_be_bytes(bytes))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % bound.max(1) as u64).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(costs: &[i64]) -> Vec<(Weekday, Micros)> {
        let mut weekday = Weekday::Mon;
        let day = |cost: &i64| {
            let day = (weekday, Micros(*cost));
            weekday = weekday.succ();
            day
        };
        costs.iter().map(day).collect()
    }

    fn remaining(count: i64) -> Vec<RemainingDay> {
        let mut weekday = Weekday::Mon;
        let day = |n| {
            let day = RemainingDay {
                weekday,
                from: n * 86_400,
                per_mille: 1000,
            };
            weekday = weekday.succ();
            day
        };
        (0..count).map(day).collect()
    }

    #[test]
    fn constant_days_continue() {
        let found = forecast("b", &past(&[10; 28]), &remaining(7), Micros(35)).unwrap();
        assert_eq!((found.rest_p50, found.rest_p90), (Micros(70), Micros(70)));
        // Used up on the fourth day.
        assert_eq!(found.exhausted_p50, Some(3 * 86_400));
        assert_eq!(found.exhausted_p90, Some(3 * 86_400));
        let found = forecast("b", &past(&[10; 28]), &remaining(7), Micros(71)).unwrap();
        assert_eq!(found.exhausted_p90, None);
    }

    #[test]
    fn weekends_are_drawn_from_weekends() {
        let week = [10, 10, 10, 10, 10, 0, 0];
        let four_weeks = [week, week, week, week].concat();
        let found = forecast("b", &past(&four_weeks), &remaining(7), Micros(1)).unwrap();
        assert_eq!((found.rest_p50, found.rest_p90), (Micros(50), Micros(50)));
    }

    #[test]
    fn a_forecast_needs_three_days() {
        let days = remaining(3);
        assert_eq!(
            forecast("b", &past(&[0, 0, 0, 5, 5]), &days, Micros(1)),
            None
        );
        assert_eq!(forecast("b", &past(&[0; 28]), &days, Micros(1)), None);
        assert!(forecast("b", &past(&[0, 5, 5, 5]), &days, Micros(1)).is_some());
    }

    #[test]
    fn equal_seeds_give_equal_forecasts_and_p90_is_the_larger_and_earlier() {
        let costs: Vec<i64> = (0..28).map(|n| n * 37 % 101).collect();
        let draw = |seed| forecast(seed, &past(&costs), &remaining(20), Micros(700)).unwrap();
        let found = draw("nlp 2026-11-20");
        assert_eq!(found, draw("nlp 2026-11-20"));
        assert_ne!(found, draw("nlp 2026-11-21"));
        assert!(found.rest_p50 <= found.rest_p90);
        assert!(found.exhausted_p90 <= found.exhausted_p50);
    }
}
