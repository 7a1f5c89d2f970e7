//! The controller's records of nodes and partitions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slurm_types::{NodeState, Tres, UnixTime};

use super::Oddities;

/// The controller's record of one node (`scontrol show node`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Name in Slurm.
    pub name: String,
    /// State with all its flags.
    pub state: NodeState,
    /// Number of CPUs.
    pub cpus_total: u32,
    /// CPUs allocated to jobs.
    pub cpus_alloc: u32,
    /// CPUs that jobs can use (`CPUEfctv`, without specialised cores); the total where Slurm does not report it.
    pub cpus_effective: u32,
    /// Configured memory in MiB.
    pub real_memory_mib: u64,
    /// Memory allocated to jobs, in MiB.
    pub alloc_memory_mib: u64,
    /// Memory the system reports as free, in MiB.
    pub free_memory_mib: Option<u64>,
    /// Memory in MiB that jobs cannot use (`MemSpecLimit`).
    #[serde(default)]
    pub reserved_memory_mib: u64,
    /// Load of the system, as slurmd averages it.
    #[serde(default)]
    pub cpu_load: Option<f64>,
    /// Generic resources as printed: `gpu:a100:4`.
    pub gres: String,
    /// Features the node can have.
    pub available_features: Vec<String>,
    /// Features it has now.
    pub active_features: Vec<String>,
    /// Partitions it belongs to.
    pub partitions: Vec<String>,
    /// Why it is down or drained; empty if no reason is set. Look it up with `slurm_types::NodeReason`.
    pub reason: String,
    /// Who set the reason.
    pub reason_user: String,
    /// When the reason was set.
    pub reason_time: Option<UnixTime>,
    /// When the system booted.
    pub boot_time: Option<UnixTime>,
    /// When slurmd started.
    pub slurmd_start_time: Option<UnixTime>,
    /// When it was last busy.
    pub last_busy_time: Option<UnixTime>,
    /// Cloud instance id, where set.
    pub instance_id: String,
    /// Cloud instance type, where set.
    pub instance_type: String,
    /// Scheduling weight.
    pub weight: Option<u64>,
    /// Comment.
    pub comment: String,
    /// Free text for sites and cloud back ends (23.02 and later).
    pub extra: String,
    /// Address.
    pub addr: String,
    /// Host name.
    pub hostname: String,
    /// Version of slurmd; empty if it never registered.
    pub version: String,
    /// Configured resources.
    pub cfg_tres: Tres,
    /// Resources allocated to jobs.
    pub alloc_tres: Tres,
    /// Items that could not be parsed.
    pub oddities: Oddities,
}

impl NodeRecord {
    /// GPUs of the node: from its TRES, or from the `Gres` text where GPUs are not tracked.
    pub fn gpus(&self) -> u64 {
        match self.cfg_tres.gpus() {
            0 => crate::parse::gres_gpus(&self.gres),
            tracked => tracked,
        }
    }

    /// True if jobs hold any of its resources.
    pub fn has_jobs(&self) -> bool {
        self.cpus_alloc > 0 || self.state.has_jobs()
    }

    /// Its lifecycle.
    pub fn lifecycle(&self) -> slurm_types::Lifecycle {
        self.state.lifecycle(self.has_jobs())
    }
}

/// The controller's record of one partition (`scontrol show partition`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartitionRecord {
    /// Name.
    pub name: String,
    /// `UP`, `DOWN`, `DRAIN`, `INACTIVE`.
    pub state: String,
    /// True if jobs without a partition go there.
    pub default: bool,
    /// Its nodes, as a host list.
    pub nodes: String,
    /// Longest time limit as printed: `1-00:00:00`, `UNLIMITED`.
    pub max_time: String,
    /// Time limit of jobs that request none.
    pub default_time: String,
    /// The partition's own QOS; empty if it has none.
    pub qos: String,
    /// Scheduling tier.
    pub priority_tier: Option<u32>,
    /// Fewest nodes of a job.
    pub min_nodes: u32,
    /// Most nodes of a job; `None` for no limit.
    pub max_nodes: Option<u32>,
    /// Accounts that may use it; empty for all.
    pub allow_accounts: Vec<String>,
    /// Accounts that may not use it. Slurm ignores them if some are allowed by name.
    pub deny_accounts: Vec<String>,
    /// QOS that may use it; empty for all.
    pub allow_qos: Vec<String>,
    /// QOS that may not use it.
    pub deny_qos: Vec<String>,
    /// Unix groups that may use it; empty for all.
    pub allow_groups: Vec<String>,
    /// Number of CPUs.
    pub total_cpus: Option<u32>,
    /// Number of nodes.
    pub total_nodes: Option<u32>,
    /// Configured resources.
    pub tres: Tres,
    /// Billing weights of its resources.
    pub billing_weights: String,
    /// Every key as printed.
    pub keys: BTreeMap<String, String>,
}
