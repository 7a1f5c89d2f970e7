//! The normative table as a test, and the laws.

mod laws;
mod reading;
mod storm;
mod table;
