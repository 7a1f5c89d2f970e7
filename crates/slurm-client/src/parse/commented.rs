//! Rows of squeue with two texts of users, name and comment.

use slurm_types::{JobState, UnixTime};

use super::long::unless_null;
use crate::record::CommentedJob;

/// Columns of squeue: array or job, state, submit, priority, reason, name, comment.
pub(crate) const COMMENTED_COLUMNS: [&str; 7] = ["%F", "%T", "%V", "%Q", "%r", "%j", "%k"];

/// One row; `None` if it cannot be read.
pub(crate) fn commented_job(row: &[&str]) -> Option<CommentedJob> {
    let [id, state, submit, priority, reason, name, comment] = row[..] else {
        return None;
    };
    Some(CommentedJob {
        job_id: id.trim().parse().ok()?,
        state: JobState::parse(state),
        reason: reason.trim().to_owned(),
        priority: priority.trim().parse().ok(),
        submit: UnixTime::parse(submit.trim()),
        name: name.to_owned(),
        comment: unless_null(comment),
    })
}
