//! Streams, consumers, key-value buckets and roles as data.
//!
//! Set-up, permissions and the tables of `docs/reference/bus.md` and `events.md` come from here and from nowhere else.

mod accounts;
mod buckets;
mod consumers;
mod permissions;
mod streams;

pub use accounts::*;
pub use buckets::*;
pub use consumers::*;
pub use permissions::*;
pub use streams::*;
