//! The normative table as a test, and property tests.

mod laws;
pub(super) mod observation;
mod storm;
mod table;
