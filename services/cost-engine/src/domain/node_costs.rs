//! Cost of a node in a period, by category. Every second has exactly one state. Its cost is allocated to what runs held of the node and
//! to the state of the rest. The categories of a node add up to its cost.

use std::collections::{BTreeMap, BTreeSet};

use num_traits::{One as _, Zero as _};

use super::money::{Exact, integer, round_half_even};
use super::{Interval, Micros, PriceError, RateSchedule};

const SECONDS_PER_HOUR: u64 = 3600;

/// What a node is doing, apart from its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeState {
    /// Usable.
    Active,
    /// Usable and kept free for a waiting job.
    Planned,
    /// Being powered up.
    Booting,
    /// Being powered down.
    PoweringDown,
    /// Powered down, and paid for: not a cloud node.
    PoweredDown,
    /// A cloud node that is powered down, or a removed node: it costs nothing.
    Off,
    /// No new runs; the present ones go on.
    Draining,
    /// No runs.
    Drained,
    /// Not usable.
    Down,
    /// In a maintenance reservation.
    Maintenance,
    /// Rebooting.
    Rebooting,
    /// Not watched.
    Unknown,
}

impl NodeState {
    /// All states.
    pub const ALL: [Self; 12] = [
        Self::Active,
        Self::Planned,
        Self::Booting,
        Self::PoweringDown,
        Self::PoweredDown,
        Self::Off,
        Self::Draining,
        Self::Drained,
        Self::Down,
        Self::Maintenance,
        Self::Rebooting,
        Self::Unknown,
    ];

    /// Name in the database and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Planned => "planned",
            Self::Booting => "booting",
            Self::PoweringDown => "powering_down",
            Self::PoweredDown => "powered_down",
            Self::Off => "off",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Maintenance => "maintenance",
            Self::Rebooting => "rebooting",
            Self::Unknown => "unknown",
        }
    }

    /// True from the power-down on, and for removed nodes.
    pub const fn is_power_down(self) -> bool {
        matches!(self, Self::PoweringDown | Self::PoweredDown | Self::Off)
    }

    /// Parses a name. One of a later version is unknown.
    pub fn from_name(name: &str) -> Self {
        let named = |state: &Self| state.as_str() == name;
        Self::ALL.into_iter().find(named).unwrap_or(Self::Unknown)
    }
}

/// Category of a node's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeCostCategory {
    /// Held by runs.
    Allocated,
    /// Usable and not held.
    Idle,
    /// Kept free for a waiting job.
    Planned,
    /// Powered up, until it was usable.
    Booting,
    /// Not held, from its last run until it was powered down.
    IdleBeforePowerDown,
    /// Powered down, and paid for.
    PoweredDown,
    /// Not held while draining.
    Draining,
    /// Drained.
    Drained,
    /// Not usable.
    Down,
    /// Maintenance.
    Maintenance,
    /// Rebooting.
    Rebooting,
    /// Not watched.
    Unknown,
    /// Negative: the shares of its runs add up to more than the node.
    OverRecovery,
}

impl NodeCostCategory {
    /// All categories.
    pub const ALL: [Self; 13] = [
        Self::Allocated,
        Self::Idle,
        Self::Planned,
        Self::Booting,
        Self::IdleBeforePowerDown,
        Self::PoweredDown,
        Self::Draining,
        Self::Drained,
        Self::Down,
        Self::Maintenance,
        Self::Rebooting,
        Self::Unknown,
        Self::OverRecovery,
    ];

    /// Name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Idle => "idle",
            Self::Planned => "planned",
            Self::Booting => "booting",
            Self::IdleBeforePowerDown => "idle_before_power_down",
            Self::PoweredDown => "powered_down",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Maintenance => "maintenance",
            Self::Rebooting => "rebooting",
            Self::Unknown => "unknown",
            Self::OverRecovery => "over_recovery",
        }
    }

    /// Category of the part that no run holds. `None` if it costs nothing.
    const fn of_rest(state: NodeState, before_power_down: bool) -> Option<Self> {
        Some(match state {
            NodeState::Active | NodeState::Planned if before_power_down => {
                Self::IdleBeforePowerDown
            }
            NodeState::Active => Self::Idle,
            NodeState::Planned => Self::Planned,
            NodeState::Booting => Self::Booting,
            NodeState::PoweringDown => Self::IdleBeforePowerDown,
            NodeState::PoweredDown => Self::PoweredDown,
            NodeState::Off => return None,
            NodeState::Draining => Self::Draining,
            NodeState::Drained => Self::Drained,
            NodeState::Down => Self::Down,
            NodeState::Maintenance => Self::Maintenance,
            NodeState::Rebooting => Self::Rebooting,
            NodeState::Unknown => Self::Unknown,
        })
    }
}

/// A part of a node that a run held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldShare {
    /// When.
    pub time: Interval,
    /// The share.
    pub share: Exact,
}

/// State changes and held shares of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTimeline {
    /// Changes of the state, oldest first. Before the first one the state is unknown. Up to the first state after the period in which the
    /// node is not usable, because idle time before a power-down is a category of its own.
    pub states: Vec<(i64, NodeState)>,
    /// Shares that runs held until the last change, in any order.
    pub held: Vec<HeldShare>,
}

/// Cost of a node in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCost {
    /// Rate times seconds, without those when it was off.
    pub cost: Micros,
    /// Charged seconds.
    pub seconds: u64,
    /// Amounts by category. The sum is `cost`.
    pub categories: BTreeMap<NodeCostCategory, Micros>,
    /// Seconds of each state. The sum is the length of the period.
    pub states: BTreeMap<NodeState, u64>,
}

/// Allocates the cost of a node in a period to categories. The effort grows with `n log n` of the changes and shares.
///
/// # Errors
/// If some part of the period has no price (the time), or an amount does not fit 64 bits.
pub fn allocate(
    node: &NodeTimeline,
    rates: &RateSchedule,
    period: Interval,
) -> Result<NodeCost, NodeCostError> {
    let mut exact: BTreeMap<NodeCostCategory, Exact> = BTreeMap::new();
    let mut result = NodeCost::default();
    for Piece {
        time: (from, to),
        state,
        share,
        before_power_down,
    } in pieces(node, period)
    {
        *result.states.entry(state).or_default() += from.abs_diff(to);
        // A run on a node in state off proves that the node is on.
        let rest = match NodeCostCategory::of_rest(state, before_power_down) {
            None if share.is_zero() => continue,
            None => NodeCostCategory::Unknown,
            Some(rest) => rest,
        };
        let mut cost = Exact::zero();
        let rates = rates
            .within(from, to)
            .map_err(NodeCostError::PriceMissing)?;
        for (rate, seconds) in rates {
            cost += integer(rate.per_hour.0) * integer(seconds) / integer(SECONDS_PER_HOUR);
        }
        result.seconds += from.abs_diff(to);
        let unheld = Exact::one() - &share;
        let rest = match unheld < Exact::zero() {
            true => NodeCostCategory::OverRecovery,
            false => rest,
        };
        for (category, part) in [(NodeCostCategory::Allocated, share), (rest, unheld)] {
            if !part.is_zero() {
                *exact.entry(category).or_insert_with(Exact::zero) += &cost * part;
            }
        }
    }
    // Rounded cumulatively, so that the categories add up.
    let (mut sum, mut before) = (Exact::zero(), Micros::ZERO);
    for (category, amount) in exact {
        sum += amount;
        let until = round_half_even(&sum)?;
        result
            .categories
            .insert(category, until.saturating_sub(before));
        before = until;
    }
    result.cost = before;
    Ok(result)
}

/// Why a node has no cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeCostError {
    /// There is no price at this time.
    PriceMissing(i64),
    /// An amount does not fit.
    Amount(PriceError),
}

impl From<PriceError> for NodeCostError {
    fn from(error: PriceError) -> Self {
        Self::Amount(error)
    }
}

/// A part of the period in which nothing changes.
struct Piece {
    time: Interval,
    state: NodeState,
    /// Sum of the shares that runs hold.
    share: Exact,
    /// True if it is usable and not held, and stays so until it is powered down.
    before_power_down: bool,
}

/// The pieces of a period, oldest first.
fn pieces(node: &NodeTimeline, (from, to): Interval) -> Vec<Piece> {
    if from >= to {
        return Vec::new();
    }
    let held = node
        .held
        .iter()
        .filter(|held| held.time.0 < held.time.1 && from < held.time.1);
    // Changes of the held share, in order.
    let mut deltas: Vec<(i64, Exact)> = held
        .flat_map(|held| {
            [
                (held.time.0, held.share.clone()),
                (held.time.1, -&held.share),
            ]
        })
        .collect();
    deltas.sort_by_key(|(at, _)| *at);
    let states = node.states.iter().map(|(at, _)| *at);
    let cuts: BTreeSet<i64> = states
        .chain(deltas.iter().map(|(at, _)| *at))
        .filter(|cut| from < *cut)
        .chain([from, to])
        .collect();
    let cuts: Vec<i64> = cuts.into_iter().collect();
    let (mut states, mut deltas) = (node.states.iter().peekable(), deltas.into_iter().peekable());
    let (mut state, mut share) = (NodeState::Unknown, Exact::zero());
    let mut pieces: Vec<Piece> = Vec::with_capacity(cuts.len());
    for (at, &cut) in cuts.iter().enumerate() {
        while let Some((_, next)) = states.next_if(|(at, _)| *at <= cut) {
            state = *next;
        }
        while let Some((_, delta)) = deltas.next_if(|(at, _)| *at <= cut) {
            share += delta;
        }
        pieces.push(Piece {
            time: (cut, cuts.get(at + 1).copied().unwrap_or(cut)),
            state,
            share: share.clone(),
            before_power_down: false,
        });
    }
    let mut before_power_down = false;
    for piece in pieces.iter_mut().rev() {
        before_power_down = match piece.state {
            NodeState::Active | NodeState::Planned => before_power_down && piece.share.is_zero(),
            state => state.is_power_down(),
        };
        piece.before_power_down = before_power_down;
    }
    pieces.retain(|piece| piece.time.0 < to);
    pieces
}

#[cfg(test)]
mod tests {
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
}
