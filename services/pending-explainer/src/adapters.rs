//! The stored state.

pub mod protobuf;
pub mod store;
