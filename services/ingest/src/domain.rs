//! The rules: from what Slurm's records say to ordered facts. Pure: no IO, no clock, no randomness.
//!
//! `docs/reference/job-events.md` is the normative table; a test runs every row of it through [`observe`].

mod array;
mod attempt;
mod book;
mod confirm;
mod derive;
mod evidence;
mod observe;
mod own_end;
mod question;
mod rows;
mod running;
mod sighting;
pub mod snapshot;
#[cfg(test)]
mod tests;
mod tracked;
mod usage;
mod waiting;

pub use array::{Remainder, compare_submitted, settle_remainder};
pub use attempt::run_of;
pub use book::{Book, ShortKey};
pub use confirm::{Confirmation, confirm, contradict, without_names};
pub use derive::{Continues, Fact, FactId};
pub use evidence::{Evidence, EvidenceError};
pub use observe::{Ask, Decision, Look, observe};
pub use question::{Answers, Limits, Question, Settlement, StoredQuestion, settle};
pub use rows::{fold, parts_of_jobs, provisional};
pub use sighting::{EntityKind, Owner, Record, Sighting};
pub use tracked::{Candidate, End, Tracked};
pub use usage::{Settled, usages};
