//! The database side: no decisions.

mod append;
pub(crate) mod archive_file;
mod archives;
mod complete;
mod export;
mod index;
mod key_file;
mod page;
mod postgres;
mod proof;
mod read;
mod replay;
mod select;
mod sqlite;
mod store;
mod streams;
mod sums;
mod times;
mod verify;
mod ways;

pub use archive_file::FileError;
pub use archives::{CheckedArchive, Dropper};
pub use complete::Completion;
pub use key_file::KeyFile;
pub use ledger_format::file::ExportReader;
pub use proof::Signed;
pub use read::Row;
pub use replay::Claimed;
pub use store::{LONGEST_QUERY, Store};
pub use streams::{Batch, Position};
pub use verify::schema;
pub use verify::{
    Class, PUBLISHED, Progress, Report, Trust, Unverified, VerifyError, verify_database,
    verify_database_with, verify_everything,
};

/// Whose the tables are, for messages.
const NAME: &str = "ledger";
