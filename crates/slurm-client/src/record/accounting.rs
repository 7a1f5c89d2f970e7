//! Accounting's record of a run.

use serde::{Deserialize, Serialize};
use slurm_types::{ExitCode, JobBaseState, JobId, JobState, TimeLimit, Tres, UnixTime};

use super::job::ArrayTasks;

/// Which tasks of which array an accounting row is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayPosition {
    /// The array's id.
    pub array_job_id: JobId,
    /// The task, or the tasks not yet split off. 22.05 also lists tasks that already ran in the latter.
    pub tasks: ArrayTasks,
}

/// One row of `sacct -D -X`: one run of a job, or one part of a run that was resized.
///
/// What accounting changes (seen on 22.05.8 unless said otherwise): exit codes above 127 lose 128 (200 reads
/// 72:0, 128 reads 0:0); requeueing an ended job overwrites its row; characters outside latin1 in names become `?` and `"`
/// becomes a back quote; a pending array task that is cancelled leaves no row at all; on 26.05 components of a heterogeneous job
/// cancelled while pending lose leader and offset.
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
    /// Name given by the user, as far as the database kept it.
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
    /// Uid of who cancelled it: `CANCELLED by 20002`.
    pub cancelled_by: Option<u32>,
    /// Exit code; see the type's notes for 22.05.
    pub exit_code: Option<ExitCode>,
    /// Highest exit code of its steps; users may change it later.
    pub derived_exit_code: Option<ExitCode>,
    /// Last reason it waited for.
    pub reason: String,
    /// When this run was submitted.
    pub submit: Option<UnixTime>,
    /// When it was allowed to run.
    pub eligible: Option<UnixTime>,
    /// When it started. A run that ended while pending has `None` or its end here; only empty nodes prove "never started".
    pub start: Option<UnixTime>,
    /// When it ended; `None` while it lives.
    pub end: Option<UnixTime>,
    /// Seconds it ran, suspended time excluded.
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
    /// Features asked for.
    pub constraints: String,
    /// Working directory.
    pub work_dir: String,
    /// Comment of the user (only with `AccountingStoreFlags=job_comment`).
    pub comment: String,
    /// Comment of an admin.
    pub admin_comment: String,
    /// Comment of Slurm's plugins.
    pub system_comment: String,
    /// The row is a stand-in: slurmdbd got the end of a very short job before its start and knows neither owner, name nor
    /// request yet (uid 0, name `allocation`). Seen on 22.05.8 for up to 2 s. Ask again; do not rely on it.
    pub provisional: bool,
    /// How often parsing had to leave something out.
    pub oddities: u32,
}

impl AccountingRecord {
    /// Whether nodes were ever allocated to this run.
    pub fn was_allocated(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Whether the row says that the run is over, and is no stand-in.
    pub fn ended(&self) -> bool {
        let over = self.state.ends_run_in_accounting() || self.put_back();
        !self.provisional && over && self.end.is_some()
    }

    /// Whether it got nodes and had to give them back at once: a component of a heterogeneous job whose other components could not start.
    /// It goes back to the queue with a new submit time, and no restart is counted; its row stays `PENDING`, with an end (22.05 and 24.11).
    pub fn put_back(&self) -> bool {
        self.state.is(JobBaseState::Pending) && self.was_allocated() && self.end.is_some()
    }
}
