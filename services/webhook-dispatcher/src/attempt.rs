//! One attempt to deliver: whether it may be made now, and what follows from its result. No IO.
//!
//! - [`gate`]: admission by the [`circuit`] breaker, the [rate limit](rate_limit) and the receiver's `Retry-After`.
//! - [`signal`]: what a result says about the endpoint.
//! - [`retry`]: what follows an attempt; [`cause`]: why it failed.

pub mod cause;
pub mod circuit;
pub mod gate;
pub mod retry;
pub mod signal;
