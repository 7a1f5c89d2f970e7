//! The controller's full record of a job.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use slurm_types::no_val::real_u32;
use slurm_types::{ExitCode, JobId, JobRef, JobState, TaskSet, TimeLimit, Tres, UnixTime};

use super::Oddities;

/// The tasks of an array that a record stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrayTasks {
    /// One task, which has left the array's own record.
    Task(u32),
    /// The tasks that are still in the array's own record, as Slurm prints them: `2-9:2%4`.
    Remainder(String),
}

impl ArrayTasks {
    /// Parses `4` or `2-9:2%4`. `None` for `N/A`, the empty text, and `NO_VAL`: `scontrol` prints the latter for an array whose remainder
    /// was cancelled with its owner's other jobs (`scancel --user`, 22.05).
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "" | "N/A" | "(null)" => None,
            text => match text.parse() {
                Ok(task) => real_u32(task).map(Self::Task),
                Err(_) => Some(Self::Remainder(text.to_owned())),
            },
        }
    }

    /// The task's index, if it is one task.
    pub const fn task(&self) -> Option<u32> {
        match self {
            Self::Task(task) => Some(*task),
            Self::Remainder(_) => None,
        }
    }

    /// The tasks as a set; `None` if Slurm's text cannot be parsed.
    pub fn set(&self) -> Option<TaskSet> {
        match self {
            Self::Task(task) => Some(TaskSet::new([*task])),
            Self::Remainder(text) => text.parse().ok(),
        }
    }
}

/// Result of a lookup of jobs. Every requested id is in at least one of the four lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobLookup {
    /// Records found. An array's id gives its remainder and every task that the controller still has.
    pub found: Vec<JobRecord>,
    /// Ids unknown to the controller: ended longer than `MinJobAge` ago, or never existed.
    pub missing: Vec<JobId>,
    /// Ids that are absent from the controller's list of all jobs and were not looked up individually: probably missing. Every job that the list
    /// lacks and that was looked up is missing.
    pub unlisted: Vec<JobId>,
    /// Ids for which the response proves nothing, with the reason. Retry.
    pub unclear: Vec<(JobId, String)>,
}

impl JobLookup {
    /// Most jobs that are looked up one by one because a list of all jobs lacks them, and by commands instead of a list, however long the
    /// queue is. Over slurmrestd lookups instead of a list have limits of their own.
    pub const MAX_SINGLE: usize = 16;

    /// Makes the unlisted ids unclear if a job that the list lacks (`absent`) was found by its id: the list was cut, although its status was 0.
    pub fn check_list(&mut self, absent: &BTreeSet<JobId>) {
        let is_absent = |record: &JobRecord| record.request_ids().any(|id| absent.contains(&id));
        if self.found.iter().any(is_absent) {
            let unlisted = std::mem::take(&mut self.unlisted).into_iter();
            let problem = "the list of all jobs lacks jobs that the controller has";
            self.unclear
                .extend(unlisted.map(|id| (id, problem.to_owned())));
        }
    }
}

/// Resources that a job holds on one node, or on several nodes alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAlloc {
    /// The nodes, as a host list.
    pub nodes: String,
    /// CPUs on each of them.
    pub cpus: u32,
    /// Memory on each of them; 0 where memory is not a consumable resource.
    pub mem_mib: u64,
    /// GPUs on each of them.
    pub gpus: u32,
    /// Generic resources as Slurm prints them: `gpu:a100:2(IDX:0-1)`.
    pub gres: String,
}

impl NodeAlloc {
    /// Indices of the GPUs on each of the nodes, in the order of gres.conf; none if Slurm does not print them.
    pub fn gpu_indices(&self) -> Vec<u32> {
        crate::parse::gres_gpu_indices(&self.gres)
    }
}

/// The controller's record of one job (`scontrol -d show job`).
///
/// Text fields are empty where Slurm prints `(null)`, `N/A` or nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The record's own id; `None` only in a record made by hand.
    pub job_id: Option<JobId>,
    /// The array's id, for a task or a remainder.
    pub array_job_id: Option<JobId>,
    /// Which tasks of the array.
    pub array_tasks: Option<ArrayTasks>,
    /// Limit of concurrently running tasks (`%N`).
    pub array_throttle: Option<u32>,
    /// Leader of a heterogeneous job.
    pub het_job_id: Option<JobId>,
    /// Position in a heterogeneous job.
    pub het_job_offset: Option<u32>,
    /// All components, as printed: `13-14`.
    pub het_job_id_set: String,
    /// SLUID of the run (25.11 and later).
    pub sluid: String,

    /// Name given by the user. May contain anything, including newlines.
    pub name: String,
    /// Owner.
    pub user: String,
    /// Owner's uid.
    pub uid: Option<u32>,
    /// Owner's group.
    pub group: String,
    /// Owner's gid.
    pub gid: Option<u32>,
    /// Account.
    pub account: String,
    /// Partition, or the list of requested ones.
    pub partition: String,
    /// QOS.
    pub qos: String,
    /// Workload characterization key.
    pub wckey: String,

    /// State. scontrol prints one keyword; the base state is `None` while a flag hides it.
    pub state: JobState,
    /// Reason keyword, or the free text in its place with underscores for spaces. Look it up with `slurm_types::Reason`.
    pub reason: String,
    /// Node that failed (`FailedNode`), where Slurm reports it.
    pub failed_node: String,
    /// Priority; 0 means held.
    pub priority: Option<u32>,
    /// Nice value.
    pub nice: i64,
    /// How often the job was restarted.
    pub restarts: u32,
    /// Whether Slurm may requeue it.
    pub requeue: bool,
    /// Whether it is a batch job.
    pub batch: bool,

    /// When this run was submitted; reset by a requeue.
    pub submit: Option<UnixTime>,
    /// When it may run.
    pub eligible: Option<UnixTime>,
    /// When it began to accrue age priority.
    pub accrue: Option<UnixTime>,
    /// Start; for a pending job the planned one. Only allocated nodes prove a start.
    pub start: Option<UnixTime>,
    /// End; for a running job the latest possible one.
    pub end: Option<UnixTime>,
    /// Time of the last suspend or resume.
    pub suspend_time: Option<UnixTime>,
    /// When its size last changed.
    pub resize_time: Option<UnixTime>,
    /// Seconds it ran before the last suspend.
    pub pre_suspend_secs: Option<u64>,
    /// Seconds it has run, without suspended time.
    pub run_secs: Option<u64>,
    /// Time limit.
    pub time_limit: Option<TimeLimit>,
    /// Deadline.
    pub deadline: Option<UnixTime>,
    /// When preemption was decided.
    pub preempt_time: Option<UnixTime>,
    /// From when it may be preempted.
    pub preempt_eligible: Option<UnixTime>,
    /// When the scheduler last evaluated it.
    pub last_sched_eval: Option<UnixTime>,
    /// Scheduler of that evaluation: `Main`, `Backfill`.
    pub scheduler: String,
    /// Nodes that backfill plans for it.
    pub sched_nodes: String,

    /// Allocated nodes, as a host list; empty if it never had any.
    pub nodes: String,
    /// Number of nodes, allocated or (the minimum) requested.
    pub node_count: Option<u32>,
    /// Node of the batch script.
    pub batch_host: String,
    /// CPUs.
    pub num_cpus: Option<u32>,
    /// Tasks.
    pub num_tasks: Option<u32>,
    /// CPUs per task.
    pub cpus_per_task: Option<u32>,
    /// Requested resources. 22.05 prints one list (`TRES`), which is the requested one until the job has nodes.
    pub req_tres: Tres,
    /// Allocated resources; empty until the job has nodes.
    pub alloc_tres: Tres,
    /// `TresPerJob`, `TresPerNode`, `TresPerTask`, … with their values as printed.
    pub tres_per: Vec<(String, String)>,
    /// Requested memory per node, in MiB.
    pub min_mem_node_mib: Option<u64>,
    /// Requested memory per CPU, in MiB.
    pub min_mem_cpu_mib: Option<u64>,
    /// Resources on each node; empty unless it has nodes.
    pub node_allocs: Vec<NodeAlloc>,
    /// True if it has its nodes exclusively (`--exclusive`).
    pub exclusive: bool,
    /// `OverSubscribe` as printed: `OK`, `NO`, `YES`, `USER`, …
    pub oversubscribe: String,

    /// Dependencies as printed, with their state: `afterok:1(unfulfilled)`.
    pub dependency: String,
    /// Reservation.
    pub reservation: String,
    /// Requested features (`--constraint`).
    pub features: String,
    /// Requested licenses.
    pub licenses: String,
    /// Requested nodes.
    pub req_nodes: String,
    /// Excluded nodes.
    pub exc_nodes: String,

    /// Comment of the user.
    pub comment: String,
    /// Comment of an admin or a cloud back end.
    pub admin_comment: String,
    /// Comment of Slurm's plugins.
    pub system_comment: String,
    /// Script or command line.
    pub command: String,
    /// Working directory.
    pub work_dir: String,
    /// Standard output file.
    pub stdout: String,
    /// Standard error file.
    pub stderr: String,
    /// Standard input file.
    pub stdin: String,

    /// Exit code of the job. This is the true value: accounting of 22.05 alters codes above 127.
    pub exit_code: Option<ExitCode>,
    /// Highest exit code of its steps.
    pub derived_exit_code: Option<ExitCode>,

    /// Items that could not be parsed, such as TRES items and numbers.
    pub oddities: Oddities,
}

impl JobRecord {
    /// The ids by which it can be requested: its own, that of its array, and that of its heterogeneous job.
    pub fn request_ids(&self) -> impl Iterator<Item = JobId> + use<> {
        let ids = [self.job_id, self.array_job_id, self.het_job_id];
        ids.into_iter().flatten()
    }

    /// The id as people write it: `123`, `123_4`, `123_[1-5]`, `123+1`.
    pub fn job_ref(&self) -> Option<JobRef> {
        let id = self.job_id?;
        if let (Some(array), Some(tasks)) = (self.array_job_id, &self.array_tasks) {
            return Some(match tasks {
                ArrayTasks::Task(task) => JobRef::ArrayTask { array, task: *task },
                ArrayTasks::Remainder(_) => JobRef::ArrayTasks {
                    array,
                    tasks: tasks.set()?,
                },
            });
        }
        match (self.het_job_id, self.het_job_offset) {
            (Some(leader), Some(offset)) => Some(JobRef::HetComponent { leader, offset }),
            _ => Some(JobRef::Job(id)),
        }
    }

    /// True if nodes were ever allocated to this run: the only proof of a start.
    pub fn was_allocated(&self) -> bool {
        !self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_tasks_are_one_or_the_rest_or_not_there() {
        assert_eq!(ArrayTasks::parse("4"), Some(ArrayTasks::Task(4)));
        let rest = ArrayTasks::Remainder("2-9:2%4".to_owned());
        assert_eq!(ArrayTasks::parse("2-9:2%4"), Some(rest));
        for none in ["", "N/A", "4294967294"] {
            assert_eq!(ArrayTasks::parse(none), None, "{none}");
        }
    }
}
