//! Rows of the cheap poll of the whole queue.

use std::sync::Arc;

use slurm_types::{JobBaseState, JobId, UnixTime};

use super::job::ArrayTasks;
use super::job_counts::JobCounts;

/// One poll of the whole queue: every job in the controller's memory, including ended ones (`MinJobAge`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueListing {
    /// When the poll began, by this host's clock. The absence of a job submitted later means nothing.
    pub started_at: UnixTime,
    /// The rows in Slurm's order.
    pub rows: Vec<QueueRow>,
    /// The jobs counted by partition, account, user, QOS, state and reason.
    pub counts: JobCounts,
    /// Lines that could not be parsed. If there are any, the listing proves no job's absence.
    pub unread_lines: usize,
}

/// All jobs as squeue prints them, column by column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobListing {
    /// Titles of the columns.
    pub titles: Vec<String>,
    /// The jobs in squeue's order.
    pub jobs: Vec<Vec<String>>,
}

/// One job, array task, or array remainder of a listing, with the columns needed before its full record is read. Rows share common texts,
/// as there is a row per job in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// The record's own id.
    pub job_id: JobId,
    /// The array's id, for a task or a remainder.
    pub array_job_id: Option<JobId>,
    /// The task or tasks of the array in this row.
    pub array_tasks: Option<Box<ArrayTasks>>,
    /// `leader` of `leader+offset`, for a component of a heterogeneous job.
    pub het_job_id: Option<JobId>,
    /// `offset` of `leader+offset`.
    pub het_job_offset: Option<u32>,
    /// Base state; `None` where a flag hides it, or if this version does not know it.
    pub state: Option<JobBaseState>,
    /// When this run was submitted: with the id, the key of the run.
    pub submit: Option<UnixTime>,
    /// Start; for a pending job the planned one, if backfill has planned it.
    pub start: Option<UnixTime>,
    /// Priority; 0 means held.
    pub priority: Option<u32>,
    /// Partition or, while pending, the list of requested partitions.
    pub partition: Arc<str>,
    /// Owner.
    pub user: Arc<str>,
    /// True if it has nodes.
    pub has_nodes: bool,
    /// Reason or the free text in its place.
    pub reason: Arc<str>,
    /// Changes whenever the full record is worth reading: with state, submit time, hold, reason, nodes, partition, QOS, account, limits,
    /// and the times of a started job. Independent of the priority (it ages) and the planned start (backfill moves it on every cycle).
    /// FNV-1a, the same in every build, so it can be stored.
    pub digest: u64,
}
