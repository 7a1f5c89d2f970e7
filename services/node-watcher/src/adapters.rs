//! The stored state.

pub mod store;
