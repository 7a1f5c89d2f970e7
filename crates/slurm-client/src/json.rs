//! Converts JSON of slurmrestd (v0.0.36 to v0.0.45) and of `--json` to records. Pure; survives any document.
//!
//! JSON quotes texts of users, so nothing can be forged. Differences between versions are resolved field by field: a state is a word
//! (22.05) or a list of words, a number is a number or `{set, infinite, number}` (24.11), a list may be a text with commas.

/// "Nothing found with query": 22.05's empty response about accounting.
pub(crate) const NOTHING_FOUND: i64 = 9003;

mod accounting;
mod answer;
mod association;
mod fields;
mod job;
mod node;
mod partition;
mod usage;

pub(crate) use accounting::{ExitCodes, accounting};
pub(crate) use answer::{Answer, Envelope, answer, envelope};
pub(crate) use association::{Association, association, user};
pub(crate) use fields::Fields;
pub(crate) use job::{job, queue_row, running_row};
pub(crate) use node::node;
pub(crate) use partition::partition;
pub(crate) use usage::usage;

#[cfg(test)]
mod tests;
