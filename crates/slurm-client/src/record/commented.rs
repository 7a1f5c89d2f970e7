//! Jobs with their comments.

use slurm_types::{JobId, JobState, UnixTime};

/// One job, array task or array remainder, with its comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommentedJob {
    /// Its id; the array's id for a task or a remainder.
    pub job_id: JobId,
    /// State.
    pub state: JobState,
    /// Reason keyword, as squeue prints it.
    pub reason: String,
    /// Priority; 0 means held.
    pub priority: Option<u32>,
    /// When this run was submitted.
    pub submit: Option<UnixTime>,
    /// Name given by the user. May contain anything, including newlines.
    pub name: String,
    /// Comment of the user. May contain anything, too.
    pub comment: String,
}
