//! The cheap poll of the whole queue.

use std::sync::Arc;

use serde::Serialize;
use slurm_types::{JobId, JobState, UnixTime};

use super::job::ArrayTasks;

/// One cheap reading of the whole queue: every job the controller has in memory, ended ones (`MinJobAge`) included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// When the reading began, by this host's clock. A job submitted later may be missing without meaning anything.
    pub started_at: UnixTime,
    /// The rows in Slurm's order.
    pub rows: Vec<SweepRow>,
    /// Lines that could not be read. More than none means the sweep proves no job's absence.
    pub unread_lines: usize,
}

/// One job, array task, or array remainder of a sweep. Rows share the texts they have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SweepRow {
    /// The record's own id.
    pub job_id: JobId,
    /// The array's id, for a task or a remainder.
    pub array_job_id: Option<JobId>,
    /// Which task or tasks of the array this row is about.
    pub array_tasks: Option<ArrayTasks>,
    /// `leader` of `leader+offset`, for a component of a heterogeneous job.
    pub het_job_id: Option<JobId>,
    /// `offset` of `leader+offset`.
    pub het_job_offset: Option<u32>,
    /// One word, so a flag may hide the base state.
    pub state: JobState,
    /// When this run was submitted: with the id, the key of the run.
    pub submit: Option<UnixTime>,
    /// Start; of a pending job the planned one, if backfill has planned it.
    pub start: Option<UnixTime>,
    /// End; of a running job the latest possible one.
    pub end: Option<UnixTime>,
    /// Priority; 0 means held.
    pub priority: Option<u32>,
    /// Partition or, while pending, the list of partitions asked for.
    pub partition: Arc<str>,
    /// Owner.
    pub user: Arc<str>,
    /// Owner's uid.
    pub uid: Option<u32>,
    /// Account.
    pub account: Arc<str>,
    /// QOS.
    pub qos: Arc<str>,
    /// Allocated nodes as a host list; empty while pending.
    pub nodes: Arc<str>,
    /// Number of nodes, allocated or asked for.
    pub node_count: Option<u32>,
    /// CPUs, allocated or asked for.
    pub cpus: Option<u32>,
    /// Time limit as printed.
    pub time_limit: Arc<str>,
    /// Reason or the free text in its place.
    pub reason: Arc<str>,
    /// Changes whenever something changes that is worth reading the full record for: state, submit, hold, reason, nodes,
    /// partition, limits, and the times of a started job. Not the priority (it ages) nor the planned start (backfill moves it
    /// on every cycle). FNV-1a, the same in every build, so it can be stored.
    pub digest: u64,
}
