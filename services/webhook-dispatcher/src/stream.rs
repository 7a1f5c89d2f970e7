//! Events of a stream on their way to endpoints.
//!
//! - [`event`]: an event, decoded once for all endpoints ([`event_cache`]).
//! - [`subscription`]: the index of the endpoints that an event concerns.
//! - [`queue`]: the bounded queue of an endpoint; [`cursor`]: its position in the stream.

pub mod cursor;
pub mod event;
pub mod event_cache;
pub mod queue;
pub mod subscription;

/// The service's name in subjects and entries.
pub const SERVICE: &str = "webhook-dispatcher";
