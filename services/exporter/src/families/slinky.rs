//! Names of Slinky's slurm-exporter. All are gauges, also those that end in `_total`; memory is in MiB, also under `…_bytes`.
//!
//! An array that waits is one record there. Absent: sums that only slurmrestd has, over commands. `userid` is empty: ids are not on the bus.

use std::collections::BTreeMap;

use super::native_jobs::JobNumbers;
use super::native_nodes::NodeNumbers;
use super::{Inputs, float, scheduler};
use crate::adapters::store::AllocationSum;
use crate::domain::exposition::{Exposition, Kind, Labels};
use crate::domain::fold::fold;
use crate::domain::jobs::JobGroup;
use crate::domain::nodes::Node;

type OfJobs = fn(&JobNumbers) -> u64;
type OfNodes = fn(&NodeNumbers) -> u64;

/// Names after `…_jobs_`, and their numbers.
const JOBS: [(&str, OfJobs); 20] = [
    ("total", |jobs| jobs.records),
    ("bootfail_total", |jobs| jobs.of("bootfail")),
    ("cancelled_total", |jobs| jobs.of("cancelled")),
    ("completed_total", |jobs| jobs.of("completed")),
    ("deadline_total", |jobs| jobs.of("deadline")),
    ("failed_total", |jobs| jobs.of("failed")),
    ("pending_total", |jobs| jobs.pending_records),
    ("preempted_total", |jobs| jobs.of("preempted")),
    ("running_total", |jobs| jobs.of("running")),
    ("suspended_total", |jobs| jobs.of("suspended")),
    ("timeout_total", |jobs| jobs.of("timeout")),
    ("nodefail_total", |jobs| jobs.of("node_failed")),
    ("outofmemory_total", |jobs| jobs.of("outofmemory")),
    ("completing_total", |jobs| jobs.of("completing")),
    ("configuring_total", |jobs| jobs.of("configuring")),
    ("powerupnode_total", |jobs| jobs.of("powerup_node")),
    ("stageout_total", |jobs| jobs.of("stageout")),
    ("hold_total", |jobs| jobs.held_records),
    ("cpus_alloc_total", |jobs| jobs.of("cpus_alloc")),
    ("memory_alloc_bytes", |jobs| jobs.of("memory_alloc")),
];

/// Names after `…_nodes_`, and their numbers.
const NODES: [(&str, OfNodes); 16] = [
    ("total", |nodes| nodes.nodes),
    ("allocated_total", |nodes| nodes.of("alloc")),
    ("down_total", |nodes| nodes.of("down")),
    ("error_total", |nodes| nodes.error),
    ("future_total", |nodes| nodes.of("future")),
    ("idle_total", |nodes| nodes.of("idle")),
    ("mixed_total", |nodes| nodes.of("mixed")),
    ("unknown_total", |nodes| nodes.unknown),
    ("completing_total", |nodes| nodes.of("completing")),
    ("drain_total", |nodes| nodes.of("drain")),
    ("fail_total", |nodes| nodes.of("fail")),
    ("maintenance_total", |nodes| nodes.of("maint")),
    ("notresponding_total", |nodes| nodes.of("noresp")),
    ("planned_total", |nodes| nodes.of("planned")),
    ("rebootrequested_total", |nodes| nodes.of("reboot_req")),
    ("reserved_total", |nodes| nodes.of("resv")),
];

/// Names after `slurm_node_` and `slurm_partition_nodes_`, and their numbers.
const RESOURCES: [(&str, OfNodes); 8] = [
    ("cpus_total", |nodes| nodes.cpus),
    ("cpus_effective_total", |nodes| nodes.effective_cpus),
    ("cpus_alloc_total", |nodes| nodes.alloc_cpus),
    ("cpus_idle_total", |nodes| nodes.idle_cpus),
    ("memory_bytes", |nodes| nodes.memory_mib),
    ("memory_effective_bytes", |nodes| nodes.effective_memory_mib),
    ("memory_alloc_bytes", |nodes| nodes.alloc_memory_mib),
    ("memory_free_bytes", |nodes| nodes.free_memory_mib),
];

/// Writes the page.
pub fn write(inputs: &Inputs, page: &mut Exposition) -> usize {
    let mut folded = 0;
    if inputs.jobs.is_some() {
        folded += jobs(inputs, page);
    }
    if inputs.nodes.is_some() {
        folded += nodes(inputs, page);
    }
    scheduler::slinky(inputs, page);
    folded
}

fn jobs(inputs: &Inputs, page: &mut Exposition) -> usize {
    let all = by(inputs, |_| vec![""], |_| "");
    let all = all.into_values().next().unwrap_or_default();
    of_jobs(
        page,
        "slurm_jobs",
        &BTreeMap::from([(String::new(), all)]),
        |_, _| Vec::new(),
    );
    // A job that waits in several partitions counts in each.
    let mut partitions = by(
        inputs,
        |cell| cell.partitions().collect(),
        |held| &held.partition,
    );
    for node in inputs.nodes.iter().flat_map(|nodes| &nodes.nodes) {
        for partition in &node.summary.partitions {
            partitions.entry(partition.clone()).or_default();
        }
    }
    of_jobs(page, "slurm_partition_jobs", &partitions, |_, name| {
        vec![("partition", name)]
    });
    let name = "slurm_partition_jobs_pending_maxnodecount_total";
    page.metric(name, Kind::Gauge, "Nodes of the largest pending job");
    for (partition, numbers) in &partitions {
        let labels = [("partition", partition.as_str())];
        page.sample(name, &labels, numbers.max_nodes.into());
    }
    let fits = inputs.max_series / (4 * JOBS.len());
    let mut folded = 0;
    for (metric, label) in [
        ("slurm_account_jobs", "account"),
        ("slurm_user_jobs", "username"),
    ] {
        let owners = match label {
            "account" => by(
                inputs,
                |cell| vec![&cell.counted.account],
                |held| &held.account,
            ),
            _ => by(inputs, |cell| vec![&cell.counted.user], |held| &held.user),
        };
        let weight = |numbers: &JobNumbers| numbers.records;
        let (owners, others) = fold(owners, fits, weight, JobNumbers::add_all);
        folded += others * JOBS.len();
        of_jobs(page, metric, &owners, |_, name| match label {
            "account" => vec![("account", name)],
            _ => vec![("userid", ""), ("username", name)],
        });
    }
    folded
}

/// Numbers by key. A job without a key is in none.
fn by<'a>(
    inputs: &'a Inputs,
    keys: impl Fn(&'a JobGroup) -> Vec<&'a str>,
    holder: impl Fn(&'a AllocationSum) -> &'a str,
) -> BTreeMap<String, JobNumbers> {
    let mut numbers: BTreeMap<String, JobNumbers> = BTreeMap::new();
    for cell in inputs.jobs.iter().flat_map(|jobs| &jobs.cells) {
        for key in keys(cell) {
            numbers.entry(key.to_owned()).or_default().add(cell);
        }
    }
    for held in &inputs.allocations {
        if let Some(numbers) = numbers.get_mut(holder(held)) {
            numbers.hold(held.gpus, held.memory_mib);
        }
    }
    numbers
}

fn of_jobs<'a>(
    page: &mut Exposition,
    prefix: &str,
    all: &'a BTreeMap<String, JobNumbers>,
    labels: impl Fn(&str, &'a str) -> Vec<(&'static str, &'a str)>,
) {
    for (name, number) in JOBS {
        let name = format!("{prefix}_{name}");
        page.metric(&name, Kind::Gauge, "Jobs, or what is allocated to them");
        for (key, numbers) in all {
            page.sample(&name, &labels(prefix, key), float(number(numbers)));
        }
    }
}

fn nodes(inputs: &Inputs, page: &mut Exposition) -> usize {
    let nodes: Vec<&Node> = inputs.nodes.iter().flat_map(|nodes| &nodes.nodes).collect();
    let mut all = NodeNumbers::default();
    let mut partitions: BTreeMap<&str, NodeNumbers> = BTreeMap::new();
    for node in &nodes {
        all.add(node);
        for partition in &node.summary.partitions {
            partitions.entry(partition).or_default().add(node);
        }
    }
    for (name, number) in NODES {
        gauge(page, &format!("slurm_nodes_{name}"), &[], number(&all));
    }
    let fits = inputs.max_series / (4 * RESOURCES.len());
    let each = nodes.iter().take(fits).map(|node| {
        let mut numbers = NodeNumbers::default();
        numbers.add(node);
        (node.summary.name.as_str(), numbers)
    });
    let each: Vec<_> = each.collect();
    for (name, number) in RESOURCES {
        let name = format!("slurm_node_{name}");
        page.metric(&name, Kind::Gauge, "CPUs or MiB of the node");
        for (node, numbers) in &each {
            page.sample(&name, &[("node", node)], float(number(numbers)));
        }
    }
    for (name, number) in NODES.into_iter().chain(RESOURCES) {
        let name = format!("slurm_partition_nodes_{name}");
        page.metric(
            &name,
            Kind::Gauge,
            "Nodes of the partition, or their CPUs or MiB",
        );
        for (partition, numbers) in &partitions {
            page.sample(&name, &[("partition", partition)], float(number(numbers)));
        }
    }
    nodes.len().saturating_sub(fits) * RESOURCES.len()
}

fn gauge(page: &mut Exposition, name: &str, labels: &Labels<'_>, value: u64) {
    page.metric(name, Kind::Gauge, "Nodes");
    page.sample(name, labels, float(value));
}
