//! Database access. Contains no decisions.

mod access_path;
mod append;
pub(crate) mod archive_file;
mod archives;
mod block_ranges;
mod checkpoint_rows;
mod conditions;
mod event_index;
mod events;
mod export;
mod index_backfill;
mod key_file;
mod page;
mod payload_eraser;
mod postgres;
mod proof;
mod replay;
mod sequence_range;
mod sqlite;
mod stats;
mod store;
mod streams;
mod tables;
mod verify;

pub use archive_file::ArchiveFileError;
pub use archives::AuthenticatedArchive;
pub use events::EntryRow;
pub use index_backfill::BackfillProgress;
pub use key_file::KeyFile;
pub use ledger_format::file::ExportReader;
pub use payload_eraser::PayloadEraser;
pub use proof::SignedCheckpoint;
pub use replay::ReplayLease;
pub use store::{DEFAULT_QUERY_TIMEOUT, Store};
pub use streams::{BatchSequences, StreamPosition};
pub use verify::schema;
pub use verify::{
    Class, EXPORTED, Elsewhere, INTEGRITY_CACHE_KIB, PUBLISHED, RemovedAudit, TrustAnchors,
    UnverifiedLedger, VerifyError, VerifyProgress, VerifyReport, verify_database,
    verify_database_with, verify_everything,
};
