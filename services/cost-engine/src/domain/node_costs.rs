//! Cost of a node in a period, by category. Every second has exactly one state. Its cost is allocated to what runs held of the node and
//! to the state of the rest. The categories of a node add up to its cost.

mod category;

use std::collections::{BTreeMap, BTreeSet};

use num_traits::{One as _, Zero as _};

use super::money::{Exact, integer, round_half_even};
use super::{Interval, Micros, PriceError, RateSchedule};

pub use category::{NodeCostCategory, NodeState};

const SECONDS_PER_HOUR: u64 = 3600;

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
    for NodeInterval {
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
struct NodeInterval {
    time: Interval,
    state: NodeState,
    /// Sum of the shares that runs hold.
    share: Exact,
    /// True if it is usable and not held, and stays so until it is powered down.
    before_power_down: bool,
}

/// The pieces of a period, oldest first.
fn pieces(node: &NodeTimeline, (from, to): Interval) -> Vec<NodeInterval> {
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
    let mut pieces: Vec<NodeInterval> = Vec::with_capacity(cuts.len());
    for (at, &cut) in cuts.iter().enumerate() {
        while let Some((_, next)) = states.next_if(|(at, _)| *at <= cut) {
            state = *next;
        }
        while let Some((_, delta)) = deltas.next_if(|(at, _)| *at <= cut) {
            share += delta;
        }
        pieces.push(NodeInterval {
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
mod tests;
