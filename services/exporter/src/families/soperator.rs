//! Names of soperator's exporter, as far as they are about nodes and the controller.
//!
//! Absent: `slurm_job_*` and `slurm_node_job`, which have a job id as label; GPU seconds, failures and durations of nodes, which it makes from
//! the differences of two looks (`mesh_node_events_total` has them from events); instance id, address, comment and reservation of a node.

use slurm_types::{NodeBaseState, NodeFlag};

use super::native_nodes::idle_cpus;
use super::{Inputs, bytes, scheduler};
use crate::domain::exposition::{Exposition, Kind};
use crate::domain::nodes::Node;

/// Labels that are `true` or `false`.
const TRUE_OR_FALSE: [(&str, NodeFlag); 3] = [
    ("state_is_drain", NodeFlag::Drain),
    ("state_is_maintenance", NodeFlag::Maintenance),
    ("state_is_reserved", NodeFlag::Reserved),
];

/// Labels that are `true` or absent.
const TRUE: [(&str, NodeFlag); 11] = [
    ("state_is_completing", NodeFlag::Completing),
    ("state_is_fail", NodeFlag::Fail),
    ("state_is_planned", NodeFlag::Planned),
    ("state_is_not_responding", NodeFlag::NotResponding),
    ("state_is_invalid", NodeFlag::InvalidReg),
    ("state_is_cloud", NodeFlag::Cloud),
    ("state_is_power_down", NodeFlag::PowerDown),
    ("state_is_powered_down", NodeFlag::PoweredDown),
    ("state_is_powering_down", NodeFlag::PoweringDown),
    ("state_is_powering_up", NodeFlag::PoweringUp),
    ("state_is_power_up", NodeFlag::PowerUp),
];

/// Writes the page.
pub fn write(inputs: &Inputs, page: &mut Exposition) -> usize {
    scheduler::soperator(inputs, page);
    let Some(nodes) = &inputs.nodes else { return 0 };
    // Up to eleven series per node, with two partitions.
    let fits = inputs.max_series / 11;
    let shown = || nodes.nodes.iter().take(fits);
    let name = "slurm_node_info";
    page.metric(name, Kind::Gauge, "Always 1; the labels are the state");
    for node in shown() {
        page.sample(name, &labels(node), 1.0);
    }
    type Value = fn(&Node) -> Option<f64>;
    let values: [(&str, &str, Value); 8] = [
        ("cpus_total", "CPUs", |node| Some(node.summary.cpus.into())),
        ("cpus_allocated", "CPUs allocated to jobs", |node| {
            Some(node.summary.alloc_cpus.into())
        }),
        ("cpus_idle", "Idle CPUs", |node| {
            Some(idle_cpus(node).into())
        }),
        ("cpus_effective", "CPUs that jobs can use", |node| {
            Some(node.summary.effective_cpus.into())
        }),
        ("memory_total_bytes", "Bytes of memory", |node| {
            Some(bytes(node.summary.memory_mib))
        }),
        (
            "memory_allocated_bytes",
            "Bytes of memory allocated to jobs",
            |node| Some(bytes(node.summary.alloc_memory_mib)),
        ),
        ("memory_free_bytes", "Bytes of free memory", |node| {
            node.summary.free_memory_mib.map(bytes)
        }),
        (
            "memory_effective_bytes",
            "Bytes of memory that jobs can use",
            |node| Some(bytes(node.effective_memory_mib())),
        ),
    ];
    for (name, help, value) in values {
        let name = format!("slurm_node_{name}");
        page.metric(&name, Kind::Gauge, help);
        for node in shown() {
            if let Some(value) = value(node) {
                page.sample(&name, &[("node_name", &node.summary.name)], value);
            }
        }
    }
    let name = "slurm_node_partition";
    page.metric(name, Kind::Gauge, "Always 1; partitions of the node");
    for node in shown() {
        for partition in &node.summary.partitions {
            let labels = [
                ("node_name", node.summary.name.as_str()),
                ("partition", partition),
            ];
            page.sample(name, &labels, 1.0);
        }
    }
    nodes.nodes.len().saturating_sub(fits) * 11
}

fn labels(node: &Node) -> Vec<(&str, &str)> {
    let has = |flag| node.state.flags.contains(flag);
    let base = node.state.base.map_or("UNKNOWN", NodeBaseState::name);
    let mut labels = vec![
        ("node_name", node.summary.name.as_str()),
        ("state_base", base),
    ];
    for (name, flag) in TRUE_OR_FALSE {
        labels.push((name, if has(flag) { "true" } else { "false" }));
    }
    let flags = TRUE.into_iter().filter(|(_, flag)| has(*flag));
    labels.extend(flags.map(|(name, _)| (name, "true")));
    if is_unavailable(node) {
        labels.push(("is_unavailable", "true"));
    }
    labels.push(("reason", &node.summary.reason));
    labels
}

/// A node in any step of powering is available, whatever its state.
fn is_unavailable(node: &Node) -> bool {
    let has = |flag| node.state.flags.contains(flag);
    let is_powered = [
        NodeFlag::PowerDown,
        NodeFlag::PoweredDown,
        NodeFlag::PoweringDown,
        NodeFlag::PoweringUp,
        NodeFlag::PowerUp,
    ];
    if is_powered.into_iter().any(has) {
        return false;
    }
    match node.state.base {
        Some(NodeBaseState::Down | NodeBaseState::Error | NodeBaseState::Unknown) | None => true,
        Some(NodeBaseState::Idle) if has(NodeFlag::Drain) => true,
        _ => [
            NodeFlag::NotResponding,
            NodeFlag::Fail,
            NodeFlag::InvalidReg,
        ]
        .into_iter()
        .any(has),
    }
}
