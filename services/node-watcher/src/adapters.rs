//! The IO side: stored state.

pub mod store;
