//! The IO side: no decisions.

pub mod store;
