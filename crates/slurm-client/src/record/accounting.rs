//! Accounting's record of a run.

use serde::{Deserialize, Serialize};
use slurm_types::{ExitCode, JobBaseState, JobId, JobState, TimeLimit, Tres, UnixTime};

use super::Oddities;
use super::job::ArrayTasks;

/// The array and the tasks of an accounting row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayPosition {
    /// The array's id.
    pub array_job_id: JobId,
    /// The task, or the tasks not yet split off. On 22.05 the latter also list tasks that already ran.
    pub tasks: ArrayTasks,
}

/// One row of `sacct -D -X`: one run of a job, or one part of a run that was resized.
///
/// Accounting alters data (seen on 22.05.8 unless noted otherwise). Exit codes above 127 lose 128 (200 reads 72:0, 128 reads 0:0).
/// Requeueing an ended job overwrites its row. Characters outside latin1 in names become `?`, and `"` becomes a back quote. A pending array
/// task that is cancelled leaves no row at all. On 26.05 components of a heterogeneous job cancelled while pending lose leader and offset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AccountingRecord {
    /// The record's own id (`JobIDRaw`).
    pub job_id: Option<JobId>,
    /// Array and task, if it belongs to one.
    pub array: Option<ArrayPosition>,
    /// Leader of a heterogeneous job.
    pub het_job_id: Option<JobId>,
    /// Position in a heterogeneous job.
    pub het_job_offset: Option<u32>,
    /// Cluster.
    pub cluster: String,
    /// Accounting's own key of the row.
    pub db_index: Option<u64>,
    /// Name given by the user, as far as the database can store it.
    pub name: String,
    /// Owner.
    pub user: String,
    /// Owner's uid.
    pub uid: Option<u32>,
    /// Owner's group.
    pub group: String,
    /// Account.
    pub account: String,
    /// Partition.
    pub partition: String,
    /// QOS.
    pub qos: String,
    /// Workload characterization key.
    pub wckey: String,
    /// State. `REQUEUED` is the end of a run by a plain requeue, `RESIZING` the end of a part of a run.
    pub state: JobState,
    /// Uid that cancelled it: `CANCELLED by 20002`.
    pub cancelled_by: Option<u32>,
    /// User that cancelled it, where the source has the name and this host does not know its uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub canceller: String,
    /// Exit code; see the type's notes for 22.05.
    pub exit_code: Option<ExitCode>,
    /// Highest exit code of its steps; users may change it later.
    pub derived_exit_code: Option<ExitCode>,
    /// Last reason it waited for.
    pub reason: String,
    /// When this run was submitted.
    pub submit: Option<UnixTime>,
    /// When it became eligible.
    pub eligible: Option<UnixTime>,
    /// Start time. A run that ended while pending has `None` or its end here; only an empty node list proves that it never started.
    pub start: Option<UnixTime>,
    /// End time; `None` while it lives.
    pub end: Option<UnixTime>,
    /// Seconds it ran, without suspended time.
    pub elapsed_secs: Option<u64>,
    /// Seconds it was suspended.
    pub suspended_secs: Option<u64>,
    /// Time limit.
    pub time_limit: Option<TimeLimit>,
    /// Number of nodes.
    pub node_count: Option<u32>,
    /// Allocated nodes, as a host list; empty if it never had any.
    pub nodes: String,
    /// Requested resources.
    pub req_tres: Tres,
    /// Allocated resources.
    pub alloc_tres: Tres,
    /// Priority.
    pub priority: Option<u32>,
    /// Flags: `SchedMain`, `SchedBackfill`, `StartRecieved`, …
    pub flags: String,
    /// Reservation.
    pub reservation: String,
    /// Requested features.
    pub constraints: String,
    /// Working directory.
    pub work_dir: String,
    /// Comment of the user (only with `AccountingStoreFlags=job_comment`).
    pub comment: String,
    /// Comment of an admin.
    pub admin_comment: String,
    /// Comment of Slurm's plugins.
    pub system_comment: String,
    /// True for a placeholder row: slurmdbd received the end of a very short job before its start and does not know owner, name and request
    /// yet (uid 0, name `allocation`). Seen on 22.05.8 for up to 2 s. Retry; do not rely on it.
    pub provisional: bool,
    /// Items that could not be parsed.
    pub oddities: Oddities,
}

impl AccountingRecord {
    /// True if nodes were ever allocated to this run.
    pub fn was_allocated(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// True if the run is over and the row is no placeholder.
    pub fn ended(&self) -> bool {
        let over = self.state.ends_run_in_accounting() || self.put_back();
        !self.provisional && over && self.end.is_some() && !self.has_end_of_run_before()
    }

    /// True if the row has the start of a run, with the state and the end of the run before it. slurmdbd uses one row for runs with one
    /// submit time, and does not lower the state of a row at a start (seen on 22.05.8, until the run ended).
    pub fn has_end_of_run_before(&self) -> bool {
        matches!((self.start, self.end), (Some(start), Some(end)) if end < start)
    }

    /// True if it got nodes and had to return them at once: a component of a heterogeneous job whose other components could not start. It
    /// goes back to the queue with a new submit time, without a restart being counted. Its row stays `PENDING`, with an end (22.05 and
    /// 24.11).
    pub fn put_back(&self) -> bool {
        self.state.is(JobBaseState::Pending) && self.was_allocated() && self.end.is_some()
    }
}
