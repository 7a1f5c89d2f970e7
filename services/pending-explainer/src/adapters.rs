//! The stored state.

pub mod estimates;
pub mod protobuf;
pub mod store;
