//! Access to the database and to the snapshots on the bus, without decisions.

pub mod snapshots;
pub mod store;
