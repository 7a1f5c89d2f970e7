//! The IO side: stored state.

pub mod protobuf;
pub mod store;
