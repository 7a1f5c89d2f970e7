//! The pure core: no IO, no clock, no randomness.
//!
//! - [`address`]: which addresses a webhook may never reach.
//! - [`filter`]: which events an endpoint gets, as subjects and as a check.
//! - [`retry`]: what follows from an attempt.
//! - [`slack`]: what people read in a chat.
//! - [`pairing`]: which messages wait a moment for their cost.
//! - [`names`]: ids and names that must stay the same for ever.

pub mod address;
pub mod filter;
pub mod names;
pub mod pairing;
pub mod retry;
pub mod slack;
pub mod text;
