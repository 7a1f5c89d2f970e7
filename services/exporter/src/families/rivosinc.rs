//! Names of rivosinc's prometheus-slurm-exporter. Bytes are millions per MiB that Slurm prints, as there. A number of 0 is left out, as there.
//!
//! Array tasks count each. Allocated memory is that of running jobs. Absent: what has a job id as label (`slurm_job_*`, `slurm_proc_*`),
//! features of jobs, and the exporter's own errors.

use std::collections::BTreeMap;

use super::vpenso::{Cpus, printed, state_name};
use super::{Inputs, float, scheduler};
use crate::domain::exposition::{Exposition, Kind};
use crate::domain::fold::fold;
use crate::domain::jobs::JobGroup;
use crate::domain::nodes::Node;

/// Writes the page.
pub fn write(inputs: &Inputs, page: &mut Exposition) -> usize {
    let mut folded = 0;
    if inputs.jobs.is_some() {
        folded += jobs(inputs, page);
    }
    if let Some(nodes) = &inputs.nodes {
        totals(&nodes.nodes, page);
        partitions(&nodes.nodes, page);
    }
    limits(inputs, page);
    licenses(inputs, page);
    scheduler::rivosinc(inputs, page);
    folded
}

#[allow(clippy::cast_precision_loss, reason = "values of samples are floats")]
fn bytes(mib: u64) -> f64 {
    mib as f64 * 1e6
}

/// Jobs, CPUs and memory in a state.
#[derive(Clone, Copy, Default)]
struct StateSums {
    jobs: u64,
    cpus: u64,
    memory_mib: u64,
}

/// Numbers of an owner by state.
type ByState = BTreeMap<String, StateSums>;

fn add_all(sums: &mut ByState, more: &ByState) {
    for (state, numbers) in more {
        let sum = sums.entry(state.clone()).or_default();
        sum.jobs += numbers.jobs;
        sum.cpus += numbers.cpus;
        sum.memory_mib += numbers.memory_mib;
    }
}

/// The state as squeue prints it.
fn state(cell: &JobGroup) -> String {
    match printed(cell) {
        "" => cell.state_name().to_owned(),
        keyword => keyword.to_uppercase(),
    }
}

fn jobs(inputs: &Inputs, page: &mut Exposition) -> usize {
    let mut partitions: BTreeMap<(&str, String), u64> = BTreeMap::new();
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    let mut accounts: BTreeMap<String, ByState> = BTreeMap::new();
    let mut users: BTreeMap<String, ByState> = BTreeMap::new();
    for cell in inputs.jobs.iter().flat_map(|jobs| &jobs.cells) {
        let counted = &cell.counted;
        let state = state(cell);
        let is_allocated = matches!(state.as_str(), "RUNNING" | "SUSPENDED" | "COMPLETING");
        for (owners, owner) in [
            (&mut accounts, &counted.account),
            (&mut users, &counted.user),
        ] {
            let numbers = owners.entry(owner.clone()).or_default();
            let numbers = numbers.entry(state.clone()).or_default();
            numbers.jobs += counted.tasks;
            numbers.cpus += if is_allocated { counted.cpus } else { 0 };
        }
        if !counted.reason.is_empty() {
            *reasons.entry(&counted.reason).or_default() += counted.tasks;
        }
        // As there, a list of partitions is one name.
        let key = (counted.partition.as_str(), state);
        *partitions.entry(key).or_default() += counted.tasks;
    }
    for held in &inputs.allocations {
        for (owners, owner) in [(&mut accounts, &held.account), (&mut users, &held.user)] {
            let running = owners
                .get_mut(owner)
                .and_then(|states| states.get_mut("RUNNING"));
            if let Some(running) = running {
                running.memory_mib += held.memory_mib;
            }
        }
    }
    let name = "slurm_partition_job_state_total";
    page.metric(name, Kind::Gauge, "Jobs of the partition by state");
    for ((partition, state), jobs) in &partitions {
        let labels = [("partition", *partition), ("state", state)];
        page.sample(name, &labels, float(*jobs));
    }
    let name = "slurm_pending_reason_total";
    page.metric(name, Kind::Gauge, "Pending jobs by reason");
    for (reason, jobs) in &reasons {
        page.sample(name, &[("reason", reason)], float(*jobs));
    }
    let fits = inputs.max_series / 40;
    let weight = |states: &ByState| states.values().map(|numbers| numbers.jobs).sum();
    let (accounts, more_accounts) = fold(accounts, fits, weight, add_all);
    let (users, more_users) = fold(users, fits, weight, add_all);
    let of_accounts = [
        "slurm_account_job_state_total",
        "slurm_account_job_state_cpu_alloc",
        "slurm_account_job_state_mem_alloc",
    ];
    owners(page, "account", of_accounts, &accounts);
    let of_users = [
        "slurm_user_state_total",
        "slurm_user_cpu_alloc",
        "slurm_user_mem_alloc",
    ];
    owners(page, "username", of_users, &users);
    (more_accounts + more_users) * 3
}

fn owners(
    page: &mut Exposition,
    label: &str,
    [jobs, cpus, memory]: [&str; 3],
    owners: &BTreeMap<String, ByState>,
) {
    for (name, help, value) in [
        (
            jobs,
            "Jobs by state",
            (|numbers| float(numbers.jobs)) as fn(&StateSums) -> f64,
        ),
        (cpus, "CPUs allocated to jobs by state", |numbers| {
            float(numbers.cpus)
        }),
        (memory, "Memory allocated to jobs by state", |numbers| {
            bytes(numbers.memory_mib)
        }),
    ] {
        page.metric(name, Kind::Gauge, help);
        for (owner, states) in owners {
            for (state, numbers) in states {
                let labels = [(label, owner.as_str()), ("state", state)];
                positive(page, name, &labels, value(numbers));
            }
        }
    }
}

fn positive(page: &mut Exposition, name: &str, labels: &[(&str, &str)], value: f64) {
    if value > 0.0 {
        page.sample(name, labels, value);
    }
}

/// The state of a node as sinfo abbreviates it.
fn compact(node: &Node) -> &'static str {
    match state_name(node) {
        "allocated" => "alloc",
        "mixed" => "mix",
        "drained" => "drain",
        "draining" => "drng",
        "completing" => "comp",
        "reserved" => "resv",
        "planned" => "plnd",
        "failing" => "failg",
        "error" => "err",
        "future" => "futr",
        "unknown" => "unk",
        other => other,
    }
}

/// Sums of the nodes of the cluster or of a partition.
#[derive(Default)]
struct NodeSums<'a> {
    cpus: u64,
    idle_cpus: u64,
    memory_mib: u64,
    free_memory_mib: u64,
    alloc_memory_mib: u64,
    weight: u64,
    load: f64,
    /// By state: nodes, CPUs, allocated CPUs and memory.
    states: BTreeMap<&'a str, [u64; 4]>,
}

impl NodeSums<'_> {
    fn add(&mut self, node: &Node) {
        let summary = &node.summary;
        let Cpus([alloc, idle, _, total]) = Cpus::of(node);
        self.cpus += total;
        self.idle_cpus += idle;
        self.memory_mib += summary.memory_mib;
        self.free_memory_mib += summary.free_memory_mib.unwrap_or_default();
        self.alloc_memory_mib += summary.alloc_memory_mib;
        self.weight += summary.weight.unwrap_or_default();
        self.load += summary.cpu_load.unwrap_or_default();
        let numbers = [1, total, alloc, summary.alloc_memory_mib];
        let state = self.states.entry(compact(node)).or_default();
        for (sum, number) in state.iter_mut().zip(numbers) {
            *sum += number;
        }
    }
}

fn totals(nodes: &[Node], page: &mut Exposition) {
    let mut sums = NodeSums::default();
    for node in nodes {
        sums.add(node);
    }
    for (name, help, value) in [
        ("slurm_cpus_total", "CPUs", float(sums.cpus)),
        ("slurm_cpus_idle", "Idle CPUs", float(sums.idle_cpus)),
        ("slurm_cpu_load", "Sum of the loads of all nodes", sums.load),
        ("slurm_mem_real", "Memory", bytes(sums.memory_mib)),
        ("slurm_mem_free", "Free memory", bytes(sums.free_memory_mib)),
        (
            "slurm_mem_alloc",
            "Memory allocated to jobs",
            bytes(sums.alloc_memory_mib),
        ),
    ] {
        page.metric(name, Kind::Gauge, help);
        page.sample(name, &[], value);
    }
    for (name, help, place) in [
        ("slurm_node_count_per_state", "Nodes by state", 0),
        ("slurm_cpus_per_state", "CPUs by state of their node", 1),
    ] {
        page.metric(name, Kind::Gauge, help);
        for (state, numbers) in &sums.states {
            page.sample(name, &[("state", state)], float(numbers[place]));
        }
    }
}

fn partitions(nodes: &[Node], page: &mut Exposition) {
    let mut partitions: BTreeMap<&str, NodeSums<'_>> = BTreeMap::new();
    for node in nodes {
        for partition in &node.summary.partitions {
            partitions.entry(partition).or_default().add(node);
        }
    }
    type Value<'a> = fn(&NodeSums<'a>) -> f64;
    let values: [(&str, &str, Value<'_>); 6] = [
        ("total_cpus", "CPUs", |sums| float(sums.cpus)),
        ("idle_cpus", "Idle CPUs", |sums| float(sums.idle_cpus)),
        ("real_mem", "Memory", |sums| bytes(sums.memory_mib)),
        ("free_mem", "Free memory", |sums| {
            bytes(sums.free_memory_mib)
        }),
        ("weight", "Sum of the weights", |sums| float(sums.weight)),
        ("cpu_load", "Sum of the loads", |sums| sums.load),
    ];
    for (name, help, value) in values {
        let name = format!("slurm_partition_{name}");
        page.metric(&name, Kind::Gauge, help);
        for (partition, sums) in &partitions {
            positive(page, &name, &[("partition", partition)], value(sums));
        }
    }
    for (name, help, place) in [
        ("node_count", "Nodes by state", 0),
        (
            "alloc_cpus",
            "CPUs allocated to jobs by state of their node",
            2,
        ),
        (
            "alloc_mem",
            "Memory allocated to jobs by state of its node",
            3,
        ),
    ] {
        let name = format!("slurm_partition_{name}");
        page.metric(&name, Kind::Gauge, help);
        for (partition, sums) in &partitions {
            for (state, numbers) in &sums.states {
                let number = numbers[place];
                let value = if name.ends_with("mem") {
                    bytes(number)
                } else {
                    float(number)
                };
                let labels = [("partition", *partition), ("state", *state)];
                positive(page, &name, &labels, value);
            }
        }
    }
}

/// Limits of an account on all its jobs together.
fn limits(inputs: &Inputs, page: &mut Exposition) {
    for (name, limit, tres) in [
        ("slurm_account_cpu_limit", "GrpTRES", "cpu"),
        ("slurm_account_mem_limit", "GrpTRES", "mem"),
        ("slurm_account_job_alloc_limit", "GrpJobs", ""),
        ("slurm_account_job_limit", "GrpSubmitJobs", ""),
    ] {
        page.metric(name, Kind::Gauge, limit);
        let found = inputs.scheduler.limits.iter();
        for found in found.filter(|found| found.limit == limit && found.tres == tres) {
            let value = if tres == "mem" {
                bytes(found.value)
            } else {
                float(found.value)
            };
            positive(page, name, &[("account", &found.account)], value);
        }
    }
}

fn licenses(inputs: &Inputs, page: &mut Exposition) {
    for (name, help, value) in super::LICENSES {
        let name = format!("slurm_lic_{name}");
        page.metric(&name, Kind::Gauge, help);
        for license in &inputs.scheduler.licenses {
            positive(
                page,
                &name,
                &[("name", &license.name)],
                float(value(license)),
            );
        }
    }
}
