//! Nodes in slurmctld's words.

use slurm_types::{NodeBaseState, NodeFlag, NodeState};

use crate::domain::nodes::Node;

/// States: name after `nodes_` of the cluster, name after `nodes_` of a partition, help. In the order of [`NodeNumbers`].
pub const STATES: [(&str, &str, &str); 26] = [
    ("alloc", "alloc", "Nodes in state ALLOCATED"),
    ("blocked", "blocked", "Nodes with flag BLOCKED"),
    ("completing", "cg", "Nodes with flag COMPLETING"),
    ("cloud", "cloud", "Nodes with flag CLOUD"),
    ("down", "down", "Nodes in state DOWN"),
    ("drain", "drain", "Nodes with flag DRAIN"),
    (
        "drained",
        "drained",
        "Nodes with flag DRAIN and without jobs",
    ),
    (
        "draining",
        "draining",
        "Nodes with flag DRAIN and with jobs",
    ),
    ("dyn_future", "dyn_future", "Nodes with flag DYNAMIC_FUTURE"),
    ("dyn_normal", "dyn_normal", "Nodes with flag DYNAMIC_NORM"),
    ("external", "external", "Nodes with flag EXTERNAL"),
    ("fail", "fail", "Nodes with flag FAIL"),
    ("future", "future", "Nodes in state FUTURE"),
    ("idle", "idle", "Nodes in state IDLE"),
    ("invalid_reg", "invalid_reg", "Nodes with flag INVALID_REG"),
    ("maint", "maint", "Nodes with flag MAINTENANCE"),
    ("mixed", "mixed", "Nodes in state MIXED"),
    ("noresp", "no_resp", "Nodes with flag NOT_RESPONDING"),
    ("planned", "planned", "Nodes with flag PLANNED"),
    ("power_down", "power_down", "Nodes with flag POWER_DOWN"),
    ("power_up", "power_up", "Nodes with flag POWER_UP"),
    (
        "powered_down",
        "powered_down",
        "Nodes with flag POWERED_DOWN",
    ),
    ("powering_up", "powering_up", "Nodes with flag POWERING_UP"),
    (
        "reboot_issued",
        "reboot_issued",
        "Nodes with flag REBOOT_ISSUED",
    ),
    (
        "reboot_req",
        "reboot_requested",
        "Nodes with flag REBOOT_REQUESTED",
    ),
    ("resv", "resv", "Nodes with flag RESERVED"),
];

/// Numbers of nodes and sums of what they have.
#[derive(Clone, Debug, Default)]
pub struct NodeNumbers {
    states: [u64; STATES.len()],
    /// Nodes in state UNKNOWN.
    pub unknown: u64,
    /// Nodes in state ERROR.
    pub error: u64,
    /// Nodes with flag POWERING_DOWN.
    pub powering_down: u64,
    /// Nodes.
    pub nodes: u64,
    /// CPUs.
    pub cpus: u64,
    /// CPUs that jobs can use.
    pub effective_cpus: u64,
    /// CPUs allocated to jobs.
    pub alloc_cpus: u64,
    /// CPUs that jobs can use and do not.
    pub idle_cpus: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Memory in MiB that jobs can use.
    pub effective_memory_mib: u64,
    /// Memory allocated to jobs in MiB.
    pub alloc_memory_mib: u64,
    /// Free memory in MiB.
    pub free_memory_mib: u64,
    /// GPUs.
    pub gpus: u64,
    /// GPUs allocated to jobs.
    pub alloc_gpus: u64,
}

impl NodeNumbers {
    /// Numbers by state: names of the cluster and of a partition, help, number.
    pub fn states(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str, u64)> {
        let named = STATES.iter().zip(self.states);
        named.map(|((of_cluster, of_partition, help), number)| {
            (*of_cluster, *of_partition, *help, number)
        })
    }

    /// The number of this state of the cluster. 0 if there is none.
    pub fn of(&self, name: &str) -> u64 {
        let found = self.states().find(|(known, ..)| *known == name);
        found.map_or(0, |(.., number)| number)
    }

    /// Adds a node.
    pub fn add(&mut self, node: &Node) {
        let summary = &node.summary;
        for ((name, ..), number) in STATES.iter().zip(&mut self.states) {
            *number += u64::from(is_in(&node.state, name));
        }
        self.unknown += u64::from(node.state.base == Some(NodeBaseState::Unknown));
        self.error += u64::from(node.state.base == Some(NodeBaseState::Error));
        self.powering_down += u64::from(node.state.flags.contains(NodeFlag::PoweringDown));
        self.nodes += 1;
        self.cpus += u64::from(summary.cpus);
        self.effective_cpus += u64::from(summary.effective_cpus);
        self.alloc_cpus += u64::from(summary.alloc_cpus);
        self.idle_cpus += u64::from(idle_cpus(node));
        self.memory_mib += summary.memory_mib;
        self.effective_memory_mib += node.effective_memory_mib();
        self.alloc_memory_mib += summary.alloc_memory_mib;
        self.free_memory_mib += summary.free_memory_mib.unwrap_or_default();
        self.gpus += u64::from(summary.gpus);
        self.alloc_gpus += u64::from(summary.alloc_gpus);
    }
}

/// CPUs that jobs could use and do not.
pub fn idle_cpus(node: &Node) -> u32 {
    let summary = &node.summary;
    summary.effective_cpus.saturating_sub(summary.alloc_cpus)
}

fn is_in(state: &NodeState, name: &str) -> bool {
    let base = |base| state.base == Some(base);
    let flag = |flag| state.flags.contains(flag);
    let is_draining = flag(NodeFlag::Drain) && state.has_jobs();
    match name {
        "alloc" => base(NodeBaseState::Allocated),
        "down" => base(NodeBaseState::Down),
        "future" => base(NodeBaseState::Future),
        "idle" => base(NodeBaseState::Idle),
        "mixed" => base(NodeBaseState::Mixed),
        "blocked" => flag(NodeFlag::Blocked),
        "completing" => flag(NodeFlag::Completing),
        "cloud" => flag(NodeFlag::Cloud),
        "drain" => flag(NodeFlag::Drain),
        "drained" => flag(NodeFlag::Drain) && !is_draining,
        "draining" => is_draining,
        "dyn_future" => flag(NodeFlag::DynamicFuture),
        "dyn_normal" => flag(NodeFlag::DynamicNorm),
        "external" => flag(NodeFlag::External),
        "fail" => flag(NodeFlag::Fail),
        "invalid_reg" => flag(NodeFlag::InvalidReg),
        "maint" => flag(NodeFlag::Maintenance),
        "noresp" => flag(NodeFlag::NotResponding),
        "planned" => flag(NodeFlag::Planned),
        "power_down" => flag(NodeFlag::PowerDown),
        "power_up" => flag(NodeFlag::PowerUp),
        "powered_down" => flag(NodeFlag::PoweredDown),
        "powering_up" => flag(NodeFlag::PoweringUp),
        "reboot_issued" => flag(NodeFlag::RebootIssued),
        "reboot_req" => flag(NodeFlag::RebootRequested),
        "resv" => flag(NodeFlag::Reserved),
        _ => false,
    }
}
