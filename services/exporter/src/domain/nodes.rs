//! Nodes of a snapshot.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::metrics::v1::NodeSummary;
use slurm_types::NodeState;

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
