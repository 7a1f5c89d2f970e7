//! The database side: no decisions.

mod append;
mod index;
mod pool;
mod postgres;
mod read;
mod select;
mod sql;
mod sqlite;
mod store;
mod sums;
mod verify;

pub use read::Row;
pub use store::Store;
pub use verify::{Progress, VerifyError, verify_database};
