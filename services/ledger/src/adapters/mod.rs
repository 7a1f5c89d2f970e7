//! The database side: no decisions.

mod append;
mod index;
mod key_file;
mod postgres;
mod proof;
mod read;
mod select;
mod sqlite;
mod store;
mod sums;
mod verify;

pub use key_file::KeyFile;
pub use proof::Signed;
pub use read::Row;
pub use store::Store;
pub use verify::{Progress, Trust, VerifyError, verify_database, verify_database_with};

/// Whose the tables are, for messages.
const NAME: &str = "ledger";
