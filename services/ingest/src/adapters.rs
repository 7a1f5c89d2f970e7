//! The IO side: no decisions.

pub mod fenced;
pub mod store;
