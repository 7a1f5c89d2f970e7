//! Cost of nodes in a period, and the part that their jobs paid.
//!
//! Idle cost is paid by no job. With `max_share`, jobs that fill different resources of a node can together pay more than it costs.

use num_traits::Zero as _;

use super::money::{Exact, integer, round_half_even};
use super::price::Nodes;
use super::{Interval, Micros, PriceError, Run, ShareRule, price};

/// Costs of nodes in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePeriod {
    /// Cost of the nodes, rounded once.
    pub node_cost: Micros,
    /// Cost of each run in the period, rounded per run, in the order of the runs.
    pub runs: Vec<Micros>,
    /// Sum of the runs' costs.
    pub allocated: Micros,
    /// Cost not paid by any run.
    pub idle: Micros,
    /// Payments of runs above the cost of the nodes.
    pub over_recovery: Micros,
}

/// Compares the cost of nodes that are up for the whole period with the costs of runs in it. Parts of runs outside the period do not
/// count.
///
/// # Errors
/// A [`PriceError`] if some part has no price.
pub fn node_period(
    mode: ShareRule,
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
        let rates = spec.rates_within(from, to)?;
        exact += rates
            .into_iter()
            .fold(Exact::zero(), |sum, (rate, seconds)| {
                sum + integer(rate.per_hour.0) * integer(seconds)
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
        // An open end means the end of the whole run, which the clipped run no longer holds. Its own end is the same or earlier.
        segment.to = segment.to.or(Some(run.end));
    }
    Ok(part)
}
