//! Selects events.
//!
//! - [`filter`]: types ([`type_set`]), users, accounts, partitions, clusters and a condition; the bus subjects that cover them.
//! - [`expression`]: the language of conditions, limited in time and memory; [`template`]: texts with expressions in them.
//! - [`decoded_event`]: an event with what is computed of it once for all filters.
//! - [`fields`]: an event as expressions and templates see it; [`price`]: the amounts of its cost.
//! - [`routine`]: events that are no news to a reader.
//! - [`sample`]: an event of every type, to check expressions and templates with.
//!
//! Everything is pure: events go in, decisions come out. Deliberately absent: IO, async, clocks, and what is done with an
//! event that was selected.

pub mod decoded_event;
pub mod expression;
pub mod fields;
pub mod filter;
pub mod price;
pub mod routine;
pub mod sample;
pub mod template;
pub mod type_set;

pub use decoded_event::DecodedEvent;
pub use expression::{Expression, InvalidExpression};
pub use filter::{CostUnknown, Filter, TypePattern};
pub use template::{InvalidTemplate, Template};
pub use type_set::TypeSet;
