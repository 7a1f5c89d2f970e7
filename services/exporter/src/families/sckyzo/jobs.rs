//! Jobs in the queue, and GPUs of running ones.

use std::collections::BTreeMap;

use super::gauge;
use crate::domain::exposition::{Exposition, Kind};
use crate::domain::fold::fold;
use crate::domain::jobs::Jobs;
use crate::families::vpenso::printed;
use crate::families::{Inputs, float};

/// States of jobs in metric names.
const STATES: [&str; 11] = [
    "pending",
    "running",
    "suspended",
    "cancelled",
    "completing",
    "completed",
    "configuring",
    "failed",
    "timeout",
    "preempted",
    "node_fail",
];

/// Jobs and their CPUs by partition and, for pending ones, reason.
type Queue = BTreeMap<(&'static str, String, String), (u64, u64)>;

fn add_all(sums: &mut Queue, more: &Queue) {
    for (key, (jobs, cpus)) in more {
        let sum = sums.entry(key.clone()).or_default();
        sum.0 += jobs;
        sum.1 += cpus;
    }
}

pub(super) fn queue(jobs: &Jobs, fits: usize, page: &mut Exposition) -> usize {
    let mut users: BTreeMap<String, Queue> = BTreeMap::new();
    let mut totals: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for cell in &jobs.cells {
        let state = printed(cell);
        let counted = &cell.counted;
        let total = totals.entry(state).or_default();
        total.0 += counted.jobs;
        total.1 += counted.cpus;
        let reason = if state == "pending" {
            counted.reason.as_str()
        } else {
            ""
        };
        let queue = users.entry(counted.user.clone()).or_default();
        for partition in cell.partitions() {
            let key = (state, partition.to_owned(), reason.to_owned());
            let sum = queue.entry(key).or_default();
            sum.0 += counted.jobs;
            sum.1 += counted.cpus;
        }
    }
    let weight = |queue: &Queue| queue.values().map(|(jobs, _)| jobs).sum();
    let (users, folded) = fold(users, fits, weight, add_all);
    for (prefix, help, is_cpus) in [
        ("slurm_queue", "Jobs in this state", false),
        ("slurm_cores", "CPUs of jobs in this state", true),
    ] {
        for state in STATES {
            let name = format!("{prefix}_{state}");
            page.metric(&name, Kind::Gauge, help);
            for (user, queue) in &users {
                let of_state = queue.iter().filter(|((of, ..), _)| *of == state);
                for ((_, partition, reason), (jobs, cpus)) in of_state {
                    let mut labels = vec![("user", user.as_str()), ("partition", partition)];
                    if state == "pending" {
                        labels.push(("reason", reason));
                    }
                    page.sample(&name, &labels, float(if is_cpus { *cpus } else { *jobs }));
                }
            }
        }
    }
    let total = |state: &str| totals.get(state).copied().unwrap_or_default();
    for state in STATES {
        let name = format!("slurm_jobs_{state}");
        gauge(
            page,
            &name,
            "Jobs in this state in the cluster",
            total(state).0,
        );
    }
    for state in ["running", "pending"] {
        let name = format!("slurm_jobs_cores_{state}");
        gauge(page, &name, "CPUs of jobs in this state", total(state).1);
    }
    folded * 4
}

pub(super) fn gpus_of_owners(inputs: &Inputs, fits: usize, page: &mut Exposition) {
    let mut accounts: BTreeMap<String, u64> = BTreeMap::new();
    let mut users: BTreeMap<String, u64> = BTreeMap::new();
    for held in &inputs.allocations {
        *accounts.entry(held.account.clone()).or_default() += held.gpus;
        *users.entry(held.user.clone()).or_default() += held.gpus;
    }
    for (label, owners) in [("account", accounts), ("user", users)] {
        let (owners, _) = fold(owners, fits, |gpus| *gpus, |sum, gpus| *sum += gpus);
        let name = format!("slurm_{label}_gpus_running");
        page.metric(&name, Kind::Gauge, "GPUs allocated to running jobs");
        for (owner, gpus) in owners.iter().filter(|(_, gpus)| **gpus > 0) {
            page.sample(&name, &[(label, owner)], float(*gpus));
        }
    }
}
