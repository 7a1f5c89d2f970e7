//! The cost of a run, its burn rate and its estimate.

use std::collections::BTreeMap;
use std::sync::Arc;

use num_traits::Zero as _;

use super::curve::{CostCurve, CurveBuilder};
use super::money::{Exact, integer, round_half_even};
use super::share::share;
use super::{Amounts, Interval, Market, Micros, NodeSpec, PriceError, Rate, ShareRule};

const SECONDS_PER_HOUR: u64 = 3600;

/// Allocation of a run on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAmounts {
    /// Name of the node.
    pub node: String,
    /// Allocated amounts.
    pub amounts: Amounts,
}

/// A part of a run with an unchanged allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First second.
    pub from: i64,
    /// First second after. `None` means the run's end.
    pub to: Option<i64>,
    /// Allocation per node.
    pub allocation: Vec<NodeAmounts>,
}

/// Facts needed to price a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Start of the allocation. `None` if it never started.
    pub start: Option<i64>,
    /// End, or the present time. Ignored if it never started.
    pub end: i64,
    /// Allocations over time. Segments do not overlap.
    pub segments: Vec<Segment>,
    /// Suspended intervals. Parts outside the run are ignored, and overlaps count once.
    pub suspensions: Vec<Interval>,
    /// True if it requested whole nodes.
    pub exclusive: bool,
}

/// Nodes with equal charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Names of the nodes, sorted.
    pub nodes: Vec<String>,
    /// Node type.
    pub node_type: String,
    /// Market of the nodes.
    pub market: Market,
    /// Rate of one node per hour.
    pub rate: Rate,
    /// Charged share of each node.
    pub share: Exact,
    /// Charged seconds.
    pub seconds: u64,
}

/// The cost of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCost {
    /// Cost before rounding.
    pub exact: Exact,
    /// Cost by list prices before rounding.
    pub list: Exact,
    /// Cost after rounding.
    pub cost: Micros,
    /// Seconds from start to end, including suspensions.
    pub seconds: u64,
    /// Cost lines; they add up to `exact`.
    pub lines: Vec<Line>,
}

/// Cost of a run per hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BurnRate {
    /// Rate before rounding.
    pub exact: Exact,
    /// Rate after rounding.
    pub per_hour: Micros,
}

impl BurnRate {
    /// The rate with a surcharge or discount.
    ///
    /// # Errors
    /// If the amount does not fit 64 bits.
    pub fn times(self, factor: &Exact) -> Result<Self, PriceError> {
        let exact = self.exact * factor;
        Ok(Self {
            per_hour: round_half_even(&exact)?,
            exact,
        })
    }

    /// Cost of the run if it lasts this long. Computed from the exact burn rate and rounded once.
    ///
    /// # Errors
    /// If the amount does not fit 64 bits.
    pub fn estimate(&self, seconds: u64) -> Result<Micros, PriceError> {
        round_half_even(&(&self.exact * integer(seconds) / integer(SECONDS_PER_HOUR)))
    }
}

/// The price-relevant facts of nodes, by name.
pub type Nodes = BTreeMap<String, Arc<NodeSpec>>;

/// Prices a run. A run that never started, or lasted no time, costs nothing.
///
/// # Errors
/// A [`PriceError`] if some part has no price. Never a partial cost instead.
pub fn price(mode: ShareRule, nodes: &Nodes, run: &Run) -> Result<RunCost, PriceError> {
    let nothing = RunCost {
        exact: Exact::zero(),
        list: Exact::zero(),
        cost: Micros::ZERO,
        seconds: 0,
        lines: Vec::new(),
    };
    let Some(start) = run.start else {
        return Ok(nothing);
    };
    if run.end < start {
        return Err(PriceError::EndBeforeStart {
            start,
            end: run.end,
        });
    }
    let mut parts = Parts::new();
    for_each_piece(mode, nodes, run, start, |held, piece| {
        *parts
            .entry((held.node.clone(), piece.rate, piece.share))
            .or_default() += piece.from.abs_diff(piece.to);
    })?;
    let exact = exact_sum(&parts, |rate| rate.per_hour);
    Ok(RunCost {
        cost: round_half_even(&exact)?,
        list: exact_sum(&parts, |rate| rate.list),
        exact,
        seconds: start.abs_diff(run.end),
        lines: lines(nodes, parts)?,
    })
}

/// Cost of a run over time, before rounding. A run that never started costs nothing.
///
/// # Errors
/// As [`price`].
pub fn curve(mode: ShareRule, nodes: &Nodes, run: &Run) -> Result<CostCurve, PriceError> {
    let mut builder = CurveBuilder::default();
    if let Some(start) = run.start {
        for_each_piece(mode, nodes, run, start, |_, piece| {
            let per_hour = integer(piece.rate.per_hour.0) * piece.share;
            builder.add(piece.from, piece.to, per_hour);
        })?;
    }
    Ok(builder.finish())
}

/// Shares of nodes: node, time and share.
pub type Shares = Vec<(String, Interval, Exact)>;

/// The shares of nodes that a run held.
///
/// # Errors
/// As [`price`].
pub fn shares(mode: ShareRule, nodes: &Nodes, run: &Run) -> Result<Shares, PriceError> {
    let mut shares = Vec::new();
    if let Some(start) = run.start {
        for_each_piece(mode, nodes, run, start, |held, piece| {
            shares.push((held.node.clone(), (piece.from, piece.to), piece.share));
        })?;
    }
    Ok(shares)
}

/// A part of a run on one node with an unchanged rate and share.
struct NodeSegment {
    from: i64,
    to: i64,
    rate: Rate,
    share: Exact,
}

fn for_each_piece(
    mode: ShareRule,
    nodes: &Nodes,
    run: &Run,
    start: i64,
    mut visit: impl FnMut(&NodeAmounts, NodeSegment),
) -> Result<(), PriceError> {
    for segment in &run.segments {
        let (from, to) = (
            segment.from.max(start),
            segment.to.unwrap_or(run.end).min(run.end),
        );
        for (from, to, suspended) in cut_at_suspensions(from, to, &run.suspensions) {
            for held in &segment.allocation {
                let spec = spec_of(nodes, &held.node)?;
                let share = share(
                    mode,
                    &held.node,
                    spec,
                    &held.amounts,
                    run.exclusive,
                    suspended,
                )?;
                let rates = spec.rates_within(from, to)?;
                let mut begin = from;
                for (rate, seconds) in rates {
                    let end = begin.saturating_add_unsigned(seconds);
                    let share = share.clone();
                    visit(
                        held,
                        NodeSegment {
                            from: begin,
                            to: end,
                            rate,
                            share,
                        },
                    );
                    begin = end;
                }
            }
        }
    }
    Ok(())
}

/// Burn rate of an allocation at a moment.
///
/// # Errors
/// A [`PriceError`] if there is no price at that moment.
pub fn burn(
    mode: ShareRule,
    nodes: &Nodes,
    allocation: &[NodeAmounts],
    exclusive: bool,
    at: i64,
) -> Result<BurnRate, PriceError> {
    let mut exact = Exact::zero();
    for held in allocation {
        let spec = spec_of(nodes, &held.node)?;
        let share = share(mode, &held.node, spec, &held.amounts, exclusive, false)?;
        let rate = spec.rates.at(at).ok_or_else(|| PriceError::PriceMissing {
            node_type: spec.node_type.clone(),
            market: spec.market,
            at,
        })?;
        exact += integer(rate.per_hour.0) * share;
    }
    Ok(BurnRate {
        per_hour: round_half_even(&exact)?,
        exact,
    })
}

fn spec_of<'a>(nodes: &'a Nodes, node: &str) -> Result<&'a NodeSpec, PriceError> {
    nodes
        .get(node)
        .map(Arc::as_ref)
        .ok_or_else(|| PriceError::NodeTypeMissing {
            node: node.to_owned(),
        })
}

/// Splits an interval where suspensions begin and end. The flag of each piece is true if the run was suspended.
pub(super) fn cut_at_suspensions(
    from: i64,
    to: i64,
    suspensions: &[Interval],
) -> Vec<(i64, i64, bool)> {
    let mut cuts: Vec<i64> = suspensions
        .iter()
        .flat_map(|&(a, b)| [a, b])
        .filter(|&cut| from < cut && cut < to)
        .collect();
    cuts.extend([from, to]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2)
        .filter(|_| from < to)
        .map(|piece| {
            (
                piece[0],
                piece[1],
                suspensions
                    .iter()
                    .any(|&(a, b)| a <= piece[0] && piece[1] <= b),
            )
        })
        .collect()
}

/// Seconds by node, rate and share.
type Parts = BTreeMap<(String, Rate, Exact), u64>;

fn exact_sum(parts: &Parts, amount: impl Fn(&Rate) -> Micros) -> Exact {
    let sum = parts
        .iter()
        .fold(Exact::zero(), |sum, ((_, rate, share), seconds)| {
            sum + integer(amount(rate).0) * integer(*seconds) * share
        });
    sum / integer(SECONDS_PER_HOUR)
}

/// Groups nodes with equal charges.
fn lines(nodes: &Nodes, parts: Parts) -> Result<Vec<Line>, PriceError> {
    let mut alike: BTreeMap<(String, Market, Rate, Exact, u64), Vec<String>> = BTreeMap::new();
    for ((node, rate, share), seconds) in parts {
        let spec = spec_of(nodes, &node)?;
        alike
            .entry((spec.node_type.clone(), spec.market, rate, share, seconds))
            .or_default()
            .push(node);
    }
    Ok(alike
        .into_iter()
        .map(|((node_type, market, rate, share, seconds), nodes)| Line {
            nodes,
            node_type,
            market,
            rate,
            share,
            seconds,
        })
        .collect())
}

#[cfg(test)]
mod tests;
