//! The database side: no decisions.

mod append;
mod index;
mod read;
mod sqlite;
mod verify;

pub use read::Row;
pub use sqlite::Store;
pub use verify::{Progress, VerifyError, verify_database};
