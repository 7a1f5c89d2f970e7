//! Nodes by state, each node, and GPUs of all and of partitions.

use std::collections::BTreeMap;

use super::gauge;
use super::resources::resources;
use crate::domain::exposition::{Exposition, Kind};
use crate::domain::jobs::Jobs;
use crate::domain::nodes::{Node, Nodes};
use crate::families::float;
use crate::families::vpenso::{Cpus, USES, printed, state_name};

/// States of nodes in metric names, and how the word for the state begins.
const NODE_STATES: [(&str, &str); 12] = [
    ("alloc", "alloc"),
    ("comp", "comp"),
    ("down", "down"),
    ("drain", "drain"),
    ("err", "err"),
    ("fail", "fail"),
    ("idle", "idle"),
    ("inval", "inval"),
    ("maint", "maint"),
    ("mix", "mix"),
    ("resv", "res"),
    ("planned", "planned"),
];

pub(super) fn states(nodes: &Nodes, page: &mut Exposition) {
    let mut sets: BTreeMap<(&str, String), [u64; NODE_STATES.len() + 1]> = BTreeMap::new();
    for node in &nodes.nodes {
        let features = match node.summary.features.join(",") {
            none if none.is_empty() => "null".to_owned(),
            features => features,
        };
        let state_name = state_name(node);
        let place = NODE_STATES
            .iter()
            .position(|(_, begins)| state_name.starts_with(begins));
        for partition in &node.summary.partitions {
            let numbers = sets.entry((partition, features.clone())).or_default();
            numbers[place.unwrap_or(NODE_STATES.len())] += 1;
        }
    }
    let names = NODE_STATES.iter().map(|(name, _)| *name).chain(["other"]);
    for (place, name) in names.enumerate() {
        let name = format!("slurm_nodes_{name}");
        page.metric(&name, Kind::Gauge, "Nodes in this state");
        for ((partition, features), numbers) in &sets {
            let labels = [("partition", *partition), ("active_feature_set", features)];
            page.sample(&name, &labels, float(numbers[place]));
        }
    }
    gauge(page, "slurm_nodes_total", "Nodes", nodes.nodes.len() as u64);
}

/// GPUs: allocated, idle, other, all.
fn gpus_of<'a>(nodes: impl Iterator<Item = &'a Node>) -> [u64; 4] {
    let mut sums = [0; 4];
    for node in nodes {
        let (total, allocated) = (node.summary.gpus, node.summary.alloc_gpus);
        let free = u64::from(total.saturating_sub(allocated));
        sums[0] += u64::from(allocated);
        sums[if node.takes_jobs() { 1 } else { 2 }] += free;
        sums[3] += u64::from(total);
    }
    sums
}

pub(super) fn gpus(nodes: &Nodes, page: &mut Exposition) {
    let sums = gpus_of(nodes.nodes.iter());
    for (name, value) in ["alloc", "idle", "other", "total"].iter().zip(sums) {
        gauge(page, &format!("slurm_gpus_{name}"), "GPUs", value);
    }
    let utilization = match sums[3] {
        0 => 0.0,
        total => float(sums[0]) / float(total),
    };
    let name = "slurm_gpus_utilization";
    page.metric(name, Kind::Gauge, "Allocated part of all GPUs");
    page.sample(name, &[], utilization);
}

pub(super) fn of_each(nodes: &Nodes, fits: usize, page: &mut Exposition) -> usize {
    let mut metric = |name: &str, value: &dyn Fn(&Node) -> u64| {
        let name = format!("slurm_node_{name}");
        page.metric(&name, Kind::Gauge, "CPUs or MiB of the node, or 1");
        for node in nodes.nodes.iter().take(fits) {
            for partition in &node.summary.partitions {
                let labels = [
                    ("node", node.summary.name.as_str()),
                    ("status", state_name(node)),
                    ("partition", partition),
                ];
                page.sample(&name, &labels, float(value(node)));
            }
        }
    };
    for (place, (name, _)) in USES.iter().enumerate() {
        metric(&format!("cpu_{name}"), &|node| Cpus::of(node).0[place]);
    }
    metric("mem_alloc", &|node| node.summary.alloc_memory_mib);
    metric("mem_total", &|node| node.summary.memory_mib);
    metric("status", &|_| 1);
    resources(nodes, fits, page);
    let name = "slurm_node_drain_reason_info";
    page.metric(
        name,
        Kind::Gauge,
        "Always 1; why the node is down or drained",
    );
    let with_reason = || {
        let nodes = nodes.nodes.iter().filter(|node| !node.takes_jobs());
        nodes
            .filter(|node| !node.summary.reason.is_empty())
            .take(fits)
    };
    for node in with_reason() {
        let labels = [
            ("node", node.summary.name.as_str()),
            ("reason", &node.summary.reason),
        ];
        page.sample(name, &labels, 1.0);
    }
    let name = "slurm_node_drain_since_timestamp_seconds";
    page.metric(name, Kind::Gauge, "When the reason was set");
    for node in with_reason().filter(|node| node.summary.reason_time > 0) {
        let since = u64::try_from(node.summary.reason_time).unwrap_or_default();
        page.sample(name, &[("node", &node.summary.name)], float(since));
    }
    nodes.nodes.len().saturating_sub(fits) * 9
}

pub(super) fn of_partitions(nodes: &Nodes, jobs: Option<&Jobs>, page: &mut Exposition) {
    let mut partitions: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in &nodes.nodes {
        for partition in &node.summary.partitions {
            partitions.entry(partition).or_default().push(node);
        }
    }
    for (name, place) in [("gpus_allocated", 0), ("gpus_idle", 1)] {
        let name = format!("slurm_partition_{name}");
        page.metric(&name, Kind::Gauge, "GPUs of the partition");
        for (partition, nodes) in &partitions {
            let gpus = gpus_of(nodes.iter().copied());
            page.sample(&name, &[("partition", partition)], float(gpus[place]));
        }
    }
    let mut running: BTreeMap<&str, u64> = BTreeMap::new();
    let cells = jobs.iter().flat_map(|jobs| &jobs.cells);
    for cell in cells.filter(|cell| printed(cell) == "running") {
        *running.entry(cell.partition()).or_default() += cell.counted.tasks;
    }
    let name = "slurm_partition_jobs_running";
    page.metric(name, Kind::Gauge, "Running jobs of the partition");
    for (partition, jobs) in &running {
        page.sample(name, &[("partition", partition)], float(*jobs));
    }
}

/// The newest version of slurmd.
pub(super) fn info(nodes: &Nodes, page: &mut Exposition) {
    let versions = nodes.nodes.iter().map(|node| node.summary.version.as_str());
    if let Some(version) = versions.max().filter(|version| !version.is_empty()) {
        let labels = [("type", "general"), ("binary", ""), ("version", version)];
        page.metric("slurm_info", Kind::Gauge, "Always 1; the version of Slurm");
        page.sample("slurm_info", &labels, 1.0);
    }
}
