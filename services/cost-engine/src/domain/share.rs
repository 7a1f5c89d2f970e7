//! The share of a node held by a run.
//!
//! - `max_share`: the largest of the CPU, memory and GPU parts. A run that takes all memory blocks the node and pays for all of it,
//!   whatever its CPUs.
//! - `weighted_share`: each part times its weight. Weights add up to 1, so concurrent jobs never pay more than the node costs.
//! - `whole_node`: every allocated node counts fully.
//!
//! A share is never above 1. A run that requested whole nodes has share 1. While a run is suspended, its CPUs are available to others,
//! but its memory and GPUs are not. So the CPU part is left out, as in Slurm's own usage roll-up. A stopped run (SIGSTOP) keeps its
//! CPUs and pays for them.

use std::sync::Arc;

use num_traits::{One as _, Zero as _};

use super::money::{Exact, integer};
use super::{Market, PriceError, Rate, RateSchedule, Resource};

/// Rule for the share of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShareRule {
    /// The largest part.
    #[default]
    MaxShare,
    /// The weighted sum of the parts.
    WeightedShare,
    /// The whole of every allocated node.
    WholeNode,
}

impl ShareRule {
    /// Name in price books and cost events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxShare => "max_share",
            Self::WeightedShare => "weighted_share",
            Self::WholeNode => "whole_node",
        }
    }

    /// Parses a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::MaxShare, Self::WeightedShare, Self::WholeNode]
            .into_iter()
            .find(|mode| mode.as_str() == name)
    }
}

/// Amounts held on one node. Fractions, because totals may be split evenly over nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPUs, as Slurm counts them.
    pub cpu: Exact,
    /// Memory in MiB. Zero if memory is not a consumable resource.
    pub mem_mib: Exact,
    /// GPUs.
    pub gpu: Exact,
}

impl Amounts {
    /// Whole amounts.
    pub fn new(cpu: u64, mem_mib: u64, gpu: u64) -> Self {
        Self {
            cpu: integer(cpu),
            mem_mib: integer(mem_mib),
            gpu: integer(gpu),
        }
    }

    /// The same amounts divided evenly among several nodes.
    #[must_use]
    pub fn over(&self, nodes: usize) -> Self {
        let nodes = integer(nodes.max(1));
        Self {
            cpu: &self.cpu / &nodes,
            mem_mib: &self.mem_mib / &nodes,
            gpu: &self.gpu / &nodes,
        }
    }
}

/// Resources of a node available to jobs: effective CPUs, real minus specialised memory, configured GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// CPUs.
    pub cpu: u64,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// GPUs.
    pub gpu: u64,
}

/// Weights of the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Weight of the CPU part.
    pub cpu: Exact,
    /// Weight of the memory part.
    pub mem: Exact,
    /// Weight of the GPU part.
    pub gpu: Exact,
}

/// Properties of a node that determine its price.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Node type in the price book.
    pub node_type: String,
    /// How it was bought.
    pub market: Market,
    /// Resources available to jobs.
    pub capacity: Capacity,
    /// Weights, for weighted shares.
    pub weights: Option<Weights>,
    /// Rates over time.
    pub rates: Arc<RateSchedule>,
}

impl NodeSpec {
    /// The rates within an interval, each with its seconds.
    ///
    /// # Errors
    /// If a second has no price.
    pub fn rates_within(&self, from: i64, to: i64) -> Result<Vec<(Rate, u64)>, PriceError> {
        self.rates
            .within(from, to)
            .map_err(|at| PriceError::PriceMissing {
                node_type: self.node_type.clone(),
                market: self.market,
                at,
            })
    }
}

/// The charged share of a node.
///
/// # Errors
/// If the node lacks an allocated resource, or required weights are missing.
pub fn share(
    mode: ShareRule,
    node: &str,
    spec: &NodeSpec,
    amounts: &Amounts,
    exclusive: bool,
    suspended: bool,
) -> Result<Exact, PriceError> {
    let part = |resource, amount: &Exact, capacity: u64| match (amount.is_zero(), capacity) {
        (true, _) => Ok(Exact::zero()),
        (false, 0) => Err(PriceError::ResourceNotOnNode {
            node: node.to_owned(),
            node_type: spec.node_type.clone(),
            resource,
        }),
        (false, capacity) => Ok(amount / integer(capacity)),
    };
    if mode == ShareRule::WholeNode {
        return Ok(Exact::one());
    }
    let mut cpu = part(Resource::Cpu, &amounts.cpu, spec.capacity.cpu)?;
    let mem = part(Resource::Memory, &amounts.mem_mib, spec.capacity.mem_mib)?;
    let gpu = part(Resource::Gpu, &amounts.gpu, spec.capacity.gpu)?;
    if exclusive {
        return Ok(Exact::one());
    }
    if suspended {
        cpu = Exact::zero();
    }
    let share = if mode == ShareRule::MaxShare {
        cpu.max(mem).max(gpu)
    } else {
        let weights = spec
            .weights
            .as_ref()
            .ok_or_else(|| PriceError::WeightsMissing {
                node_type: spec.node_type.clone(),
            })?;
        &weights.cpu * cpu + &weights.mem * mem + &weights.gpu * gpu
    };
    Ok(share.min(Exact::one()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::money::ratio;

    fn spec(cpu: u64, mem_mib: u64, gpu: u64) -> NodeSpec {
        let weights = Weights {
            cpu: ratio(1, 10).unwrap(),
            mem: ratio(1, 20).unwrap(),
            gpu: ratio(17, 20).unwrap(),
        };
        NodeSpec {
            node_type: "t".into(),
            market: Market::OnDemand,
            capacity: Capacity { cpu, mem_mib, gpu },
            weights: Some(weights),
            rates: Arc::default(),
        }
    }

    #[test]
    fn more_than_the_node_has_counts_as_the_node() {
        let share = share(
            ShareRule::MaxShare,
            "n",
            &spec(4, 100, 0),
            &Amounts::new(9, 50, 0),
            false,
            false,
        );
        assert_eq!(share, Ok(Exact::one()));
    }

    #[test]
    fn a_gpu_on_a_node_without_gpus_is_an_error_even_if_the_run_has_the_whole_node() {
        for exclusive in [false, true] {
            let error = share(
                ShareRule::MaxShare,
                "n",
                &spec(4, 100, 0),
                &Amounts::new(1, 0, 1),
                exclusive,
                false,
            )
            .unwrap_err();
            assert_eq!(error.code(), "resource_not_on_node");
        }
        // Capacities are not used when whole nodes are charged.
        assert!(
            share(
                ShareRule::WholeNode,
                "n",
                &spec(0, 0, 0),
                &Amounts::new(1, 0, 1),
                false,
                false
            )
            .is_ok()
        );
    }

    proptest! {
        #[test]
        fn a_share_is_between_nothing_and_the_node(
            amounts in (0u64..1000, 0u64..1000, 0u64..1000),
            capacity in (1u64..500, 1u64..500, 1u64..500),
            mode in prop_oneof![Just(ShareRule::MaxShare), Just(ShareRule::WeightedShare), Just(ShareRule::WholeNode)],
            exclusive: bool,
            suspended: bool,
        ) {
            let spec = spec(capacity.0, capacity.1, capacity.2);
            let amounts = Amounts::new(amounts.0, amounts.1, amounts.2);
            let running = share(mode, "n", &spec, &amounts, exclusive, false).unwrap();
            let share = share(mode, "n", &spec, &amounts, exclusive, suspended).unwrap();
            prop_assert!(share >= Exact::zero() && share <= Exact::one());
            prop_assert!(share <= running);
        }
    }
}
