//! The normative table as a test, and the laws.

mod laws;
pub(super) mod reading;
mod storm;
mod table;
