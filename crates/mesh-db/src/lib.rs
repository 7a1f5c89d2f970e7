//! A service's tables on SQLite or PostgreSQL: one behaviour, whichever it is.
//!
//! - [`Location`]: where the tables are, as the configuration says it.
//! - [`sqlite`], [`postgres`]: how either is opened, so that a commit is durable when it is answered, and brought to its version.
//! - [`pool`], [`sql`]: connections and statements for both, also about many rows at once.
//! - [`damage`]: files of SQLite of which not every page can be read.
//!
//! Deliberately absent: tables and queries. Each service has its own.

pub mod damage;
pub mod error;
mod given;
pub mod location;
pub mod pool;
pub mod postgres;
pub mod sql;
pub mod sqlite;

pub use error::{Error, is_away, is_too_long};
pub use location::Location;
