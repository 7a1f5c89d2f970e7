use proptest::prelude::*;

use super::*;
use crate::domain::Rate;
use crate::domain::money::ratio;
use crate::domain::rates::RatePeriod;

fn rates(per_hour: i64) -> RateSchedule {
    RateSchedule::new(&[RatePeriod {
        from: None,
        to: None,
        rate: Rate::flat(Micros(per_hour)),
    }])
    .unwrap()
}

fn held(from: i64, to: i64, numerator: i64, denominator: i64) -> HeldShare {
    HeldShare {
        time: (from, to),
        share: ratio(numerator, denominator).unwrap(),
    }
}

fn categories(cost: &NodeCost) -> Vec<(&'static str, i64)> {
    let categories = cost.categories.iter();
    categories
        .map(|(category, micros)| (category.as_str(), micros.0))
        .collect()
}

#[test]
fn an_hour_of_a_node_is_divided_among_what_it_did() {
    let node = NodeTimeline {
        states: vec![
            (0, NodeState::Booting),
            (300, NodeState::Active),
            (2100, NodeState::Planned),
            (2700, NodeState::Active),
            (3300, NodeState::Drained),
        ],
        held: vec![held(300, 2100, 1, 2)],
    };
    let cost = allocate(&node, &rates(3_600_000), (0, 3600)).unwrap();
    assert_eq!(
        categories(&cost),
        [
            ("allocated", 900_000),
            ("idle", 900_000 + 600_000),
            ("planned", 600_000),
            ("booting", 300_000),
            ("drained", 300_000)
        ]
    );
    assert_eq!(cost.cost, Micros(3_600_000));
}

#[test]
fn idle_time_from_the_last_run_to_the_power_down_is_its_own_category() {
    let node = NodeTimeline {
        states: vec![
            (0, NodeState::Active),
            (3000, NodeState::PoweringDown),
            (3100, NodeState::Off),
        ],
        held: vec![held(0, 1000, 1, 1), held(1500, 2000, 1, 1)],
    };
    let cost = allocate(&node, &rates(3_600_000), (0, 3600)).unwrap();
    assert_eq!(
        categories(&cost),
        [
            ("allocated", 1_500_000),
            ("idle", 500_000),
            ("idle_before_power_down", 1_100_000)
        ]
    );
    assert_eq!(cost.seconds, 3100, "nothing while it is off");
}

#[test]
fn a_power_down_after_the_period_counts_unless_a_run_comes_first() {
    let mut node = NodeTimeline {
        states: vec![(0, NodeState::Active), (4000, NodeState::PoweringDown)],
        held: vec![held(0, 1800, 1, 1)],
    };
    let whole = |node: &NodeTimeline| {
        let cost = allocate(node, &rates(3_600_000), (0, 3600)).unwrap();
        categories(&cost)
    };
    assert_eq!(
        whole(&node),
        [
            ("allocated", 1_800_000),
            ("idle_before_power_down", 1_800_000)
        ]
    );
    node.held.push(held(3700, 3800, 1, 8));
    assert_eq!(
        whole(&node),
        [("allocated", 1_800_000), ("idle", 1_800_000)]
    );
}

#[test]
fn a_powered_down_node_costs_as_such_unless_it_is_off() {
    let of = |state| {
        let node = NodeTimeline {
            states: vec![(0, NodeState::Active), (600, state)],
            held: Vec::new(),
        };
        categories(&allocate(&node, &rates(3_600_000), (0, 3600)).unwrap())
    };
    let idle = ("idle_before_power_down", 600_000);
    assert_eq!(
        of(NodeState::PoweredDown),
        [idle, ("powered_down", 3_000_000)]
    );
    assert_eq!(of(NodeState::Off), [idle]);
}

/// With a search over all runs for every piece this takes minutes.
#[test]
fn a_node_with_many_runs_is_allocated_in_one_pass() {
    const RUNS: i64 = 20_000;
    let node = NodeTimeline {
        states: vec![(0, NodeState::Active)],
        held: (0..RUNS)
            .map(|run| held(2 * run, 2 * run + 3, 1, 4))
            .collect(),
    };
    let cost = allocate(&node, &rates(3_600_000), (0, 2 * RUNS)).unwrap();
    // The last second of the last run lies after the period.
    let allocated = (3 * RUNS - 1) * 250;
    assert_eq!(
        categories(&cost),
        [
            ("allocated", allocated),
            ("idle", 2 * RUNS * 1000 - allocated)
        ]
    );
}

#[test]
fn shares_above_the_node_are_taken_off_again() {
    let node = NodeTimeline {
        states: vec![(0, NodeState::Active)],
        held: vec![held(0, 3600, 3, 4), held(0, 3600, 1, 2)],
    };
    let cost = allocate(&node, &rates(1_000_000), (0, 3600)).unwrap();
    assert_eq!(
        categories(&cost),
        [("allocated", 1_250_000), ("over_recovery", -250_000)]
    );
}

fn state() -> impl Strategy<Value = NodeState> {
    prop::sample::select(NodeState::ALL.to_vec())
}

proptest! {
    #[test]
    fn every_second_has_one_state_and_the_categories_add_up(
        mut states in prop::collection::vec((0i64..2000, state()), 0..8),
        runs in prop::collection::vec((0i64..2000, 0i64..2000, 0i64..=7, 1i64..=7), 0..6),
        (a, b) in (0i64..2000, 0i64..2000),
        per_hour in 1i64..50_000_000,
    ) {
        states.sort_by_key(|(at, _)| *at);
        let held = runs.into_iter().map(|(a, b, n, d)| held(a.min(b), a.max(b), n, d)).collect();
        let node = NodeTimeline { states, held };
        let (from, to) = (a.min(b), a.max(b));
        let cost = allocate(&node, &rates(per_hour), (from, to)).unwrap();
        prop_assert_eq!(cost.states.values().sum::<u64>(), from.abs_diff(to));
        let sum: i64 = cost.categories.values().map(|micros| micros.0).sum();
        prop_assert_eq!(sum, cost.cost.0);
        let exact = integer(per_hour) * integer(cost.seconds) / integer(SECONDS_PER_HOUR);
        prop_assert_eq!(round_half_even(&exact).unwrap(), cost.cost);
        // Of a cut period, each category is the sum of its parts, up to roundings.
        let middle = i64::midpoint(from, to);
        let parts = [(from, middle), (middle, to)].map(|part| allocate(&node, &rates(per_hour), part).unwrap());
        for category in NodeCostCategory::ALL {
            let of = |cost: &NodeCost| cost.categories.get(&category).map_or(0, |micros| micros.0);
            let both = parts.iter().map(of).sum::<i64>();
            prop_assert!((both - of(&cost)).abs() <= 3, "{}: {} and {}", category.as_str(), both, of(&cost));
        }
    }
}
