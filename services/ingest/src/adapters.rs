//! Access to the key-value store, without decisions.

pub mod capture_state;
pub mod chunks;
pub mod fenced;
pub mod shards;
pub mod store;
