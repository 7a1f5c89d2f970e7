//! Nodes of a snapshot.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::metrics::v1::NodeSummary;
use slurm_types::{NodeBaseState, NodeFlag, NodeState};

/// The nodes of a cluster at one poll.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// Start of the poll.
    pub taken_at: DateTime<Utc>,
    /// Nodes by name.
    pub nodes: Vec<Node>,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// As read by node-watcher.
    pub summary: NodeSummary,
    /// State.
    pub state: NodeState,
}

impl Node {
    /// False if it is down or drained.
    pub fn takes_jobs(&self) -> bool {
        !self.state.flags.contains(NodeFlag::Drain) && self.state.base != Some(NodeBaseState::Down)
    }

    /// Memory in MiB without what is reserved for the system (`MemSpecLimit`).
    pub fn effective_memory_mib(&self) -> u64 {
        let summary = &self.summary;
        summary
            .memory_mib
            .saturating_sub(summary.reserved_memory_mib)
    }
}

impl Nodes {
    /// The nodes of a snapshot.
    pub fn new(taken_at: DateTime<Utc>, nodes: impl Iterator<Item = NodeSummary>) -> Self {
        let mut nodes: Vec<Node> = nodes
            .map(|summary| Node {
                state: NodeState::parse(&summary.state),
                summary,
            })
            .collect();
        nodes.sort_by(|a, b| a.summary.name.cmp(&b.summary.name));
        Self { taken_at, nodes }
    }
}
