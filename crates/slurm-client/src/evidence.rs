//! Data from the environment of Slurm's hooks. Pure.
//!
//! It is evidence, not truth: an event is built from it only if Slurm itself has purged the job. A jobcomp/script record is as good as
//! Slurm's own, since slurmctld writes it at the end of the run, with the state. The environment of other hooks has no state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slurm_types::{ExitCode, JobBaseState, JobId, JobState, TimeLimit, UnixTime, no_val};

/// The environment is not that of the hook.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read the environment of a hook: {variable} is missing or not a {expected}")]
pub struct ReadEvidenceError {
    variable: &'static str,
    expected: &'static str,
}

/// Record of jobcomp/script (`JobCompType=jobcomp/script`) about a run that ended.
///
/// Seen on 22.05.8, 24.11.5 and 26.05.5. A requeued run has `JOBSTATE=PENDING` (plain requeue) or the state of its end (`PREEMPTED`,
/// `NODE_FAIL`). A run that never started has `START` equal to `END` and no nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionRecord {
    /// The record's own id.
    pub job_id: Option<JobId>,
    /// The array's id, for a task.
    pub array_job_id: Option<JobId>,
    /// The task's index.
    pub array_task_id: Option<u32>,
    /// Leader of a heterogeneous job.
    pub het_job_id: Option<JobId>,
    /// Position in a heterogeneous job.
    pub het_job_offset: Option<u32>,
    /// SLUID of the run (26.05).
    pub sluid: String,
    /// Cluster.
    pub cluster: String,
    /// Name given by the user.
    pub name: String,
    /// State at the end.
    pub state: JobState,
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
    /// Nodes, as a host list; empty if it never started.
    pub nodes: String,
    /// Number of nodes.
    pub node_count: Option<u32>,
    /// CPUs.
    pub cpus: Option<u32>,
    /// When this run was submitted.
    pub submit: Option<UnixTime>,
    /// When it became eligible (24.11 and later).
    pub eligible: Option<UnixTime>,
    /// When it started; equal to the end if it never did.
    pub start: Option<UnixTime>,
    /// When it ended.
    pub end: Option<UnixTime>,
    /// Time limit.
    pub time_limit: Option<TimeLimit>,
    /// Exit code. Slurm's own failure value is `0:1` here and `1:0` in sacct.
    pub exit_code: Option<ExitCode>,
    /// Highest exit code of its steps.
    pub derived_exit_code: Option<ExitCode>,
    /// Last reason it waited for.
    pub previous_reason: String,
    /// Dependency.
    pub dependency: String,
    /// Reservation.
    pub reservation: String,
    /// Requested features.
    pub constraints: String,
    /// Working directory.
    pub work_dir: String,
    /// Standard output file.
    pub stdout: String,
    /// Standard error file.
    pub stderr: String,
    /// Standard input file.
    pub stdin: String,
}

impl CompletionRecord {
    /// Reads the environment of jobcomp/script.
    pub fn from_env(env: &BTreeMap<String, String>) -> Result<Self, ReadEvidenceError> {
        let env = Env(env);
        Ok(Self {
            job_id: Some(env.job("JOBID").ok_or(ReadEvidenceError {
                variable: "JOBID",
                expected: "job id",
            })?),
            array_job_id: env.job("ARRAYJOBID"),
            array_task_id: env.number("ARRAYTASKID"),
            het_job_id: env.job("HETJOBID"),
            het_job_offset: env.job("HETJOBID").and(env.number("HETJOBOFFSET")),
            sluid: env.text("SLUID"),
            cluster: env.text("CLUSTER"),
            name: env.raw("JOBNAME"),
            state: env.required_state()?,
            user: env.text("USERNAME"),
            uid: env.number("UID"),
            group: env.text("GROUPNAME"),
            account: env.text("ACCOUNT"),
            partition: env.text("PARTITION"),
            qos: env.text("QOS"),
            nodes: env.text("NODES"),
            node_count: env.number("NODECNT"),
            cpus: env.number("PROCS"),
            submit: env.time("SUBMIT"),
            eligible: env.time("ELIGIBLE"),
            start: env.time("START"),
            end: env.time("END"),
            time_limit: TimeLimit::parse(&env.raw("LIMIT")),
            exit_code: env.raw("EXITCODE").parse().ok(),
            derived_exit_code: env.raw("DERIVED_EC").parse().ok(),
            previous_reason: env.text("STATEREASONPREV"),
            dependency: env.text("DEPENDENCY"),
            reservation: env.text("RESERVATION"),
            constraints: env.text("CONSTRAINTS"),
            work_dir: env.text("WORK_DIR"),
            stdout: env.text("STDOUT"),
            stderr: env.text("STDERR"),
            stdin: env.text("STDIN"),
        })
    }

    /// True if nodes were ever allocated to this run.
    pub fn was_allocated(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// True if the run went back to the queue without another end: `JOBSTATE=PENDING` or `REQUEUED`.
    pub fn requeued(&self) -> bool {
        self.state.is(JobBaseState::Pending) || self.state.has(slurm_types::JobFlag::Requeued)
    }
}

/// Environment of PrologSlurmctld, EpilogSlurmctld, Prolog and Epilog: identifies the job and little more.
///
/// It has no submit time and no state, and the restart count of an Epilog is off by one after some requeues (22.05 to 26.05). So it
/// identifies the job, but not the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HookEnv {
    /// The hook: `prolog_slurmctld`, `epilog_slurmctld`, `prolog_slurmd`, `epilog_slurmd`, …
    pub context: String,
    /// The record's own id.
    pub job_id: Option<JobId>,
    /// The array's id (controller hooks only).
    pub array_job_id: Option<JobId>,
    /// The task's index (controller hooks only).
    pub array_task_id: Option<u32>,
    /// Leader of a heterogeneous job.
    pub het_job_id: Option<JobId>,
    /// Position in a heterogeneous job (controller hooks only).
    pub het_job_offset: Option<u32>,
    /// SLUID of the run (25.11 and later).
    pub sluid: String,
    /// Cluster.
    pub cluster: String,
    /// Name given by the user (controller hooks only).
    pub name: String,
    /// Owner.
    pub user: String,
    /// Owner's uid.
    pub uid: Option<u32>,
    /// Account.
    pub account: String,
    /// Partition.
    pub partition: String,
    /// Nodes, as a host list.
    pub nodes: String,
    /// Restart count; see the type's notes.
    pub restarts: Option<u32>,
    /// Start of the run (23.02 and later).
    pub start: Option<UnixTime>,
    /// End of the run (23.02 and later); in a prolog the latest possible one.
    pub end: Option<UnixTime>,
    /// Exit code (epilogs). `0:0` also for cancelled, timed out, preempted and requeued runs.
    pub exit_code: Option<ExitCode>,
    /// Working directory.
    pub work_dir: String,
}

impl HookEnv {
    /// Reads the environment of such a hook.
    pub fn from_env(env: &BTreeMap<String, String>) -> Result<Self, ReadEvidenceError> {
        let env = Env(env);
        let job_id = env.job("SLURM_JOB_ID").or_else(|| env.job("SLURM_JOBID"));
        let nodes = env.text("SLURM_JOB_NODELIST");
        Ok(Self {
            context: env.text("SLURM_SCRIPT_CONTEXT"),
            job_id: Some(job_id.ok_or(ReadEvidenceError {
                variable: "SLURM_JOB_ID",
                expected: "job id",
            })?),
            array_job_id: env.job("SLURM_ARRAY_JOB_ID"),
            array_task_id: env.number("SLURM_ARRAY_TASK_ID"),
            het_job_id: env.job("SLURM_HET_JOB_ID"),
            het_job_offset: env.number("SLURM_HET_JOB_OFFSET"),
            sluid: env.text("SLURM_JOB_SLUID"),
            cluster: env.text("SLURM_CLUSTER_NAME"),
            name: env.raw("SLURM_JOB_NAME"),
            user: env.text("SLURM_JOB_USER"),
            uid: env.number("SLURM_JOB_UID"),
            account: env.text("SLURM_JOB_ACCOUNT"),
            partition: env.text("SLURM_JOB_PARTITION"),
            // Node hooks of 22.05 have the older name only.
            nodes: if nodes.is_empty() {
                env.text("SLURM_NODELIST")
            } else {
                nodes
            },
            restarts: env.number("SLURM_JOB_RESTART_COUNT"),
            start: env.time("SLURM_JOB_START_TIME"),
            end: env.time("SLURM_JOB_END_TIME"),
            exit_code: env.exit_code(),
            work_dir: env.text("SLURM_JOB_WORK_DIR"),
        })
    }
}

struct Env<'a>(&'a BTreeMap<String, String>);

impl Env<'_> {
    fn raw(&self, name: &str) -> String {
        self.0.get(name).cloned().unwrap_or_default()
    }

    fn text(&self, name: &str) -> String {
        self.0
            .get(name)
            .map(|value| crate::parse::text(value))
            .unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.0
            .get(name)?
            .trim()
            .parse()
            .ok()
            .and_then(no_val::real_u32)
    }

    /// Zero stands for "none".
    fn job(&self, name: &str) -> Option<JobId> {
        self.number(name).and_then(JobId::new)
    }

    fn time(&self, name: &str) -> Option<UnixTime> {
        UnixTime::parse(self.0.get(name)?)
    }

    fn required_state(&self) -> Result<JobState, ReadEvidenceError> {
        match JobState::parse(&self.raw("JOBSTATE")) {
            state if state == JobState::default() => Err(ReadEvidenceError {
                variable: "JOBSTATE",
                expected: "job state",
            }),
            state => Ok(state),
        }
    }

    fn exit_code(&self) -> Option<ExitCode> {
        let printed = self.raw("SLURM_JOB_EXIT_CODE2").parse().ok();
        printed.or_else(|| {
            self.raw("SLURM_JOB_EXIT_CODE")
                .trim()
                .parse()
                .ok()
                .map(ExitCode::from_wait_status)
        })
    }
}
