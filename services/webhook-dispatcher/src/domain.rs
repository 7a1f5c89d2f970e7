//! The pure core: no IO, no clock, no randomness.
//!
//! - [`address`]: addresses that a webhook must never reach; [`bypass`]: receivers that are reached without the
//!   proxy.
//! - [`filter`]: the events an endpoint receives, as NATS subjects and as a predicate.
//! - [`retry`]: what follows an attempt; [`cause`]: why an attempt failed, and who can fix it.
//! - [`success`]: HTTP statuses that count as delivered.
//! - [`gate`]: when an endpoint may be sent to, by its [`circuit`] breaker, its [`rate`] limit and the receiver's
//!   `Retry-After`.
//! - [`decoded_event`]: an event, decoded once for all endpoints.
//! - [`message`]: the text people read; [`format`]: the request for each target, and the meaning of its response.
//! - [`fields`]: an event as seen by [`expression`]s and templates; [`sample`]: events to test them with.
//! - [`digest`]: the tasks of an array as a few messages.
//! - [`price`]: the amounts of a cost that a price stands behind.
//! - [`pairing`]: which messages wait for their cost; [`pending`]: when a pending job is reported.
//! - [`clock`]: limits the effect of a host clock that is temporarily ahead.
//! - [`routine`]: events that chats do not show by default.
//! - [`ownership`]: which dispatcher owns which endpoint.
//! - [`delivery_position`]: cursor of a page of deliveries.
//! - [`redactor`]: removes secrets from recorded or displayed text.
//! - [`names`]: ids and names that must never change.

pub mod address;
pub mod bypass;
pub mod cause;
pub mod circuit;
pub mod clock;
pub mod cursor;
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
pub mod price;
pub mod rate;
pub mod redactor;
pub mod retry;
pub mod routine;
pub mod sample;
pub mod subscription;
pub mod success;
pub mod text;
