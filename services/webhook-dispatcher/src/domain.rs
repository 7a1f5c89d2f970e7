//! The pure core: no IO, no clock, no randomness.
//!
//! - [`address`]: which addresses a webhook may never reach; [`bypass`]: which the proxy is not used for.
//! - [`filter`]: which events an endpoint gets, as subjects and as a check.
//! - [`retry`]: what follows from an attempt; [`cause`]: why one failed, and who can mend it.
//! - [`success`]: which statuses are an arrival.
//! - [`gate`]: when an endpoint may be sent something, by its [`circuit`], its [`rate`] and what its receiver asks for.
//! - [`fact`]: an event, read once for all it goes to.
//! - [`message`]: what people read, and [`format`]: what each target gets and what its answer means.
//! - [`fields`]: an event as [`expression`]s and templates see it; [`sample`]: events to try them on.
//! - [`digest`]: an array's tasks as a few messages.
//! - [`pairing`]: which messages wait a moment for their cost; [`pending`]: when people are told that a job is pending.
//! - [`clock`]: what a clock that is set ahead and comes back may not change.
//! - [`routine`]: what chats are not told of by default.
//! - [`ownership`]: which dispatcher is at work on which endpoint.
//! - [`place`]: where a list goes on.
//! - [`redactor`]: no secret in what is recorded or shown.
//! - [`names`]: ids and names that must stay the same for ever.

pub mod address;
pub mod bypass;
pub mod cause;
pub mod circuit;
pub mod clock;
pub mod decoded_event;
pub mod delivery_position;
pub mod digest;
pub mod expression;
pub mod fields;
pub mod filter;
pub mod format;
pub mod gate;
pub mod message;
pub mod names;
pub mod ownership;
pub mod pairing;
pub mod pending;
pub mod rate;
pub mod redactor;
pub mod retry;
pub mod routine;
pub mod sample;
pub mod success;
pub mod text;
