//! Actions as an intent has them, with the values of one event.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slurm_submit::{JobUpdate, Submission};
use slurm_types::{JobId, JobRef};

use super::array::{ArrayTask, FailedTask};

/// What an intent does. Stored when it is planned, so that a later change of the rule does not change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum PlannedAction {
    /// Submits a job.
    Submit {
        /// The job.
        job: Box<Submission>,
    },
    /// Acts on a job.
    Act {
        /// The job.
        job_id: JobId,
        /// The task of an array that it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<ArrayTask>,
        /// What is done.
        action: slurm_submit::Action,
    },
    /// Publishes an event.
    Publish {
        /// Its type.
        event_type: String,
        /// Its data.
        data: BTreeMap<String, String>,
    },
    /// Tells the owner something.
    Notify {
        /// The text.
        text: String,
        /// Its data.
        data: BTreeMap<String, String>,
    },
    /// Puts a job back into the queue, changes it and lets it run again.
    Rerun {
        /// The job.
        job_id: JobId,
        /// The task of an array that it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<ArrayTask>,
        /// Its restarts before. A job that Slurm itself has requeued has more.
        restarts: u32,
        /// What changes.
        changes: JobUpdate,
    },
    /// Does that with the tasks of an array that failed. Those that join the run are stored beside it.
    RerunTasks {
        /// The one that failed first.
        first: FailedTask,
    },
}

impl PlannedAction {
    /// The job that it acts on. `None` for a submission.
    pub const fn target(&self) -> Option<JobId> {
        match self {
            Self::Submit { .. } | Self::Publish { .. } | Self::Notify { .. } => None,
            Self::Act { job_id, .. } | Self::Rerun { job_id, .. } => Some(*job_id),
            Self::RerunTasks { first } => Some(first.array),
        }
    }

    /// True if a job runs because of it, which the guards count.
    pub const fn starts_job(&self) -> bool {
        matches!(
            self,
            Self::Submit { .. } | Self::Rerun { .. } | Self::RerunTasks { .. }
        )
    }

    /// What it does, for people.
    pub fn summary(&self) -> String {
        match self {
            Self::Submit { job } if job.args.is_empty() => "submit a job".to_owned(),
            Self::Submit { job } => format!("submit a job with {:?}", job.args),
            Self::Act {
                job_id,
                task,
                action,
            } => format!("{} job {}", verb(action), reference(*job_id, *task)),
            Self::Publish { event_type, .. } => format!("publish {event_type}"),
            Self::Notify { .. } => "send a message".to_owned(),
            Self::Rerun { job_id, task, .. } => {
                format!("run job {} again", reference(*job_id, *task))
            }
            Self::RerunTasks { first } => {
                format!("run the failed tasks of array {} again", first.array)
            }
        }
    }
}

/// The job's name in requests.
pub fn reference(job_id: JobId, task: Option<ArrayTask>) -> JobRef {
    task.map_or(JobRef::Job(job_id), ArrayTask::reference)
}

const fn verb(action: &slurm_submit::Action) -> &'static str {
    match action {
        slurm_submit::Action::Hold => "hold",
        slurm_submit::Action::Release => "release",
        slurm_submit::Action::Cancel => "cancel",
        slurm_submit::Action::Signal { .. } => "signal",
        slurm_submit::Action::Update(_) => "update",
        slurm_submit::Action::Requeue | slurm_submit::Action::RequeueHold => "requeue",
    }
}
