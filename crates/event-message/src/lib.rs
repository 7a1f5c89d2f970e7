//! Events as messages for people, and as requests for chats, incidents, workflows and pipelines.
//!
//! - [`message`]: a message, independent of the chat that displays it, and the message of each event.
//! - [`mod@format`]: the requests of each format, and the meaning of their responses ([`attempt_outcome`], [`success_codes`]).
//! - [`digest`]: the tasks of an array as a few messages; [`pairing`]: which messages wait for their cost; [`pending`]:
//!   when a pending job is reported; [`cancellation`]: when a cancellation by somebody unknown is; [`schedule`]: when something planned is due.
//! - [`test_job`]: the event of a test; [`text`]: amounts and durations for people.
//!
//! Text from outside (names, paths, reasons) is stored unmodified; every layout escapes and truncates it. Everything is
//! pure. Deliberately absent: IO, async, clocks, randomness, and which events somebody wants (`event-filter`).

pub mod attempt_outcome;
pub mod cancellation;
pub mod digest;
pub mod format;
mod link;
mod markup;
pub mod message;
pub mod pairing;
pub mod pending;
pub mod schedule;
pub mod success_codes;
pub mod test_job;
pub mod text;

pub use link::Link;
pub use markup::{Dialect, Span, Text, clean, units};
pub use message::job::person;
pub use message::{DEFAULT_TYPES, Message, MessageField, Notice, Severity};
