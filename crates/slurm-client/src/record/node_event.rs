//! Downtimes of nodes in accounting.

use slurm_types::{NodeState, UnixTime};

/// A time that a node was down, drained or powered down, as slurmdbd has it (`sacctmgr show event`). A change of the state or its reason
/// begins another one at the end of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEventRecord {
    /// Name of the node.
    pub node: String,
    /// When it began.
    pub start: UnixTime,
    /// When it ended; `None` while it lasts.
    pub end: Option<UnixTime>,
    /// State of the node meanwhile.
    pub state: NodeState,
    /// Unix user that set the reason; empty if unknown.
    pub user: String,
    /// Why; empty if no reason was set.
    pub reason: String,
}
