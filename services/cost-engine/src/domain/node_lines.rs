//! What a node cost in a period, and what that paid for. Every second has exactly one state, and its cost is divided among what runs
//! held of the node and what the rest of it did. The lines of a node add up to its cost.

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
    /// Powered down or removed: it costs nothing.
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
    Reboot,
    /// Not watched.
    Unknown,
}

impl NodeState {
    /// All states.
    pub const ALL: [Self; 11] = [
        Self::Active,
        Self::Planned,
        Self::Booting,
        Self::PoweringDown,
        Self::Off,
        Self::Draining,
        Self::Drained,
        Self::Down,
        Self::Maintenance,
        Self::Reboot,
        Self::Unknown,
    ];

    /// Name in the database and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Planned => "planned",
            Self::Booting => "booting",
            Self::PoweringDown => "powering_down",
            Self::Off => "off",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Maintenance => "maintenance",
            Self::Reboot => "reboot",
            Self::Unknown => "unknown",
        }
    }

    /// Parses a name. One of a later version is unknown.
    pub fn from_name(name: &str) -> Self {
        let named = |state: &Self| state.as_str() == name;
        Self::ALL.into_iter().find(named).unwrap_or(Self::Unknown)
    }
}

/// What the cost of a node paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeLine {
    /// Held by runs.
    Allocated,
    /// Usable and not held.
    Idle,
    /// Kept free for a waiting job.
    Planned,
    /// Powered up, until it was usable.
    Booting,
    /// Empty from its last run until it was powered down.
    IdleTail,
    /// Not held while draining.
    Draining,
    /// Drained.
    Drained,
    /// Not usable.
    Down,
    /// Maintenance.
    Maintenance,
    /// Rebooting.
    Reboot,
    /// Not watched.
    Unknown,
    /// Negative: the shares of its runs add up to more than the node.
    OverRecovery,
}

impl NodeLine {
    /// All lines.
    pub const ALL: [Self; 12] = [
        Self::Allocated,
        Self::Idle,
        Self::Planned,
        Self::Booting,
        Self::IdleTail,
        Self::Draining,
        Self::Drained,
        Self::Down,
        Self::Maintenance,
        Self::Reboot,
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
            Self::IdleTail => "idle_tail",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Maintenance => "maintenance",
            Self::Reboot => "reboot",
            Self::Unknown => "unknown",
            Self::OverRecovery => "over_recovery",
        }
    }

    /// What the part of a node in this state that no run holds is.
    const fn of_rest(state: NodeState, is_tail: bool) -> Option<Self> {
        Some(match state {
            NodeState::Active | NodeState::Planned if is_tail => Self::IdleTail,
            NodeState::Active => Self::Idle,
            NodeState::Planned => Self::Planned,
            NodeState::Booting => Self::Booting,
            NodeState::PoweringDown => Self::IdleTail,
            NodeState::Off => return None,
            NodeState::Draining => Self::Draining,
            NodeState::Drained => Self::Drained,
            NodeState::Down => Self::Down,
            NodeState::Maintenance => Self::Maintenance,
            NodeState::Reboot => Self::Reboot,
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

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTimeline {
    /// Changes of the state, oldest first. Before the first one the state is unknown.
    pub states: Vec<(i64, NodeState)>,
    /// What runs held, in any order.
    pub held: Vec<HeldShare>,
}

/// The cost of a node in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCost {
    /// Rate times seconds, without those when it was off.
    pub cost: Micros,
    /// Seconds that it is charged.
    pub seconds: u64,
    /// What the cost paid for. The sum is `cost`.
    pub lines: BTreeMap<NodeLine, Micros>,
    /// Seconds of each state. The sum is the length of the period.
    pub states: BTreeMap<NodeState, u64>,
}

/// Divides the cost of a node in a period.
///
/// # Errors
/// If some part of the period has no price (the time), or an amount does not fit 64 bits.
pub fn divide(
    node: &NodeTimeline,
    rates: &RateSchedule,
    period: Interval,
) -> Result<NodeCost, NodeCostError> {
    let mut exact: BTreeMap<NodeLine, Exact> = BTreeMap::new();
    let mut result = NodeCost::default();
    for (from, to) in pieces(node, period) {
        let state = node.state_at(from);
        *result.states.entry(state).or_default() += from.abs_diff(to);
        let share = node.share_at(from);
        let rest = NodeLine::of_rest(state, share.is_zero() && node.is_tail(to));
        // A run on a node that is said to be off proves that it is on.
        let rest = match rest {
            None if share.is_zero() => continue,
            None => NodeLine::Unknown,
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
            true => NodeLine::OverRecovery,
            false => rest,
        };
        for (line, part) in [(NodeLine::Allocated, share), (rest, unheld)] {
            if !part.is_zero() {
                *exact.entry(line).or_insert_with(Exact::zero) += &cost * part;
            }
        }
    }
    // Rounded cumulatively, so that the lines add up.
    let (mut sum, mut before) = (Exact::zero(), Micros::ZERO);
    for (line, amount) in exact {
        sum += amount;
        let until = round_half_even(&sum)?;
        result.lines.insert(line, until.saturating_sub(before));
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

/// The period, cut where anything changes.
fn pieces(node: &NodeTimeline, (from, to): Interval) -> Vec<Interval> {
    let changes = node.states.iter().map(|(at, _)| *at);
    let bounds = node.held.iter().flat_map(|held| [held.time.0, held.time.1]);
    let mut cuts: BTreeSet<i64> = changes
        .chain(bounds)
        .filter(|cut| from < *cut && *cut < to)
        .collect();
    if from < to {
        cuts.extend([from, to]);
    }
    let cuts: Vec<i64> = cuts.into_iter().collect();
    cuts.windows(2).map(|cut| (cut[0], cut[1])).collect()
}

impl NodeTimeline {
    fn state_at(&self, time: i64) -> NodeState {
        let known = self.states.partition_point(|(at, _)| *at <= time);
        let last = known.checked_sub(1).and_then(|last| self.states.get(last));
        last.map_or(NodeState::Unknown, |(_, state)| *state)
    }

    fn share_at(&self, time: i64) -> Exact {
        let holds = |held: &&HeldShare| held.time.0 <= time && time < held.time.1;
        let held = self.held.iter().filter(holds);
        held.fold(Exact::zero(), |sum, held| sum + &held.share)
    }

    /// True if the node is powered down after this time, without a run in between and without another state than usable.
    fn is_tail(&self, time: i64) -> bool {
        let usable = |state: &NodeState| matches!(state, NodeState::Active | NodeState::Planned);
        if !usable(&self.state_at(time - 1)) {
            return false;
        }
        let known = self.states.partition_point(|(at, _)| *at < time);
        let next = self.states[known..]
            .iter()
            .find(|(_, state)| !usable(state));
        let Some((end, NodeState::PoweringDown | NodeState::Off)) = next else {
            return false;
        };
        let in_between = |held: &HeldShare| {
            let (from, to) = held.time;
            from < to && from < *end && to > time && !held.share.is_zero()
        };
        !self.held.iter().any(in_between)
    }
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

    fn lines(cost: &NodeCost) -> Vec<(&'static str, i64)> {
        let lines = cost.lines.iter();
        lines
            .map(|(line, micros)| (line.as_str(), micros.0))
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
        let cost = divide(&node, &rates(3_600_000), (0, 3600)).unwrap();
        assert_eq!(
            lines(&cost),
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
    fn the_time_from_the_last_run_to_the_power_down_is_a_tail() {
        let node = NodeTimeline {
            states: vec![
                (0, NodeState::Active),
                (3000, NodeState::PoweringDown),
                (3100, NodeState::Off),
            ],
            held: vec![held(0, 1000, 1, 1), held(1500, 2000, 1, 1)],
        };
        let cost = divide(&node, &rates(3_600_000), (0, 3600)).unwrap();
        assert_eq!(
            lines(&cost),
            [
                ("allocated", 1_500_000),
                ("idle", 500_000),
                ("idle_tail", 1_100_000)
            ]
        );
        assert_eq!(cost.seconds, 3100, "nothing while it is off");
    }

    #[test]
    fn shares_above_the_node_are_taken_off_again() {
        let node = NodeTimeline {
            states: vec![(0, NodeState::Active)],
            held: vec![held(0, 3600, 3, 4), held(0, 3600, 1, 2)],
        };
        let cost = divide(&node, &rates(1_000_000), (0, 3600)).unwrap();
        assert_eq!(
            lines(&cost),
            [("allocated", 1_250_000), ("over_recovery", -250_000)]
        );
    }

    fn state() -> impl Strategy<Value = NodeState> {
        prop::sample::select(NodeState::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn every_second_has_one_state_and_the_lines_add_up(
            mut states in prop::collection::vec((0i64..2000, state()), 0..8),
            runs in prop::collection::vec((0i64..2000, 0i64..2000, 0i64..=7, 1i64..=7), 0..6),
            (a, b) in (0i64..2000, 0i64..2000),
            per_hour in 1i64..50_000_000,
        ) {
            states.sort_by_key(|(at, _)| *at);
            let held = runs.into_iter().map(|(a, b, n, d)| held(a.min(b), a.max(b), n, d)).collect();
            let node = NodeTimeline { states, held };
            let (from, to) = (a.min(b), a.max(b));
            let cost = divide(&node, &rates(per_hour), (from, to)).unwrap();
            prop_assert_eq!(cost.states.values().sum::<u64>(), from.abs_diff(to));
            let sum: i64 = cost.lines.values().map(|micros| micros.0).sum();
            prop_assert_eq!(sum, cost.cost.0);
            let exact = integer(per_hour) * integer(cost.seconds) / integer(SECONDS_PER_HOUR);
            prop_assert_eq!(round_half_even(&exact).unwrap(), cost.cost);
            // Of a cut period, each line is the sum of its parts, up to roundings.
            let middle = i64::midpoint(from, to);
            let parts = [(from, middle), (middle, to)].map(|part| divide(&node, &rates(per_hour), part).unwrap());
            for line in NodeLine::ALL {
                let of = |cost: &NodeCost| cost.lines.get(&line).map_or(0, |micros| micros.0);
                let both = parts.iter().map(of).sum::<i64>();
                prop_assert!((both - of(&cost)).abs() <= 3, "{}: {} and {}", line.as_str(), both, of(&cost));
            }
        }
    }
}
