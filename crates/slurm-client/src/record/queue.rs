//! The cheap poll of the whole queue.

use std::sync::Arc;

use slurm_types::{JobBaseState, JobId, UnixTime};

use super::job::ArrayTasks;

/// One cheap reading of the whole queue: every job the controller has in memory, ended ones (`MinJobAge`) included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueListing {
    /// When the reading began, by this host's clock. A job submitted later may be missing without meaning anything.
    pub started_at: UnixTime,
    /// The rows in Slurm's order.
    pub rows: Vec<QueueRow>,
    /// Lines that could not be read. More than none means the sweep proves no job's absence.
    pub unread_lines: usize,
}

/// One job, array task, or array remainder of a sweep: what is needed of it before its full record is read. Rows share the texts they have
/// in common, as there is one per job in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// The record's own id.
    pub job_id: JobId,
    /// The array's id, for a task or a remainder.
    pub array_job_id: Option<JobId>,
    /// Which task or tasks of the array this row is about.
    pub array_tasks: Option<Box<ArrayTasks>>,
    /// `leader` of `leader+offset`, for a component of a heterogeneous job.
    pub het_job_id: Option<JobId>,
    /// `offset` of `leader+offset`.
    pub het_job_offset: Option<u32>,
    /// Base state; `None` where a flag hides it, or if it is none that this version knows.
    pub state: Option<JobBaseState>,
    /// When this run was submitted: with the id, the key of the run.
    pub submit: Option<UnixTime>,
    /// Start; of a pending job the planned one, if backfill has planned it.
    pub start: Option<UnixTime>,
    /// Priority; 0 means held.
    pub priority: Option<u32>,
    /// Partition or, while pending, the list of partitions asked for.
    pub partition: Arc<str>,
    /// Owner.
    pub user: Arc<str>,
    /// Whether it has nodes.
    pub has_nodes: bool,
    /// Reason or the free text in its place.
    pub reason: Arc<str>,
    /// Changes whenever something changes that is worth reading the full record for: state, submit, hold, reason, nodes,
    /// partition, QOS, account, limits, and the times of a started job. Not the priority (it ages) nor the planned start (backfill moves it
    /// on every cycle). FNV-1a, the same in every build, so it can be stored.
    pub digest: u64,
}
