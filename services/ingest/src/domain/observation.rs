//! An observation of one run, from any source.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{EventType, RunKey};
use serde::{Deserialize, Serialize};
use slurm_client::{AccountingRecord, ArrayTasks, JobRecord};
use slurm_types::{ExitCode, JobBaseState, JobFlag, Reason, ReasonClass, TaskSet};

use super::batch_step_end::BatchStepEnd;
use super::payload;
use super::run_state::StateName;

/// slurmctld gives each component of a heterogeneous job a submit time of its own, in seconds.
const MAX_SUBMIT_SPREAD: i64 = 2;

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

/// Whether a component of a heterogeneous job got nodes before and had to return them, since another component could not start. slurmctld
/// counts no restart for it, but gives it a new submit time (seen on 22.05, 24.11 and 26.05).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Returned {
    /// No component was submitted earlier.
    #[default]
    No,
    /// Another component was submitted a moment earlier, or is not known.
    Possibly,
    /// Another component was submitted so much earlier that they were not submitted together.
    Yes,
}

impl Returned {
    /// Compares the submit time of a component with the earliest known one of its heterogeneous job.
    fn of(submit_time: i64, earliest: Option<i64>) -> Self {
        match earliest.map(|earliest| submit_time - earliest) {
            None => Self::Possibly,
            Some(later) if later > MAX_SUBMIT_SPREAD => Self::Yes,
            Some(later) if later > 0 => Self::Possibly,
            Some(_) => Self::No,
        }
    }
}

/// Marks components of heterogeneous jobs that may have returned their nodes. A read by id may show a component without the others;
/// `submitted` has the submit time of a leader that is known from before.
pub fn mark_returned<'a>(
    observations: impl Iterator<Item = &'a mut Observation>,
    submitted: impl Fn(&RunKey) -> Option<i64>,
) {
    let mut components: BTreeMap<u32, Vec<&mut Observation>> = BTreeMap::new();
    for observation in observations.filter(|one| one.record == Record::Controller) {
        if let Some(het) = &observation.job.het {
            components.entry(het.job_id).or_default().push(observation);
        }
    }
    for (leader, components) in components {
        let is_leader = |one: &&mut Observation| one.run.job_id == leader;
        // A read of the leader has every component.
        let mut earliest = match components.iter().any(is_leader) {
            true => components.iter().map(|one| one.run.submit_time).min(),
            false => None,
        };
        if let Some(component) = components.first() {
            let known = submitted(&RunKey {
                job_id: leader,
                ..component.run.clone()
            });
            earliest = earliest.into_iter().chain(known).min();
        }
        for component in components {
            component.returned = Returned::of(component.run.submit_time, earliest);
        }
    }
}

impl Observation {
    /// Reads the controller's record; `None` if it lacks an id or a submit time, which no record of Slurm does.
    pub fn from_controller(cluster: &str, record: &JobRecord) -> Option<Self> {
        let raw_id = record.job_id?.get();
        let submit_time = record.submit?.as_secs();
        let allocated = record.was_allocated();
        let pending = record.state.is(JobBaseState::Pending);
        // While the last nodes of a run are cleaned up, its record may name none (22.05).
        let completing = record.state.has(JobFlag::Completing);
        let never_ran = !allocated && !completing && record.restarts == 0;
        let tasks = record.array_tasks.as_ref();
        let position = record.array_job_id.map(|id| (id.get(), tasks));
        let identity = RunIdentity::of(raw_id, position, never_ran);
        let run = identity.run_key(cluster, submit_time);
        let reason = Reason::lookup(&record.reason);
        let job = payload::from_controller(record, &run, &identity.tasks);
        Some(Self {
            run,
            raw_id,
            entity: identity.entity,
            tasks: identity.tasks,
            record: Record::Controller,
            base: record.state.base,
            completing,
            configuring: record.state.has(JobFlag::Configuring),
            revoked: record.state.has(JobFlag::Revoked),
            requeued: false,
            allocated,
            nodes_at_end: false,
            ended_by_hook: false,
            end_is_inferred: false,
            own_end: None,
            exit_code: record.exit_code,
            start: record.start.map(slurm_types::UnixTime::as_secs),
            end: record.end.map(slurm_types::UnixTime::as_secs),
            suspend_time: record.suspend_time.map(slurm_types::UnixTime::as_secs),
            pre_suspend: record
                .pre_suspend_secs
                .and_then(|secs| i64::try_from(secs).ok()),
            // A resize before the start belongs to an earlier run.
            resizes: record
                .resize_time
                .filter(|at| allocated && !pending && Some(*at) >= record.start)
                .map(slurm_types::UnixTime::as_secs)
                .into_iter()
                .collect(),
            parts: Vec::new(),
            restarts: Some(record.restarts),
            returned: Returned::No,
            // A suspended job has priority 0, too (seen on 22.05), so this counts only while pending.
            held: pending && record.priority == Some(0),
            class: reason.class(),
            cancelled_by: None,
            owner: Owner {
                user: record.user.clone(),
                uid: record.uid,
                account: record.account.clone(),
            },
            job,
        })
    }

    /// Reads a row of accounting; `None` if it lacks an id or a submit time.
    pub fn from_accounting(cluster: &str, row: &AccountingRecord) -> Option<Self> {
        let raw_id = row.job_id?.get();
        let submit_time = row.submit?.as_secs();
        let allocated = row.was_allocated();
        let position = row
            .array
            .as_ref()
            .map(|array| (array.array_job_id.get(), Some(&array.tasks)));
        let identity = RunIdentity::of(raw_id, position, !allocated);
        let run = identity.run_key(cluster, submit_time);
        let job = payload::from_accounting(row, &run, &identity.tasks);
        // A finished state without an end time is not the end yet.
        let ended = row.ended();
        Some(Self {
            run,
            raw_id,
            entity: identity.entity,
            tasks: identity.tasks,
            record: Record::Accounting,
            base: row
                .state
                .base
                .filter(|base| (ended || !base.finished()) && !row.put_back()),
            completing: false,
            configuring: false,
            revoked: row.state.has(JobFlag::Revoked) && row.end.is_some(),
            requeued: ended && (row.state.base.is_none() || row.put_back()),
            allocated,
            nodes_at_end: false,
            ended_by_hook: false,
            end_is_inferred: false,
            own_end: None,
            exit_code: None,
            start: row.start.map(slurm_types::UnixTime::as_secs),
            end: row
                .end
                .filter(|_| !row.has_end_of_run_before())
                .map(slurm_types::UnixTime::as_secs),
            suspend_time: None,
            pre_suspend: None,
            resizes: Vec::new(),
            parts: Vec::new(),
            restarts: None,
            returned: Returned::No,
            held: false,
            class: Reason::lookup(&row.reason).class(),
            cancelled_by: Canceller::of(row),
            owner: Owner {
                user: row.user.clone(),
                uid: row.uid,
                account: row.account.clone(),
            },
            job,
        })
    }

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

/// The run to which a record belongs.
pub(super) struct RunIdentity {
    pub root: u32,
    pub task: Option<u32>,
    pub entity: EntityKind,
    pub tasks: Option<TaskSet>,
}

impl RunIdentity {
    /// The last task of an array keeps the array's own id, and Slurm prints a remainder of one task like a task (22.05). A record with the
    /// array's id that never ran is the array.
    pub(super) fn of(
        raw_id: u32,
        array: Option<(u32, Option<&ArrayTasks>)>,
        never_ran: bool,
    ) -> Self {
        let Some((root, tasks)) = array else {
            return Self {
                root: raw_id,
                task: None,
                entity: EntityKind::Job,
                tasks: None,
            };
        };
        match tasks {
            Some(ArrayTasks::Task(task)) if !(raw_id == root && never_ran) => Self {
                root,
                task: Some(*task),
                entity: EntityKind::Task,
                tasks: None,
            },
            tasks => Self {
                root,
                task: None,
                entity: EntityKind::Array,
                tasks: tasks.and_then(ArrayTasks::set),
            },
        }
    }

    /// Returns the run with this submit time, in its first attempt.
    pub(super) fn run_key(&self, cluster: &str, submit_time: i64) -> RunKey {
        RunKey {
            cluster: cluster.to_owned(),
            job_id: self.root,
            task_id: self.task,
            submit_time,
            attempt: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use slurm_types::{JobId, UnixTime};

    use super::*;

    #[test]
    fn a_component_with_a_later_submit_time_has_returned_its_nodes() {
        let component = |id: u32, leader: Option<u32>, submit: i64| {
            let record = JobRecord {
                job_id: JobId::new(id),
                het_job_id: leader.and_then(JobId::new),
                het_job_offset: leader.map(|leader| id - leader),
                submit: Some(UnixTime::from_secs(submit)),
                ..JobRecord::default()
            };
            Observation::from_controller("c", &record).unwrap()
        };
        use Returned::{No, Possibly, Yes};
        let mut observations = [
            (component(10, Some(10), 107), Yes),
            (component(11, Some(10), 100), No),
            (component(12, Some(10), 101), Possibly),
            (component(13, None, 200), No),
            (component(20, Some(20), 200), No),
            // Read without their leaders, of which two are known from before.
            (component(31, Some(30), 300), No),
            (component(41, Some(40), 401), Possibly),
            (component(51, Some(50), 500), Possibly),
        ];
        let submitted = |leader: &RunKey| match leader.job_id {
            30 => Some(300),
            40 => Some(400),
            _ => None,
        };
        mark_returned(observations.iter_mut().map(|(one, _)| one), submitted);
        for (observation, expected) in observations {
            assert_eq!(observation.returned, expected, "{}", observation.raw_id);
        }
    }
}
