//! Names of slurmctld 25.11 and newer (`MetricsType=metrics/openmetrics`), with its paths. All are gauges, as there.
//!
//! All memory is in MiB, whatever the name says: slurmctld 26.05.5 prints MiB under `…_bytes`, and dashboards made for it expect that.
//!
//! `/metrics/scheduler` is made in `scheduler.rs`. Over commands a completing job shows no base state, so it counts in `completing` only; slurmctld counts it in both.

use std::collections::BTreeMap;

use super::native_jobs::{JobNumbers, NAMES};
use super::native_nodes::{NodeNumbers, idle_cpus};
use super::{Inputs, float};
use crate::domain::exposition::{Exposition, Kind};
use crate::domain::fold::fold;
use crate::domain::jobs::JobGroup;
use crate::domain::nodes::Node;

/// `/metrics/jobs`
pub fn jobs(inputs: &Inputs, page: &mut Exposition) -> usize {
    let Some(jobs) = &inputs.jobs else { return 0 };
    let mut numbers = JobNumbers::default();
    for cell in &jobs.cells {
        numbers.add(cell);
    }
    for held in &inputs.allocations {
        numbers.hold(held.gpus, held.memory_mib);
    }
    gauge(page, "slurm_jobs", "Jobs", numbers.tasks);
    for (name, help, number) in numbers.iter() {
        gauge(page, &format!("slurm_jobs_{name}"), help, number);
    }
    0
}

/// `/metrics/nodes`
pub fn nodes(inputs: &Inputs, page: &mut Exposition) -> usize {
    let Some(nodes) = &inputs.nodes else { return 0 };
    type Value = fn(&Node) -> Option<f64>;
    let of_node: [(&str, &str, Value); 10] = [
        ("cpus", "CPUs of the node", |node| {
            Some(node.summary.cpus.into())
        }),
        ("cpus_alloc", "CPUs of the node allocated to jobs", |node| {
            Some(node.summary.alloc_cpus.into())
        }),
        (
            "cpus_effective",
            "CPUs of the node that jobs can use",
            |node| Some(node.summary.effective_cpus.into()),
        ),
        ("cpus_idle", "CPUs of the node that are idle", |node| {
            Some(idle_cpus(node).into())
        }),
        ("gpus", "GPUs of the node", |node| {
            Some(node.summary.gpus.into())
        }),
        ("gpus_alloc", "GPUs of the node allocated to jobs", |node| {
            Some(node.summary.alloc_gpus.into())
        }),
        (
            "memory_effective_bytes",
            "MiB of memory of the node that jobs can use",
            |node| Some(float(node.effective_memory_mib())),
        ),
        (
            "memory_alloc_bytes",
            "MiB of the node allocated to jobs",
            |node| Some(float(node.summary.alloc_memory_mib)),
        ),
        ("memory_free_bytes", "Free MiB of the node", |node| {
            node.summary.free_memory_mib.map(float)
        }),
        ("memory_bytes", "MiB of memory of the node", |node| {
            Some(float(node.summary.memory_mib))
        }),
    ];
    let fits = inputs.max_series / of_node.len();
    for (name, help, value) in of_node {
        let name = format!("slurm_node_{name}");
        page.metric(&name, Kind::Gauge, help);
        for node in nodes.nodes.iter().take(fits) {
            if let Some(value) = value(node) {
                page.sample(&name, &[("node", &node.summary.name)], value);
            }
        }
    }
    let mut numbers = NodeNumbers::default();
    for node in &nodes.nodes {
        numbers.add(node);
    }
    gauge(page, "slurm_nodes", "Nodes", numbers.nodes);
    for (name, _, help, number) in numbers.states() {
        gauge(page, &format!("slurm_nodes_{name}"), help, number);
    }
    gauge(
        page,
        "slurm_nodes_unknown",
        "Nodes in state UNKNOWN",
        numbers.unknown,
    );
    nodes.nodes.len().saturating_sub(fits) * of_node.len()
}

/// `/metrics/partitions`
pub fn partitions(inputs: &Inputs, page: &mut Exposition) -> usize {
    let (Some(jobs), Some(nodes)) = (&inputs.jobs, &inputs.nodes) else {
        return 0;
    };
    let mut partitions: BTreeMap<&str, (JobNumbers, NodeNumbers)> = BTreeMap::new();
    for node in &nodes.nodes {
        for partition in &node.summary.partitions {
            partitions.entry(partition).or_default().1.add(node);
        }
    }
    for cell in &jobs.cells {
        partitions.entry(cell.partition()).or_default().0.add(cell);
    }
    for held in &inputs.allocations {
        if let Some((numbers, _)) = partitions.get_mut(held.partition.as_str()) {
            numbers.hold(held.gpus, held.memory_mib);
        }
    }
    gauge(
        page,
        "slurm_partitions",
        "Partitions",
        partitions.len() as u64,
    );
    let mut metric = |name: &str, help: &str, value: &dyn Fn(&JobNumbers, &NodeNumbers) -> f64| {
        let name = format!("slurm_partition_{name}");
        page.metric(&name, Kind::Gauge, help);
        for (partition, (jobs, nodes)) in &partitions {
            page.sample(&name, &[("partition", partition)], value(jobs, nodes));
        }
    };
    metric(
        "jobs",
        "Jobs of the partition that did not end",
        &|jobs, _| float(jobs.live),
    );
    for (place, (name, help)) in NAMES.iter().enumerate() {
        // Not per partition in slurmctld.
        if *name == "nodes_alloc" {
            continue;
        }
        metric(&format!("jobs_{name}"), help, &|jobs, _| {
            float(jobs.iter().nth(place).map_or(0, |(_, _, number)| number))
        });
    }
    for (name, help, value) in [
        (
            "max_job_nodes",
            "Nodes of the largest pending job",
            (|jobs| jobs.max_nodes) as fn(&JobNumbers) -> u32,
        ),
        (
            "max_job_nodes_nohold",
            "Nodes of the largest pending job that is not held",
            |jobs| jobs.max_nodes_not_held,
        ),
        (
            "min_job_nodes",
            "Nodes of the largest pending job",
            |jobs| jobs.max_nodes,
        ),
        (
            "min_job_nodes_nohold",
            "Nodes of the largest pending job that is not held",
            |jobs| jobs.max_nodes_not_held,
        ),
    ] {
        metric(&format!("jobs_{name}"), help, &|jobs, _| value(jobs).into());
    }
    metric(
        "jobs_wait_part_node_limit",
        "Jobs that wait for the partition's node limit",
        &|jobs, _| float(jobs.waits_for_node_limit),
    );
    for (place, (_, name, help)) in super::native_nodes::STATES.iter().enumerate() {
        metric(&format!("nodes_{name}"), help, &|_, nodes| {
            float(nodes.states().nth(place).map_or(0, |(.., number)| number))
        });
    }
    metric("nodes_unknown", "Nodes in state UNKNOWN", &|_, nodes| {
        float(nodes.unknown)
    });
    metric(
        "nodes_powering_down",
        "Nodes with flag POWERING_DOWN",
        &|_, nodes| float(nodes.powering_down),
    );
    metric("nodes_cpus_efctv", "CPUs that jobs can use", &|_, nodes| {
        float(nodes.effective_cpus)
    });
    metric("nodes_cpus_idle", "Idle CPUs", &|_, nodes| {
        float(nodes.idle_cpus)
    });
    metric("nodes_cpus_alloc", "CPUs allocated to jobs", &|_, nodes| {
        float(nodes.alloc_cpus)
    });
    metric(
        "nodes_mem_alloc",
        "MiB of memory allocated to jobs",
        &|_, nodes| float(nodes.alloc_memory_mib),
    );
    metric(
        "nodes_mem_avail",
        "MiB of memory that jobs can use",
        &|_, nodes| float(nodes.effective_memory_mib),
    );
    metric("nodes_mem_free", "MiB of free memory", &|_, nodes| {
        float(nodes.free_memory_mib)
    });
    metric("nodes_mem_tot", "MiB of memory", &|_, nodes| {
        float(nodes.memory_mib)
    });
    metric("cpus", "CPUs of the partition", &|_, nodes| {
        float(nodes.cpus)
    });
    metric("gpus", "GPUs of the partition", &|_, nodes| {
        float(nodes.gpus)
    });
    metric("nodes", "Nodes of the partition", &|_, nodes| {
        float(nodes.nodes)
    });
    0
}

/// `/metrics/jobs-users-accts`
pub fn users_and_accounts(inputs: &Inputs, page: &mut Exposition) -> usize {
    let fits = inputs.max_series / (2 * (NAMES.len() + 1));
    let users = by(inputs, |cell| &cell.counted.user, |held| &held.user);
    let accounts = by(inputs, |cell| &cell.counted.account, |held| &held.account);
    let mut folded = 0;
    for (prefix, label, numbers) in [
        ("user", "username", users),
        ("account", "account", accounts),
    ] {
        let (numbers, others) = fold(
            numbers,
            fits,
            |numbers: &JobNumbers| numbers.records,
            JobNumbers::add_all,
        );
        folded += others * (NAMES.len() + 1);
        let name = format!("slurm_{prefix}_jobs");
        page.metric(&name, Kind::Gauge, "Jobs");
        for (key, numbers) in &numbers {
            page.sample(&name, &[(label, key)], float(numbers.records));
        }
        for (place, (name, help)) in NAMES.iter().enumerate() {
            let name = format!("slurm_{prefix}_jobs_{name}");
            page.metric(&name, Kind::Gauge, help);
            for (key, numbers) in &numbers {
                let number = numbers.iter().nth(place).map_or(0, |(_, _, number)| number);
                page.sample(&name, &[(label, key)], float(number));
            }
        }
    }
    folded
}

fn by(
    inputs: &Inputs,
    key: impl Fn(&JobGroup) -> &String,
    holder: impl Fn(&crate::adapters::store::AllocationSum) -> &String,
) -> BTreeMap<String, JobNumbers> {
    let mut numbers: BTreeMap<String, JobNumbers> = BTreeMap::new();
    for cell in inputs.jobs.iter().flat_map(|jobs| &jobs.cells) {
        numbers.entry(key(cell).clone()).or_default().add(cell);
    }
    for held in &inputs.allocations {
        if let Some(numbers) = numbers.get_mut(holder(held)) {
            numbers.hold(held.gpus, held.memory_mib);
        }
    }
    // Slurm has no name for jobs without an account.
    numbers.remove("");
    numbers
}

fn gauge(page: &mut Exposition, name: &str, help: &str, number: u64) {
    page.metric(name, Kind::Gauge, help);
    page.sample(name, &[], float(number));
}
