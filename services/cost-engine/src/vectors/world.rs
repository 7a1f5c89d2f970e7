//! Converts a vector's prices, nodes and runs into the types of [`crate::domain`].

use std::collections::BTreeMap;
use std::sync::Arc;

use num_rational::BigRational;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Error;
use super::schema::{
    CapacityFacts, MarketName, ModeName, Node, NodeAlloc, NodeWeights, Price, RunFacts, TotalAlloc,
};
use crate::domain::price::Nodes;
use crate::domain::rates::{Rate, RatePeriod, RateSchedule, ScheduleError};
use crate::domain::{
    Amounts, Capacity, Exact, Market, Micros, NodeAmounts, NodeSpec, Run, Segment, ShareRule,
    Weights, money,
};

/// Identifies the vector and the field in errors.
#[derive(Clone, Copy)]
pub(super) struct VectorPath<'a>(pub &'a str);

impl VectorPath<'_> {
    pub fn error(self, field: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Field {
            vector: self.0.to_owned(),
            field: field.into(),
            problem: problem.into(),
        }
    }
}

pub(super) fn mode(name: ModeName) -> ShareRule {
    match name {
        ModeName::MaxShare => ShareRule::MaxShare,
        ModeName::WeightedShare => ShareRule::WeightedShare,
        ModeName::WholeNode => ShareRule::WholeNode,
    }
}

fn market(name: MarketName) -> Market {
    match name {
        MarketName::OnDemand => Market::OnDemand,
        MarketName::Spot => Market::Spot,
    }
}

/// Properties of the nodes, with their prices.
pub(super) fn nodes(
    path: VectorPath<'_>,
    prices: &[Price],
    nodes: &[Node],
    weights: &BTreeMap<String, NodeWeights>,
) -> Result<Nodes, Error> {
    let mut found = Nodes::new();
    for (at, node) in nodes.iter().enumerate() {
        let spec = NodeSpec {
            node_type: node.node_type.clone(),
            market: market(node.market),
            capacity: Capacity {
                cpu: node.cap.cpu,
                mem_mib: node.cap.mem_mib,
                gpu: node.cap.gpu,
            },
            weights: weights
                .get(&node.node_type)
                .map(|weights| node_weights(path, &node.node_type, weights))
                .transpose()?,
            rates: Arc::new(schedule(path, prices, &node.node_type, node.market)?),
        };
        if found.insert(node.name.clone(), Arc::new(spec)).is_some() {
            return Err(path.error(
                format!("nodes[{at}].name"),
                format!("duplicate node {:?}", node.name),
            ));
        }
    }
    Ok(found)
}

fn schedule(
    path: VectorPath<'_>,
    prices: &[Price],
    node_type: &str,
    market: MarketName,
) -> Result<RateSchedule, Error> {
    let (positions, periods): (Vec<usize>, Vec<RatePeriod>) = prices
        .iter()
        .enumerate()
        .filter(|(_, price)| price.node_type == node_type && price.market == market)
        .map(|(at, price)| {
            (
                at,
                RatePeriod {
                    from: price.from,
                    to: price.to,
                    rate: Rate::flat(Micros(price.rate_micro_per_hour)),
                },
            )
        })
        .unzip();
    RateSchedule::new(&periods).map_err(|error| match error {
        ScheduleError::Empty(at) => path.error(
            format!("prices[{}]", positions[at]),
            "ends before it starts",
        ),
        ScheduleError::Overlap(first, second) => path.error(
            format!("prices[{}]", positions[second]),
            format!("overlaps prices[{}]", positions[first]),
        ),
    })
}

fn node_weights(
    path: VectorPath<'_>,
    node_type: &str,
    weights: &NodeWeights,
) -> Result<Weights, Error> {
    let weight = |resource: &str, (numerator, denominator): (i64, i64)| {
        money::ratio(numerator, denominator).ok_or_else(|| {
            path.error(
                format!("weights.{node_type}.{resource}"),
                "denominator is zero",
            )
        })
    };
    Ok(Weights {
        cpu: weight("cpu", weights.cpu)?,
        mem: weight("mem_mib", weights.mem_mib)?,
        gpu: weight("gpu", weights.gpu)?,
    })
}

/// The facts of a run.
pub(super) fn run(
    path: VectorPath<'_>,
    field: &str,
    facts: &RunFacts,
    now: Option<i64>,
) -> Result<Run, Error> {
    let Some(start) = facts.start else {
        return Ok(Run::default());
    };
    let end = facts
        .end
        .or(now)
        .ok_or_else(|| path.error(format!("{field}.end"), "neither an end nor `now` is given"))?;
    let segments = match (&facts.segments, &facts.alloc) {
        (Some(_), Some(_)) => {
            return Err(path.error(
                format!("{field}.alloc"),
                "either `alloc` or `segments`, not both",
            ));
        }
        (None, None) => {
            return Err(path.error(
                format!("{field}.alloc"),
                "missing, and there are no `segments`",
            ));
        }
        (None, Some(alloc)) => {
            vec![Segment {
                from: start,
                to: None,
                allocation: allocation(path, &format!("{field}.alloc"), alloc)?,
            }]
        }
        (Some(segments), None) => segments
            .iter()
            .enumerate()
            .map(|(at, segment)| {
                let allocation = allocation(
                    path,
                    &format!("{field}.segments[{at}].alloc"),
                    &segment.alloc,
                )?;
                Ok(Segment {
                    from: segment.from,
                    to: segment.to,
                    allocation,
                })
            })
            .collect::<Result<_, Error>>()?,
    };
    let suspensions = facts
        .suspends
        .iter()
        .map(|&(from, to)| (from, to.unwrap_or(end)))
        .collect();
    Ok(Run {
        start: Some(start),
        end,
        segments,
        suspensions,
        exclusive: facts.exclusive,
    })
}

/// The allocation: per node, or totals split evenly.
pub(super) fn allocation(
    path: VectorPath<'_>,
    field: &str,
    value: &Value,
) -> Result<Vec<NodeAmounts>, Error> {
    if value.is_array() {
        let nodes: Vec<NodeAlloc> = read(path, field, value)?;
        let held = |node: NodeAlloc| NodeAmounts {
            node: node.node,
            amounts: Amounts::new(node.cpu, node.mem_mib, node.gpu),
        };
        return Ok(nodes.into_iter().map(held).collect());
    }
    let TotalAlloc {
        nodes,
        total: CapacityFacts { cpu, mem_mib, gpu },
    } = read(path, field, value)?;
    let each = Amounts::new(cpu, mem_mib, gpu).over(nodes.len());
    Ok(nodes
        .into_iter()
        .map(|node| NodeAmounts {
            node,
            amounts: each.clone(),
        })
        .collect())
}

fn read<T: DeserializeOwned>(path: VectorPath<'_>, field: &str, value: &Value) -> Result<T, Error> {
    T::deserialize(value).map_err(|error| path.error(field, error.to_string()))
}

/// The weight of one unit of a TRES.
pub(super) fn tres_weight(
    path: VectorPath<'_>,
    tres: &str,
    text: &str,
    per: u64,
) -> Result<Exact, Error> {
    let weight = money::decimal(text).ok_or_else(|| {
        path.error(
            format!("weights.{tres}.weight"),
            format!("{text:?} is not a decimal number"),
        )
    })?;
    if per == 0 {
        return Err(path.error(format!("weights.{tres}.per"), "must not be zero"));
    }
    Ok(weight / BigRational::from_integer(per.into()))
}
