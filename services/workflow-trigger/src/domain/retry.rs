//! Retries by cause: a job that ended for want of something runs again with more of it.
//!
//! | cause | retry |
//! | --- | --- |
//! | `job.out_of_memory` | memory × factor, or 1.2 × the measured peak if that is more, up to `memory_max` |
//! | `job.timeout` | time × factor, up to `time_max` |
//! | `job.node_fail`, `job.boot_fail` | the same job, without the failed node |
//! | `job.preempted` | the same job |
//! | `job.failed` | the same job, for the listed exit codes |
//! | others, `job.cancelled` among them | none: somebody decided it |
//!
//! A task of an array is retried together with the others of the array that failed, see [`super::array`].
//!
//! A job that Slurm requeues by itself is left alone: two retry mechanisms are the classical cause of duplicates.

use mesh_events::EventType;
use mesh_events::proto::mesh::job::v1::Job;
use slurm_submit::JobUpdate;
use slurm_types::{JobId, Tres};

use super::array::FailedTask;
use super::planned_action::PlannedAction;

/// How a rule retries.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Factor of the memory. `None`: memory stays as it is, and `job.out_of_memory` is not retried.
    pub memory_factor: Option<f64>,
    /// Most memory per node in MiB.
    pub memory_max_mib: Option<u64>,
    /// Factor of the time limit. `None`: it stays, and `job.timeout` is not retried.
    pub time_factor: Option<f64>,
    /// Longest time limit in minutes.
    pub time_max_minutes: Option<u32>,
    /// Partition of the retry.
    pub partition: Option<String>,
    /// Exit codes of `job.failed` that are retried.
    pub exit_codes: Vec<u32>,
    /// Largest number of retries of one job by this rule.
    pub attempts: u32,
}

/// Why a job is not retried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRetry {
    /// The cause is not one that a retry can help.
    #[error("no retry after {0}")]
    Cause(EventType),
    /// The rule does not say how.
    #[error("no retry after {cause}: the rule has no {key}")]
    NotConfigured {
        /// The event.
        cause: EventType,
        /// The key.
        key: &'static str,
    },
    /// The exit code is not listed.
    #[error("exit code {0} is not in retry.exit_codes")]
    ExitCode(u32),
    /// It has the most already.
    #[error("{what} is at {max} already, the most that the rule allows")]
    AtMost {
        /// Memory or time.
        what: &'static str,
        /// The key with the limit.
        max: &'static str,
    },
    /// The event does not say what is needed.
    #[error("the event does not tell the job's {0}")]
    Unknown(&'static str),
    /// It is no batch job: Slurm cannot run it again.
    #[error("not a batch job: Slurm cannot run it again")]
    NotBatch,
}

impl NoRetry {
    /// True if the event is simply not one that the rule retries, as most of a wide filter are.
    pub const fn is_no_match(&self) -> bool {
        matches!(
            self,
            Self::Cause(_) | Self::NotConfigured { .. } | Self::ExitCode(_) | Self::NotBatch
        )
    }
}

/// The retry of a job after an event.
///
/// # Errors
/// Why there is none.
pub fn plan(policy: &RetryPolicy, kind: EventType, job: &Job) -> Result<PlannedAction, NoRetry> {
    if !job.batch {
        return Err(NoRetry::NotBatch);
    }
    let mut changes = JobUpdate {
        partition: policy.partition.clone(),
        ..JobUpdate::default()
    };
    let missing = |key| NoRetry::NotConfigured { cause: kind, key };
    match kind {
        EventType::JobOutOfMemory => {
            let factor = policy
                .memory_factor
                .ok_or_else(|| missing("retry.memory"))?;
            changes.memory = Some(more_memory(job, factor, policy.memory_max_mib)?);
        }
        EventType::JobTimeout => {
            let factor = policy.time_factor.ok_or_else(|| missing("retry.time"))?;
            changes.time = Some(more_time(job, factor, policy.time_max_minutes)?);
        }
        EventType::JobNodeFail | EventType::JobBootFail => {
            if !job.failed_node.is_empty() {
                changes.exclude = Some(job.failed_node.clone());
            }
        }
        EventType::JobPreempted => {}
        EventType::JobFailed => {
            let code = job.exit_code.as_ref().map_or(0, |exit| exit.code);
            if !policy.exit_codes.contains(&code) {
                return Err(NoRetry::ExitCode(code));
            }
        }
        other => return Err(NoRetry::Cause(other)),
    }
    if let Some(task) = FailedTask::of(kind, job) {
        let first = FailedTask { changes, ..task };
        return Ok(PlannedAction::RerunTasks { first });
    }
    Ok(PlannedAction::Rerun {
        job_id: JobId::new(job.job_id).ok_or(NoRetry::Unknown("id"))?,
        task: None,
        restarts: job.restarts.unwrap_or(0),
        changes,
    })
}

/// Memory per node in MiB. 22.05's controller shows of a job that started only what it got.
fn more_memory(job: &Job, factor: f64, max: Option<u64>) -> Result<u64, NoRetry> {
    let per_node = |text: &str| {
        let (tres, _) = Tres::parse_lossy(text);
        Some(tres.mem_mib()?.div_ceil(tres.nodes().max(1)))
    };
    let now = per_node(&job.req_tres).or_else(|| per_node(&job.alloc_tres));
    let now = now.ok_or(NoRetry::Unknown("memory"))?;
    let peak = job
        .usage
        .as_ref()
        .map_or(0, |usage| usage.max_rss_kib / 1024);
    let wanted = times(now, factor).max(times(peak, 1.2));
    at_most(now, wanted, max, "memory", "retry.memory_max")
}

fn more_time(job: &Job, factor: f64, max: Option<u32>) -> Result<u32, NoRetry> {
    let now = job
        .time_limit_minutes
        .ok_or(NoRetry::Unknown("time limit"))?;
    let (now, max) = (u64::from(now), max.map(u64::from));
    let minutes = at_most(now, times(now, factor), max, "time", "retry.time_max")?;
    u32::try_from(minutes).map_err(|_| NoRetry::Unknown("time limit"))
}

fn times(amount: u64, factor: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "MiB and minutes are far below 2^52, and factors are positive"
    )]
    let product = (amount as f64 * factor).ceil() as u64;
    product
}

fn at_most(
    now: u64,
    wanted: u64,
    max: Option<u64>,
    what: &'static str,
    key: &'static str,
) -> Result<u64, NoRetry> {
    let amount = wanted.min(max.unwrap_or(u64::MAX));
    match amount > now {
        true => Ok(amount),
        false => Err(NoRetry::AtMost { what, max: key }),
    }
}

#[cfg(test)]
mod tests {
    use event_filter::sample;

    use super::*;

    fn policy() -> RetryPolicy {
        RetryPolicy {
            memory_factor: Some(1.5),
            memory_max_mib: Some(20 * 1024),
            time_factor: Some(1.5),
            time_max_minutes: None,
            partition: None,
            exit_codes: vec![75],
            attempts: 3,
        }
    }

    fn changes(kind: EventType, job: &Job) -> Result<JobUpdate, NoRetry> {
        match plan(&policy(), kind, job)? {
            PlannedAction::RerunTasks { first } => Ok(first.changes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_cause_gets_more_of_what_it_lacked() {
        let mut job = sample::job();
        let memory = |mib| {
            Ok(JobUpdate {
                memory: Some(mib),
                ..JobUpdate::default()
            })
        };
        // 32 GiB on two nodes: 16 GiB each, half as much again is more than the rule allows.
        assert_eq!(changes(EventType::JobOutOfMemory, &job), memory(20 * 1024));
        let time = changes(EventType::JobTimeout, &job).map(|changes| changes.time);
        assert_eq!(time, Ok(Some(180)));
        job.failed_node = "n2".into();
        let exclude = changes(EventType::JobNodeFail, &job).map(|changes| changes.exclude);
        assert_eq!(exclude, Ok(Some("n2".into())));
        job.req_tres = "cpu=1,mem=1G,node=1".into();
        // The measured peak of 12 GB says more than the request.
        assert_eq!(changes(EventType::JobOutOfMemory, &job), memory(14_062));
        // As 22.05's controller shows a job.
        job.req_tres = String::new();
        job.alloc_tres = "cpu=2,mem=24G,node=2".into();
        let allocated = changes(EventType::JobOutOfMemory, &job);
        assert_eq!(allocated, memory(18 * 1024));
        job.alloc_tres = String::new();
        let unknown = changes(EventType::JobOutOfMemory, &job);
        assert_eq!(unknown, Err(NoRetry::Unknown("memory")));
    }

    #[test]
    fn a_task_of_an_array_is_retried_with_its_array() {
        let mut job = sample::job();
        let planned = |job: &Job| plan(&policy(), EventType::JobTimeout, job).unwrap();
        let task = planned(&job);
        assert_eq!(task.target().map(JobId::get), Some(1230));
        assert!(matches!(task, PlannedAction::RerunTasks { first } if first.task == 4));
        job.array = None;
        let alone = planned(&job);
        assert_eq!(alone.target().map(JobId::get), Some(1234));
        assert!(matches!(alone, PlannedAction::Rerun { .. }));
    }

    #[test]
    fn some_ends_are_never_retried() {
        let mut job = sample::job();
        assert_eq!(
            changes(EventType::JobCancelled, &job),
            Err(NoRetry::Cause(EventType::JobCancelled))
        );
        assert_eq!(
            changes(EventType::JobRequeued, &job),
            Err(NoRetry::Cause(EventType::JobRequeued)),
            "Slurm runs it again by itself"
        );
        assert_eq!(
            changes(EventType::JobFailed, &job),
            Err(NoRetry::ExitCode(1))
        );
        job.req_tres = "cpu=1,mem=20G,node=1".into();
        assert!(matches!(
            changes(EventType::JobOutOfMemory, &job),
            Err(NoRetry::AtMost { .. })
        ));
        job.batch = false;
        assert_eq!(changes(EventType::JobTimeout, &job), Err(NoRetry::NotBatch));
    }
}
