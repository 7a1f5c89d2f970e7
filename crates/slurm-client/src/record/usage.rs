//! What a run used, as accounting keeps it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slurm_types::{JobBaseState, UnixTime};

use super::AccountingRecord;

/// Amounts by Slurm's name of the resource: `cpu` in seconds, `mem`, `vmem`, `fs/disk` and `gres/gpumem` in bytes, `energy` in joules,
/// `gres/gpuutil` in percent, others as Slurm counts them.
pub type TresUsage = BTreeMap<String, u64>;

/// One row of `sacct -D` with what belongs to it: a run of a job, or a part of a run that was resized.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// The row itself.
    pub record: AccountingRecord,
    /// Milliseconds of CPU of all its steps, user and system.
    pub cpu_millis: Option<u64>,
    /// Part of it in user mode.
    pub user_cpu_millis: Option<u64>,
    /// Part of it in the kernel.
    pub system_cpu_millis: Option<u64>,
    /// Joules; `None` where no energy plugin measures them.
    pub energy_joules: Option<u64>,
    /// Its steps.
    pub steps: Vec<StepUsage>,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepUsage {
    /// `batch`, `extern`, `interactive`, or its number.
    pub id: String,
    /// Whether it is over.
    pub ended: bool,
    /// When it ended.
    pub end: Option<UnixTime>,
    /// How it ended. Of a step that was stopped with its job that is `CANCELLED`, whatever became of the job.
    pub state: Option<JobBaseState>,
    /// Number of tasks.
    pub tasks: Option<u32>,
    /// Largest resident set of one task, in bytes.
    pub max_rss_bytes: Option<u64>,
    /// Node of that task.
    pub max_rss_node: String,
    /// Number of that task.
    pub max_rss_task: Option<u32>,
    /// Per resource the most that one task used. Empty until the step has reported, and without `JobAcctGatherType`.
    pub most: TresUsage,
    /// Per resource the sum over tasks of what each used at most.
    pub total: TresUsage,
}
