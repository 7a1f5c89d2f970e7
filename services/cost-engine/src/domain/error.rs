//! Why a run has no price.

use std::fmt;

use super::Market;

/// A resource that a price counts.
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

/// A run that has no price. It is never charged 0 instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// The node type has no price at some time of the run.
    #[error(
        "no {market} price of node type {node_type:?} at Unix time {at}: add one to the price book"
    )]
    PriceMissing {
        /// The node type.
        node_type: String,
        /// The market.
        market: Market,
        /// First second without a price.
        at: i64,
    },
    /// No billing price at some time of the run.
    #[error("no price per billing unit at Unix time {at}: add one to the price book")]
    BillingPriceMissing {
        /// First second without a price.
        at: i64,
    },
    /// No node type of the price book covers the node.
    #[error("no node type covers node {node:?}: add it to the price book")]
    NodeTypeMissing {
        /// The node.
        node: String,
    },
    /// The run holds a resource that, by the price book, the node does not have.
    #[error(
        "node {node:?} gave {resource}, but its node type {node_type:?} has none: correct the price book"
    )]
    ResourceNotOnNode {
        /// The node.
        node: String,
        /// Its type.
        node_type: String,
        /// What it gave.
        resource: Resource,
    },
    /// Weighted shares need weights.
    #[error("node type {node_type:?} has no weights")]
    WeightsMissing {
        /// The node type.
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
    /// Nobody knows what a run that ran was given.
    #[error("it is not known which {what} the run was given")]
    AllocationMissing {
        /// Nodes, or billing units.
        what: &'static str,
    },
    /// More money than 64 bits of millionths hold.
    #[error("the amount does not fit 64 bits")]
    TooLarge,
}

impl PriceError {
    /// The word for machines.
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

    /// Code and sentence, as cost events carry it.
    pub fn problem(&self) -> String {
        format!("{}: {self}", self.code())
    }
}
