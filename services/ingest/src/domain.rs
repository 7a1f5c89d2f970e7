//! Rules that derive ordered facts from Slurm's records. Pure: no IO, no clock, no randomness.
//!
//! `docs/reference/job-events.md` is the normative table; a test runs every row of it through [`observe`].

mod array;
mod attempt;
mod batch_step_end;
mod confirm;
mod decision;
mod derive;
mod end;
mod evidence;
mod fact;
mod lookup;
mod observation;
mod observe;
mod overwritten_end;
pub mod payload;
mod pending_reason;
mod published;
mod rebuild;
mod rows;
mod run_state;
mod run_store;
mod running;
mod stored_job;
mod suspensions;
#[cfg(test)]
mod tests;
mod usage;

pub use array::{DepartedTasks, compare_submitted, resolve_departed_tasks};
pub use attempt::run_of;
pub use confirm::{Confirmation, KindSource, RECORD_DELAY, confirm, contradict, without_names};
pub use decision::{Decision, LookupTarget, ObservationContext};
pub use evidence::{Evidence, EvidenceError};
pub use fact::{Continuation, Fact, FactId};
pub use lookup::{EndLookup, LookupAnswers, LookupLimits, Resolution, StoredLookup, settle};
pub use observation::{Canceller, EntityKind, Observation, Owner, Record, Returned, mark_returned};
pub use observe::{is_within_another, observe};
pub use published::restore;
pub use rebuild::rebuild;
pub use rows::{fold, parts_of_jobs, provisional};
pub use run_state::{Candidate, End, RunState};
pub use run_store::{LocalRunKey, RunStore};
pub use stored_job::{StoredJob, StoredObservation, StoredRun};
pub use usage::{RunUsage, usages};
