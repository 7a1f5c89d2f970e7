//! The endpoints that this dispatcher owns.
//!
//! - [`registry`]: definitions, of `mesh.toml` and of the API; [`vault`]: their secrets at rest; [`reload`]: changes of
//!   `mesh.toml`.
//! - [`worker_pool`]: takes and releases endpoints; [`active_endpoint`]: start and stop of one; [`removal`]: its end.
//! - [`replay_listener`]: endpoints to which something is replayed.

pub mod active_endpoint;
pub mod registry;
pub(crate) mod reload;
pub mod removal;
pub mod replay_listener;
pub mod vault;
pub mod worker_pool;
