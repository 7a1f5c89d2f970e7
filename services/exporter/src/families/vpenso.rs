//! Names of prometheus-slurm-exporter (vpenso) and of what descends from it. Memory is in MB there.
//!
//! `slurm_scheduler_*` and `slurm_account_fairshare` are there if ingest reads `sdiag` and `sshare`. With Fair Tree no account has a factor.

use std::collections::BTreeMap;

use slurm_types::{JobBaseState, JobFlag, NodeBaseState, NodeFlag};

use super::{Inputs, float, scheduler};
use crate::domain::exposition::{Exposition, Kind};
use crate::domain::fold::fold;
use crate::domain::jobs::{JobGroup, Jobs};
use crate::domain::nodes::{Node, Nodes};

/// Writes the page.
pub fn write(inputs: &Inputs, page: &mut Exposition) -> usize {
    let mut folded = 0;
    if let Some(jobs) = &inputs.jobs {
        queue(jobs, page);
        folded += owners(jobs, inputs.max_series / 8, page);
    }
    if let Some(nodes) = &inputs.nodes {
        states(nodes, page);
        totals(nodes, page);
        of_each(nodes, inputs.max_series / 8, page);
        partitions(nodes, inputs.jobs.as_ref(), page);
    }
    scheduler::vpenso(inputs, page);
    let name = "slurm_account_fairshare";
    page.metric(name, Kind::Gauge, "FairShare for account");
    for share in inputs.scheduler.account_shares() {
        if let Some(factor) = share.fairshare {
            page.sample(name, &[("account", &share.account)], factor);
        }
    }
    folded
}

/// The keyword that squeue prints: a flag hides the base state.
pub(super) fn printed(cell: &JobGroup) -> &'static str {
    for (flag, name) in [
        (JobFlag::Completing, "completing"),
        (JobFlag::StageOut, "stage_out"),
        (JobFlag::Configuring, "configuring"),
        (JobFlag::Resizing, "resizing"),
        (JobFlag::RequeueHold, "requeue_hold"),
        (JobFlag::SpecialExit, "special_exit"),
        (JobFlag::Stopped, "stopped"),
        (JobFlag::Signaling, "signaling"),
        (JobFlag::Revoked, "revoked"),
    ] {
        if cell.state.has(flag) {
            return name;
        }
    }
    match cell.state.base {
        Some(JobBaseState::Pending) => "pending",
        Some(JobBaseState::Running) => "running",
        Some(JobBaseState::Suspended) => "suspended",
        Some(JobBaseState::Cancelled) => "cancelled",
        Some(JobBaseState::Completed) => "completed",
        Some(JobBaseState::Failed) => "failed",
        Some(JobBaseState::Timeout) => "timeout",
        Some(JobBaseState::Preempted) => "preempted",
        Some(JobBaseState::NodeFail) => "node_fail",
        _ => "",
    }
}

fn queue(jobs: &Jobs, page: &mut Exposition) {
    for (state, help) in [
        ("pending", "Pending jobs in queue"),
        ("running", "Running jobs in the cluster"),
        ("suspended", "Suspended jobs in the cluster"),
        ("cancelled", "Cancelled jobs in the cluster"),
        ("completing", "Completing jobs in the cluster"),
        ("completed", "Completed jobs in the cluster"),
        ("configuring", "Configuring jobs in the cluster"),
        ("failed", "Number of failed jobs"),
        ("timeout", "Jobs stopped by timeout"),
        ("preempted", "Number of preempted jobs"),
        ("node_fail", "Number of jobs stopped due to node fail"),
    ] {
        let found = jobs.cells.iter().filter(|cell| printed(cell) == state);
        let number = found.map(|cell| cell.counted.tasks).sum();
        gauge(page, &format!("slurm_queue_{state}"), help, float(number));
    }
    let dependent = jobs
        .cells
        .iter()
        .filter(|cell| cell.counted.reason == "Dependency");
    gauge(
        page,
        "slurm_queue_pending_dependency",
        "Pending jobs because of dependency in queue",
        float(dependent.map(|cell| cell.counted.tasks).sum()),
    );
}

#[derive(Clone, Copy, Default)]
struct OwnerTotals {
    pending: u64,
    running: u64,
    cpus: u64,
    suspended: u64,
}

impl OwnerTotals {
    const fn add(&mut self, other: &Self) {
        self.pending += other.pending;
        self.running += other.running;
        self.cpus += other.cpus;
        self.suspended += other.suspended;
    }
}

/// Accounts and users. As in the original, a number of 0 is left out.
pub(super) fn owners(jobs: &Jobs, fits: usize, page: &mut Exposition) -> usize {
    let mut folded = 0;
    for (label, key) in [
        (
            "account",
            (|cell: &JobGroup| &cell.counted.account) as fn(&JobGroup) -> &String,
        ),
        ("user", |cell| &cell.counted.user),
    ] {
        let mut owned: BTreeMap<String, OwnerTotals> = BTreeMap::new();
        for cell in &jobs.cells {
            let tasks = cell.counted.tasks;
            let more = match printed(cell) {
                "pending" => OwnerTotals {
                    pending: tasks,
                    ..OwnerTotals::default()
                },
                "running" => OwnerTotals {
                    running: tasks,
                    cpus: cell.counted.cpus,
                    ..OwnerTotals::default()
                },
                "suspended" => OwnerTotals {
                    suspended: tasks,
                    ..OwnerTotals::default()
                },
                _ => continue,
            };
            owned.entry(key(cell).clone()).or_default().add(&more);
        }
        let weight = |owned: &OwnerTotals| owned.pending + owned.running + owned.suspended;
        let (owned, others) = fold(owned, fits, weight, OwnerTotals::add);
        folded += others * 4;
        for (name, help, value) in [
            (
                "jobs_pending",
                "Pending jobs",
                (|owned| owned.pending) as fn(&OwnerTotals) -> u64,
            ),
            ("jobs_running", "Running jobs", |owned| owned.running),
            ("cpus_running", "Running cpus", |owned| owned.cpus),
            ("jobs_suspended", "Suspended jobs", |owned| owned.suspended),
        ] {
            let name = format!("slurm_{label}_{name}");
            page.metric(&name, Kind::Gauge, &format!("{help} for {label}"));
            for (key, owned) in &owned {
                if value(owned) > 0 {
                    page.sample(&name, &[(label, key)], float(value(owned)));
                }
            }
        }
    }
    folded
}

/// One word for the state of a node, as sinfo prints it (`%T`) without its suffix.
pub(super) fn state_name(node: &Node) -> &'static str {
    let state = &node.state;
    let flag = |flag| state.flags.contains(flag);
    let has_jobs = state.has_jobs();
    let is_down = state.base == Some(NodeBaseState::Down);
    if flag(NodeFlag::Drain) {
        return if has_jobs { "draining" } else { "drained" };
    }
    if flag(NodeFlag::Fail) {
        return if has_jobs { "failing" } else { "fail" };
    }
    if flag(NodeFlag::Maintenance) && !has_jobs && !is_down {
        return "maint";
    }
    match state.base {
        Some(NodeBaseState::Down) => "down",
        Some(NodeBaseState::Allocated) => "allocated",
        Some(NodeBaseState::Mixed) => "mixed",
        Some(NodeBaseState::Error) => "error",
        Some(NodeBaseState::Future) => "future",
        _ if flag(NodeFlag::Completing) => "completing",
        Some(NodeBaseState::Idle) if flag(NodeFlag::Reserved) => "reserved",
        Some(NodeBaseState::Idle) if flag(NodeFlag::Planned) => "planned",
        Some(NodeBaseState::Idle) => "idle",
        _ => "unknown",
    }
}

fn states(nodes: &Nodes, page: &mut Exposition) {
    for (name, begins, help) in [
        ("alloc", "alloc", "Allocated nodes"),
        ("comp", "comp", "Completing nodes"),
        ("down", "down", "Down nodes"),
        ("drain", "drain", "Drain nodes"),
        ("err", "err", "Error nodes"),
        ("fail", "fail", "Fail nodes"),
        ("idle", "idle", "Idle nodes"),
        ("maint", "maint", "Maint nodes"),
        ("mix", "mix", "Mix nodes"),
        ("resv", "res", "Reserved nodes"),
    ] {
        let found = nodes
            .nodes
            .iter()
            .filter(|node| state_name(node).starts_with(begins));
        gauge(
            page,
            &format!("slurm_nodes_{name}"),
            help,
            float(found.count() as u64),
        );
    }
}

/// CPUs by use: allocated, idle, other (idle on nodes that are down or drained) and all.
#[derive(Clone, Copy, Default)]
pub(super) struct Cpus(pub [u64; 4]);

pub(super) const USES: [(&str, &str); 4] = [
    ("alloc", "Allocated CPUs"),
    ("idle", "Idle CPUs"),
    ("other", "Idle CPUs of nodes that take no jobs"),
    ("total", "Total CPUs"),
];

impl Cpus {
    /// Those of a node.
    pub(super) fn of(node: &Node) -> Self {
        let (total, alloc) = (
            u64::from(node.summary.cpus),
            u64::from(node.summary.alloc_cpus),
        );
        let rest = total.saturating_sub(alloc);
        let (idle, other) = if node.takes_jobs() {
            (rest, 0)
        } else {
            (0, rest)
        };
        Self([alloc, idle, other, total])
    }

    fn add(&mut self, other: Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }
}

/// CPUs of the cluster by use.
pub(super) fn cpu_totals(nodes: &Nodes, page: &mut Exposition) {
    let mut cpus = Cpus::default();
    for node in &nodes.nodes {
        cpus.add(Cpus::of(node));
    }
    for ((name, help), number) in USES.iter().zip(cpus.0) {
        gauge(page, &format!("slurm_cpus_{name}"), help, float(number));
    }
}

fn totals(nodes: &Nodes, page: &mut Exposition) {
    cpu_totals(nodes, page);
    let (mut gpus, mut alloc_gpus) = (0, 0);
    for node in &nodes.nodes {
        gpus += u64::from(node.summary.gpus);
        alloc_gpus += u64::from(node.summary.alloc_gpus);
    }
    gauge(
        page,
        "slurm_gpus_alloc",
        "Allocated GPUs",
        float(alloc_gpus),
    );
    gauge(
        page,
        "slurm_gpus_idle",
        "Idle GPUs",
        float(gpus.saturating_sub(alloc_gpus)),
    );
    gauge(page, "slurm_gpus_total", "Total GPUs", float(gpus));
    let utilization = if gpus == 0 {
        0.0
    } else {
        float(alloc_gpus) / float(gpus)
    };
    gauge(
        page,
        "slurm_gpus_utilization",
        "Total GPU utilization",
        utilization,
    );
}

fn of_each(nodes: &Nodes, fits: usize, page: &mut Exposition) {
    let mut metric = |name: &str, help: &str, value: &dyn Fn(&Node) -> u64| {
        let name = format!("slurm_node_{name}");
        page.metric(&name, Kind::Gauge, help);
        for node in nodes.nodes.iter().take(fits) {
            let labels = [
                ("node", node.summary.name.as_str()),
                ("status", state_name(node)),
            ];
            page.sample(&name, &labels, float(value(node)));
        }
    };
    for (place, (name, help)) in USES.iter().enumerate() {
        metric(
            &format!("cpu_{name}"),
            &format!("{help} per node"),
            &|node| Cpus::of(node).0[place],
        );
    }
    metric("mem_alloc", "Allocated memory per node", &|node| {
        node.summary.alloc_memory_mib
    });
    metric("mem_total", "Total memory per node", &|node| {
        node.summary.memory_mib
    });
}

pub(super) fn partitions(nodes: &Nodes, jobs: Option<&Jobs>, page: &mut Exposition) {
    let mut cpus: BTreeMap<&str, Cpus> = BTreeMap::new();
    for node in &nodes.nodes {
        for partition in &node.summary.partitions {
            cpus.entry(partition).or_default().add(Cpus::of(node));
        }
    }
    for (place, (name, help)) in [
        ("cpus_allocated", "Allocated CPUs for partition"),
        ("cpus_idle", "Idle CPUs for partition"),
        ("cpus_other", "Other CPUs for partition"),
        ("cpus_total", "Total CPUs for partition"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("slurm_partition_{name}");
        page.metric(&name, Kind::Gauge, help);
        for (partition, cpus) in &cpus {
            // As in the original, a number of 0 is left out.
            if cpus.0[place] > 0 {
                page.sample(&name, &[("partition", partition)], float(cpus.0[place]));
            }
        }
    }
    let Some(jobs) = jobs else { return };
    let mut pending: BTreeMap<&str, u64> = BTreeMap::new();
    for cell in jobs.cells.iter().filter(|cell| printed(cell) == "pending") {
        for partition in cell.partitions() {
            *pending.entry(partition).or_default() += cell.counted.tasks;
        }
    }
    let name = "slurm_partition_jobs_pending";
    page.metric(name, Kind::Gauge, "Pending jobs for partition");
    for (partition, number) in &pending {
        page.sample(name, &[("partition", partition)], float(*number));
    }
}

fn gauge(page: &mut Exposition, name: &str, help: &str, value: f64) {
    page.metric(name, Kind::Gauge, help);
    page.sample(name, &[], value);
}
