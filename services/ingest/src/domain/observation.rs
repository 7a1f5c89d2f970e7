//! An observation of one run, from any source.

mod records;
mod returned;

use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{EventType, RunKey};
use serde::{Deserialize, Serialize};
use slurm_client::AccountingRecord;
use slurm_types::{ExitCode, JobBaseState, ReasonClass, TaskSet};

pub use self::returned::{Returned, mark_returned};
use super::batch_step_end::BatchStepEnd;
use super::run_state::StateName;

/// Kind of entity to which a run belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntityKind {
    /// A plain job, or a component of a heterogeneous job.
    Job,
    /// One task of an array.
    Task,
    /// The array itself: its tasks that have not become jobs of their own.
    Array,
}

/// Source of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Record of slurmctld.
    Controller,
    /// Row of slurmdbd.
    Accounting,
    /// Environment that slurmctld passed to `jobcomp/script`.
    JobComp,
}

/// Owner of a job, as printed by Slurm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User name.
    #[serde(rename = "u")]
    pub user: String,
    /// Uid, if the source has it.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Account name.
    #[serde(rename = "a", default, skip_serializing_if = "String::is_empty")]
    pub account: String,
}

/// The user that cancelled a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Canceller {
    /// By uid.
    Uid(u32),
    /// By a name that this host does not know. slurmrestd has names only.
    Name(String),
}

impl Canceller {
    fn of(row: &AccountingRecord) -> Option<Self> {
        let name = || (!row.canceller.is_empty()).then(|| Self::Name(row.canceller.clone()));
        row.cancelled_by.map(Self::Uid).or_else(name)
    }

    /// Whether the job's owner cancelled it.
    pub fn is(&self, owner: &Owner) -> bool {
        match self {
            Self::Uid(uid) => owner.uid == Some(*uid),
            Self::Name(name) => owner.user == *name,
        }
    }
}

/// What a run held from a moment on, as accounting records it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationPart {
    /// First second in Unix seconds: the start of the run, or a resize.
    pub from: i64,
    /// Nodes, as a host list.
    pub nodes: String,
    /// Number of nodes.
    pub node_count: u32,
    /// Allocated TRES.
    pub alloc_tres: String,
}

impl AllocationPart {
    /// The allocation of a payload.
    pub fn of(job: &Job, from: i64) -> Self {
        Self {
            from,
            nodes: job.nodes.clone(),
            node_count: job.node_count,
            alloc_tres: job.alloc_tres.clone(),
        }
    }

    /// Writes it into the payload of a fact. Amounts per node and the batch host belong to the newest allocation.
    pub fn apply_to(&self, job: &mut Job) {
        if job.nodes != self.nodes {
            job.batch_host.clear();
        }
        job.nodes.clone_from(&self.nodes);
        job.node_count = self.node_count;
        job.alloc_tres.clone_from(&self.alloc_tres);
        job.allocations.clear();
    }
}

/// One observation of one run.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Run key. Its attempt is 0 here; [`super::observe`] determines the attempt.
    pub run: RunKey,
    /// Slurm's job id of the record.
    pub raw_id: u32,
    /// Kind of entity.
    pub entity: EntityKind,
    /// Tasks of an array's own record.
    pub tasks: Option<TaskSet>,
    /// Source.
    pub record: Record,
    /// Base state, if the source has it. 22.05 hides it behind `COMPLETING`.
    pub base: Option<JobBaseState>,
    /// Whether epilogs still run; for a pending job, those of the previous run.
    pub completing: bool,
    /// Whether its nodes still boot, or PrologSlurmctld still runs: the start may move until then.
    pub configuring: bool,
    /// Whether a sibling of the federation runs the job instead.
    pub revoked: bool,
    /// Whether the run ended by a requeue, as reported by accounting or jobcomp.
    pub requeued: bool,
    /// Whether nodes were ever allocated: the only proof of a start.
    pub allocated: bool,
    /// Whether its nodes are those of its end, as reported by jobcomp, rather than those whose epilogs still run.
    pub nodes_at_end: bool,
    /// Whether the end is known only from jobcomp or from the batch step.
    pub ended_by_hook: bool,
    /// Whether the end is inferred from other facts, without a record of its own.
    pub end_is_inferred: bool,
    /// End according to the batch step, for a row that a requeue has overwritten.
    pub own_end: Option<BatchStepEnd>,
    /// Exit code. The controller's record has it even while it hides the state.
    pub exit_code: Option<ExitCode>,
    /// Start in Unix seconds; meaningful only with `allocated`.
    pub start: Option<i64>,
    /// End in Unix seconds; for a running job, the latest possible end.
    pub end: Option<i64>,
    /// Last suspend or resume, in Unix seconds.
    pub suspend_time: Option<i64>,
    /// Seconds that the run was running before the last suspend.
    pub pre_suspend: Option<i64>,
    /// Times of resizes, in Unix seconds.
    pub resizes: Vec<i64>,
    /// Allocations of a resized run in order of time, if the source has them. Other sources have only the newest allocation.
    pub parts: Vec<AllocationPart>,
    /// Restart count, if the source has it.
    pub restarts: Option<u32>,
    /// Whether it is a component of a heterogeneous job that has run before, see [`mark_returned`].
    pub returned: Returned,
    /// Whether it has priority 0 while pending.
    pub held: bool,
    /// Class of the pending reason.
    pub class: ReasonClass,
    /// The canceller, if the source has it.
    pub cancelled_by: Option<Canceller>,
    /// Owner of the job.
    pub owner: Owner,
    /// Job in the payload of the event.
    pub job: Job,
}

impl Observation {
    /// Returns the event type of the run's end, if this observation proves it.
    pub fn end_kind(&self) -> Option<EventType> {
        if self.revoked {
            return Some(EventType::JobRevoked);
        }
        match self.base {
            Some(base) => end_of(base),
            None => self.requeued.then_some(EventType::JobRequeued),
        }
    }

    /// Whether the job certainly ran before this run.
    pub fn has_run_before(&self) -> bool {
        self.returned == Returned::Yes || self.restarts.is_some_and(|restarts| restarts > 0)
    }

    /// Whether the job may have run before this run.
    pub fn may_have_run_before(&self) -> bool {
        self.returned == Returned::Possibly || self.has_run_before()
    }

    /// Whether it waits in the queue: it is pending, and no earlier run is being cleaned up.
    pub fn waiting(&self) -> bool {
        self.base == Some(JobBaseState::Pending) && !self.completing && !self.revoked
    }

    /// Whether the run got its allocation.
    pub fn started(&self) -> bool {
        self.allocated && self.start.is_some() && !self.waiting()
    }

    /// The end of a run that got nodes, if its record lacks the start. slurmdbd loses the start of a run that is requeued at once: the row
    /// has nodes and an end (22.05, every fifth such run).
    pub fn end_of_lost_start(&self) -> Option<i64> {
        let is_lost = self.allocated && self.start.is_none() && self.end_kind().is_some();
        self.end.filter(|_| is_lost)
    }

    /// Whether the record shows a resize without the allocation before it. slurmctld has only the newest allocation.
    pub fn hides_first_allocation(&self) -> bool {
        self.record == Record::Controller && !self.resizes.is_empty()
    }

    /// Whether its nodes may be only those whose epilogs still run.
    pub fn nodes_are_partial(&self) -> bool {
        self.record == Record::Controller && self.completing && !self.nodes_at_end
    }

    /// Whether the state is about to change to one that is not known yet.
    pub fn in_flux(&self) -> bool {
        self.completing && self.end_kind().is_none()
    }

    /// Slurm's keyword for the state.
    pub fn state_name(&self) -> StateName {
        let base = self.base.filter(|_| !self.in_flux());
        base.map_or(StateName::COMPLETING, StateName::from)
    }

    /// Takes the exit code of the same end from another source, unless this one has it.
    pub fn take_code(&mut self, other: &Self) {
        if self.job.exit_code.is_none() && self.end_kind() == other.end_kind() {
            self.job.exit_code = other.job.exit_code;
            self.job.derived_exit_code = other.job.derived_exit_code;
        }
    }
}

/// Returns the event type of an end state.
fn end_of(base: JobBaseState) -> Option<EventType> {
    match base {
        JobBaseState::Pending | JobBaseState::Running | JobBaseState::Suspended => None,
        JobBaseState::Completed => Some(EventType::JobCompleted),
        JobBaseState::Cancelled => Some(EventType::JobCancelled),
        JobBaseState::Failed => Some(EventType::JobFailed),
        JobBaseState::Timeout => Some(EventType::JobTimeout),
        JobBaseState::NodeFail => Some(EventType::JobNodeFail),
        JobBaseState::Preempted => Some(EventType::JobPreempted),
        JobBaseState::BootFail => Some(EventType::JobBootFail),
        JobBaseState::Deadline => Some(EventType::JobDeadline),
        JobBaseState::OutOfMemory => Some(EventType::JobOutOfMemory),
    }
}
