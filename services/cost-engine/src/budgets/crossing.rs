//! Which thresholds the use of a budget has passed, and which of them are published already. Pure.

use super::Budget;
use crate::domain::Micros;

/// How many points of percent the use must be below a published threshold until that is cleared.
const CLEARED_BELOW: u32 = 5;

/// What is published of a budget in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedState {
    /// Highest threshold in percent; 0 if none is published.
    pub threshold: u32,
    /// True if the forecast is published.
    pub forecast: bool,
    /// Counts how often the use fell below a published threshold, from 1.
    pub crossing: u64,
}

impl Default for PublishedState {
    fn default() -> Self {
        Self {
            threshold: 0,
            forecast: false,
            crossing: 1,
        }
    }
}

impl PublishedState {
    /// True if something is published that is not cleared.
    pub const fn is_open(&self) -> bool {
        self.threshold > 0 || self.forecast
    }
}

/// A passed or cleared threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// The use has passed it.
    Passed(u32),
    /// The forecast passes it.
    Forecast(u32),
    /// The use is below it again.
    Cleared(u32),
}

/// Compares an amount with a percentage of the budget.
fn has_passed(used: Micros, amount: Micros, percent: u32) -> bool {
    i128::from(used.0) * 100 >= i128::from(percent) * i128::from(amount.0)
}

/// Used part of an amount in percent, rounded down.
pub fn percent(used: Micros, amount: Micros) -> u64 {
    let percent = i128::from(used.0.max(0)) * 100 / i128::from(amount.0.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// What is to be published, and the state afterwards. Without a state (a new budget or period) only the highest threshold counts.
pub fn crossings(
    budget: &Budget,
    used: Micros,
    forecast: Option<Micros>,
    state: Option<PublishedState>,
) -> (PublishedState, Vec<Crossing>) {
    let is_new = state.is_none();
    let mut state = state.unwrap_or_default();
    let mut found = Vec::new();
    let passed = |percent: &&u32| has_passed(used, budget.amount, **percent);
    let highest = budget.thresholds.iter().filter(passed).max().copied();
    let highest = highest.unwrap_or_default();
    if highest > state.threshold {
        let is_unpublished =
            |percent: &u32| *percent <= highest && *percent > state.threshold && !is_new;
        let others = budget.thresholds.iter().copied().filter(is_unpublished);
        found.extend(others.map(Crossing::Passed));
        if is_new {
            found.push(Crossing::Passed(highest));
        }
        state.threshold = highest;
    } else if highest < state.threshold
        && !has_passed(
            used,
            budget.amount,
            state.threshold.saturating_sub(CLEARED_BELOW),
        )
    {
        found.push(Crossing::Cleared(state.threshold));
        state = PublishedState {
            threshold: highest,
            forecast: false,
            crossing: state.crossing + 1,
        };
        // The forecast is compared again at the next evaluation.
        return (state, found);
    }
    let is_ahead = budget.forecast > state.threshold && !state.forecast;
    if budget.forecast > 0
        && is_ahead
        && forecast.is_some_and(|forecast| has_passed(forecast, budget.amount, budget.forecast))
    {
        found.push(Crossing::Forecast(budget.forecast));
        state.forecast = true;
    }
    (state, found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Crossing::{Cleared, Forecast, Passed};
    use super::*;
    use crate::budgets::usage::Amounts;
    use crate::budgets::{Counts, files};
    use crate::domain::RunsCost;

    fn budget(lines: &str) -> Budget {
        let text = format!(
            "[[budget]]\nname = \"b\"\nscope = {{ cluster = \"c\" }}\nperiod = \"month\"\namount = 1000\n{lines}"
        );
        files::parse(&text).unwrap().remove(0)
    }

    fn units(units: i64) -> Micros {
        Micros(units * 1_000_000)
    }

    #[test]
    fn settled_in_flight_and_committed_pass_their_thresholds() {
        // The running jobs may cost 90 more, the pending ones 200.
        let used = Amounts {
            settled: RunsCost::of(Some(units(640))),
            in_flight: RunsCost::of(Some(units(130))),
            remaining: units(90),
            pending: RunsCost::of(Some(units(200))),
            ..Amounts::default()
        };
        let at_first = Some(PublishedState::default());
        let passed = |counts: Counts| {
            let budget = budget("thresholds = [50, 80, 100]");
            let counted = used.counted(counts).known;
            let (_, found) = crossings(&budget, counted, None, at_first);
            (percent(counted, budget.amount), found)
        };
        assert_eq!(passed(Counts::InFlight), (77, vec![Passed(50)]));
        assert_eq!(passed(Counts::Settled), (64, vec![Passed(50)]));
        assert_eq!(
            passed(Counts::Committed),
            (106, vec![Passed(50), Passed(80), Passed(100)])
        );
    }

    #[test]
    fn a_new_budget_publishes_only_the_highest_threshold() {
        let budget = budget("");
        let (state, found) = crossings(&budget, units(850), None, None);
        assert_eq!((state.threshold, found), (80, vec![Passed(80)]));
        assert_eq!(crossings(&budget, units(850), None, Some(state)).1, []);
        let (state, found) = crossings(&budget, units(100), None, None);
        assert_eq!((state.threshold, found), (0, vec![]));
    }

    #[test]
    fn a_threshold_is_cleared_five_points_below_and_counts_again_afterwards() {
        let budget = budget("");
        let (state, _) = crossings(&budget, units(1_000), None, None);
        assert_eq!(crossings(&budget, units(951), None, Some(state)).1, []);
        assert_eq!(crossings(&budget, units(950), None, Some(state)).1, []);
        let (state, found) = crossings(&budget, units(949), None, Some(state));
        assert_eq!(found, [Cleared(100)]);
        assert_eq!((state.threshold, state.crossing), (80, 2));
        let (state, found) = crossings(&budget, units(1_000), None, Some(state));
        assert_eq!((state.crossing, found), (2, vec![Passed(100)]));
        let (state, found) = crossings(&budget, units(10), None, Some(state));
        assert_eq!((state.threshold, found), (0, vec![Cleared(100)]));
    }

    #[test]
    fn a_forecast_is_published_once_and_not_after_its_threshold() {
        let budget = budget("forecast = 100");
        let over = Some(units(1_200));
        let (state, found) = crossings(&budget, units(600), over, None);
        assert_eq!(found, [Passed(50), Forecast(100)]);
        let (state, found) = crossings(&budget, units(810), over, Some(state));
        assert_eq!(found, [Passed(80)]);
        assert_eq!(
            crossings(&budget, units(1_001), over, Some(state)).1,
            [Passed(100)]
        );
        assert_eq!(
            crossings(&budget, units(1_001), over, None).1,
            [Passed(100)]
        );
        let off = self::budget("");
        assert_eq!(crossings(&off, units(600), over, None).1, [Passed(50)]);
    }

    proptest! {
        #[test]
        fn each_threshold_is_published_once_per_crossing(uses in prop::collection::vec(0i64..1_300, 1..40)) {
            let budget = budget("thresholds = [50, 80, 100, 120]");
            let mut state = None;
            let mut published = std::collections::BTreeSet::new();
            for used in uses {
                let (next, found) = crossings(&budget, units(used), None, state);
                for crossing in found {
                    let crossings = state.map_or(1, |state: PublishedState| state.crossing);
                    let is_new = published.insert((format!("{crossing:?}"), crossings));
                    prop_assert!(is_new);
                }
                // The same use again: nothing.
                prop_assert_eq!(crossings(&budget, units(used), None, Some(next)), (next, vec![]));
                state = Some(next);
            }
        }
    }
}
