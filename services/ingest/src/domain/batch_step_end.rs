//! The end of a run according to its batch step. It has the time of the end, and the state as far as a step knows it.

use slurm_client::{AccountingRecord, StepUsage};
use slurm_types::{JobBaseState, JobFlag};

/// Largest difference between the ends of a batch step and of its run, in seconds.
pub(super) const ROUNDING_SECONDS: i64 = 1;
/// End of a run according to its batch step, if its row has only the requeue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchStepEnd {
    /// Final state, if the step shows it. A step that was stopped does not show why.
    pub(super) base: Option<JobBaseState>,
    /// Unix seconds.
    pub(super) at: i64,
}

impl BatchStepEnd {
    /// Reads the end from a REQUEUED row, if its batch step ended by then.
    pub(super) fn of(row: &AccountingRecord, steps: &[StepUsage]) -> Option<Self> {
        let is_requeued =
            row.ended() && row.state.base.is_none() && row.state.has(JobFlag::Requeued);
        let batch = steps.iter().find(|step| step.id == "batch")?;
        let at = batch.end.filter(|at| is_requeued && Some(*at) <= row.end)?;
        let is_known = |base: &JobBaseState| {
            matches!(
                base,
                JobBaseState::Completed | JobBaseState::Failed | JobBaseState::OutOfMemory
            )
        };
        Some(Self {
            base: batch.state.filter(is_known),
            at: at.as_secs(),
        })
    }

    /// Returns the seconds between the end and the requeue; 0 if the end did not certainly come first.
    pub(super) fn seconds_before(&self, requeued: Option<i64>) -> u64 {
        let seconds = requeued.map_or(0, |requeued| requeued - self.at);
        let seconds = Some(seconds).filter(|seconds| *seconds > ROUNDING_SECONDS);
        u64::try_from(seconds.unwrap_or_default()).unwrap_or_default()
    }
}
