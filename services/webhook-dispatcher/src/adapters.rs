//! The IO side; no decisions.

pub mod http;
pub mod resolver;
pub mod store;
mod writer;
