//! Jobs as the controller or accounting shows them to their owner.

use serde::{Deserialize, Serialize};
use slurm_types::{JobBaseState, JobId, JobState, UnixTime};

use crate::SubmitKey;

/// One job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// State. An array's state is that of its remainder, or of one of its tasks.
    pub state: JobState,
    /// True if it is pending and held: it does not start before it is released.
    pub held: bool,
    /// Name.
    pub name: String,
    /// Comment, which begins with the key of a submission of ours.
    pub comment: String,
    /// How often Slurm restarted it; `None` if the source does not say.
    pub restarts: Option<u32>,
    /// When this run was submitted. A requeue changes it.
    pub submit_time: Option<UnixTime>,
    /// Requested memory per node in MiB; `None` if it is per CPU or unknown.
    pub memory_mib: Option<u64>,
    /// Time limit in minutes; `None` if there is none or it is unknown.
    pub time_minutes: Option<u32>,
    /// True if the answer is accounting's: the controller has no record of the job any more.
    pub from_accounting: bool,
}

impl JobStatus {
    /// The key in the comment.
    pub fn key(&self) -> Option<SubmitKey> {
        SubmitKey::in_comment(&self.comment)
    }

    /// Held: pending with priority 0 or a reason that says so.
    pub(crate) fn is_held(state: &JobState, reason: &str, priority: Option<u32>) -> bool {
        let held_reason = matches!(reason, "JobHeldUser" | "JobHeldAdmin");
        state.is(JobBaseState::Pending) && (held_reason || priority == Some(0))
    }
}

/// A record of an array in the controller: of one task, or of all that have not left the array's own record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayRecord {
    /// The task's index. `None`: the tasks that have not left the array's own record.
    pub task: Option<u32>,
    /// State.
    pub state: JobState,
    /// True if it is pending and held.
    pub held: bool,
    /// How often Slurm restarted it.
    pub restarts: u32,
    /// When it ended. A pending or running one has none, or one that is expected.
    pub end: Option<UnixTime>,
}

/// A job that was found by its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundJob {
    /// Its id; an array's own id.
    pub job_id: JobId,
    /// Its key.
    pub key: SubmitKey,
    /// Its status.
    pub status: JobStatus,
}

/// What the controller, then accounting, says of a job id that was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confirmation {
    /// The id exists and has the key.
    Present(JobStatus),
    /// Not in the controller, and accounting has nothing of it, or has it as pending: it was lost before it started. Of a released job this is
    /// certain only as long as slurmdbd is not further behind than `MinJobAge`.
    Absent,
    /// The id exists and belongs to another job: the controller lost ours and gave its id away.
    OtherKey,
    /// The controller or accounting did not answer, or not clearly.
    Unknown(String),
}
