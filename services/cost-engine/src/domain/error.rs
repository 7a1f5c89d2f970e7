//! Reasons why a run has no price.

use std::fmt;

use super::Market;

/// A resource with a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// CPUs, as Slurm counts them.
    Cpu,
    /// Memory.
    Memory,
    /// GPUs.
    Gpu,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Memory => "mem",
            Self::Gpu => "gpu",
        })
    }
}

/// The reason why a run has no price. Such a run is never charged 0 instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// The node type has no price for some time of the run.
    #[error(
        "no {market} price of node type {node_type:?} at Unix time {at}: add one to the price book"
    )]
    PriceMissing {
        /// Name of the node type.
        node_type: String,
        /// Market of the node.
        market: Market,
        /// First second without a price.
        at: i64,
    },
    /// There is no billing price for some time of the run.
    #[error("no price per billing unit at Unix time {at}: add one to the price book")]
    BillingPriceMissing {
        /// First second without a price.
        at: i64,
    },
    /// No node type of the price book covers the node.
    #[error("no node type covers node {node:?}: add it to the price book")]
    NodeTypeMissing {
        /// Name of the node.
        node: String,
    },
    /// The run holds a resource that the node lacks according to the price book.
    #[error(
        "node {node:?} has allocated {resource}, but its node type {node_type:?} has none: correct the price book"
    )]
    ResourceNotOnNode {
        /// Name of the node.
        node: String,
        /// Node type of the node.
        node_type: String,
        /// The allocated resource.
        resource: Resource,
    },
    /// Weighted shares require weights.
    #[error("node type {node_type:?} has no weights")]
    WeightsMissing {
        /// Name of the node type.
        node_type: String,
    },
    /// The record ends before it starts.
    #[error("the run ends at {end}, before its start at {start}")]
    EndBeforeStart {
        /// Start, Unix time.
        start: i64,
        /// End, Unix time.
        end: i64,
    },
    /// The allocation of a started run is unknown.
    #[error("the {what} of the run are unknown")]
    AllocationMissing {
        /// Missing data: nodes or billing units.
        what: &'static str,
    },
    /// The amount exceeds 64 bits of millionths.
    #[error("the amount does not fit into 64 bits")]
    TooLarge,
}

impl PriceError {
    /// Machine-readable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::PriceMissing { .. }
            | Self::BillingPriceMissing { .. }
            | Self::NodeTypeMissing { .. } => "price_missing",
            Self::ResourceNotOnNode { .. } => "resource_not_on_node",
            Self::WeightsMissing { .. } => "weights_missing",
            Self::EndBeforeStart { .. } => "end_before_start",
            Self::AllocationMissing { .. } => "allocation_missing",
            Self::TooLarge => "too_large",
        }
    }

    /// Code and description, as in cost events.
    pub fn problem(&self) -> String {
        format!("{}: {self}", self.code())
    }
}
