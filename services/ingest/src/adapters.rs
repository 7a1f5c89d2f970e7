//! Access to the key-value store, without decisions.

pub mod fenced;
pub mod store;
