//! Access to the key-value store, without decisions.

pub mod chunks;
pub mod fenced;
pub mod meta;
pub mod shards;
pub mod store;
