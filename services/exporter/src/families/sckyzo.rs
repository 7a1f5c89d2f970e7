//! Names of SckyzO's slurm_exporter: those of vpenso with more labels, and more of them. Memory is in MB there.
//!
//! `slurm_queue_*`, `slurm_cores_*` and `slurm_jobs_*` count an array that waits once, `slurm_account_*`, `slurm_user_*` and
//! `slurm_partition_jobs_*` each of its tasks, as there. Idle and other GPUs are those of nodes that take jobs and of nodes that do not.
//! Absent: what it reads from sacct (efficiencies by user), and what it says about itself. Users' shares are there only for accounts that
//! Slurm gives a factor.

mod jobs;
mod nodes;
mod reservations;
mod resources;
mod shares;

use jobs::{gpus_of_owners, queue};
use nodes::{gpus, info, of_each, of_partitions, states};
use reservations::reservations;
use shares::{licenses, shares};

use super::{Inputs, float, scheduler, vpenso};
use crate::domain::exposition::{Exposition, Kind};

/// Writes the page.
pub fn write(inputs: &Inputs, page: &mut Exposition) -> usize {
    let mut folded = 0;
    if let Some(jobs) = &inputs.jobs {
        folded += queue(jobs, inputs.max_series / 100, page);
        folded += vpenso::owners(jobs, inputs.max_series / 16, page);
        gpus_of_owners(inputs, inputs.max_series / 16, page);
    }
    if let Some(nodes) = &inputs.nodes {
        states(nodes, page);
        gpus(nodes, page);
        vpenso::cpu_totals(nodes, page);
        folded += of_each(nodes, inputs.max_series / 20, page);
        vpenso::partitions(nodes, inputs.jobs.as_ref(), page);
        of_partitions(nodes, inputs.jobs.as_ref(), page);
        info(nodes, page);
    }
    scheduler::sckyzo(inputs, page);
    shares(inputs, page);
    licenses(inputs, page);
    reservations(inputs, page);
    folded
}

fn gauge(page: &mut Exposition, name: &str, help: &str, value: u64) {
    page.metric(name, Kind::Gauge, help);
    page.sample(name, &[], float(value));
}
