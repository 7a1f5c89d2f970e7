//! The normative table as a test, and the laws.

mod laws;
pub(super) mod observation;
mod storm;
mod table;
