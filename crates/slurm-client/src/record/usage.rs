//! Resource usage of runs, from accounting.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slurm_types::{JobBaseState, UnixTime};

use super::AccountingRecord;

/// Amounts by Slurm's name of the resource: `cpu` in seconds, `mem`, `vmem`, `fs/disk` and `gres/gpumem` in bytes, `energy` in joules,
/// `gres/gpuutil` in percent, others in Slurm's units.
pub type TresUsage = BTreeMap<String, u64>;

/// One row of `sacct -D` with its steps: a run of a job, or a part of a run that was resized.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// The row itself.
    pub record: AccountingRecord,
    /// CPU time of all its steps, user and system, in milliseconds.
    pub cpu_millis: Option<u64>,
    /// CPU time in user mode, in milliseconds.
    pub user_cpu_millis: Option<u64>,
    /// CPU time in the kernel, in milliseconds.
    pub system_cpu_millis: Option<u64>,
    /// Energy in joules; `None` where no energy plugin measures it.
    pub energy_joules: Option<u64>,
    /// Its steps.
    pub steps: Vec<StepUsage>,
}

/// Usage of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepUsage {
    /// `batch`, `extern`, `interactive`, or its number.
    pub id: String,
    /// True if it is over.
    pub ended: bool,
    /// When it ended.
    pub end: Option<UnixTime>,
    /// End state. A step that was stopped with its job has `CANCELLED`, whatever the job's state.
    pub state: Option<JobBaseState>,
    /// Number of tasks.
    pub tasks: Option<u32>,
    /// Largest resident set of one task, in bytes.
    pub max_rss_bytes: Option<u64>,
    /// Node of the task with the largest resident set.
    pub max_rss_node: String,
    /// Index of the task with the largest resident set.
    pub max_rss_task: Option<u32>,
    /// Largest usage by one task, per resource. Empty until the step has reported, and without `JobAcctGatherType`.
    #[serde(rename = "most")]
    pub max: TresUsage,
    /// Sum over tasks of each task's maximum, per resource.
    pub total: TresUsage,
}
