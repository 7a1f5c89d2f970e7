//! What nodes cost in a period, and how much of it their jobs paid.
//!
//! Idle time is what nobody paid for; with `max_share`, jobs that fill different resources of a node can together pay more than it costs.

use num_traits::Zero as _;

use super::money::{Exact, integer, round_half_even};
use super::price::Nodes;
use super::{Interval, Micros, Mode, PriceError, Run, price};

/// Nodes in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePeriod {
    /// What the nodes cost, rounded once.
    pub node_cost: Micros,
    /// What each run paid in the period, rounded per run, in the order of the runs.
    pub runs: Vec<Micros>,
    /// Sum of those.
    pub allocated: Micros,
    /// Cost that no run paid.
    pub idle: Micros,
    /// What runs paid above the cost.
    pub over_recovery: Micros,
}

/// Compares the cost of nodes that are up for the whole period with what runs paid in it. Parts of runs outside do not count.
///
/// # Errors
/// A [`PriceError`] if there is no price for some part.
pub fn node_period(
    mode: Mode,
    nodes: &Nodes,
    (from, to): Interval,
    runs: &[Run],
) -> Result<NodePeriod, PriceError> {
    if to < from {
        return Err(PriceError::EndBeforeStart {
            start: from,
            end: to,
        });
    }
    let mut exact = Exact::zero();
    for spec in nodes.values() {
        let rates = spec
            .rates
            .within(from, to)
            .map_err(|at| PriceError::PriceMissing {
                node_type: spec.node_type.clone(),
                market: spec.market,
                at,
            })?;
        exact += rates
            .into_iter()
            .fold(Exact::zero(), |sum, (rate, seconds)| {
                sum + integer(rate.0) * integer(seconds)
            });
    }
    let node_cost = round_half_even(&(exact / integer(3600)))?;
    let runs = runs
        .iter()
        .map(|run| Ok(price(mode, nodes, &clip(run, from, to)?)?.cost))
        .collect::<Result<Vec<_>, PriceError>>()?;
    let allocated: Micros = runs.iter().copied().sum();
    Ok(NodePeriod {
        node_cost,
        runs,
        allocated,
        idle: node_cost.saturating_sub(allocated).max(Micros::ZERO),
        over_recovery: allocated.saturating_sub(node_cost).max(Micros::ZERO),
    })
}

/// The part of a run within an interval.
fn clip(run: &Run, from: i64, to: i64) -> Result<Run, PriceError> {
    let Some(start) = run.start else {
        return Ok(run.clone());
    };
    if run.end < start {
        return Err(PriceError::EndBeforeStart {
            start,
            end: run.end,
        });
    }
    let clipped = start.clamp(from, to);
    let mut part = Run {
        start: Some(clipped),
        end: run.end.clamp(clipped, to),
        ..run.clone()
    };
    for segment in &mut part.segments {
        // An open end means the end of the whole run, which the clipped run no longer knows: its own end is the same or earlier.
        segment.to = segment.to.or(Some(run.end));
    }
    Ok(part)
}
