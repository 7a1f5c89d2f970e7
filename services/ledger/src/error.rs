//! Errors of the ledger.

use std::path::PathBuf;
use std::time::Duration;

use mesh_db::Location;

use crate::adapters::ArchiveFileError;

/// A failed operation of the ledger.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The section `[ledger]` is invalid.
    #[error("{fault}")]
    Config {
        /// The fault, with the key.
        fault: String,
    },
    /// The database could not be opened or migrated.
    #[error(transparent)]
    Database(#[from] mesh_db::Error),
    /// The ledger's file does not exist.
    #[error("open ledger {}: no such file; check ledger.db.url and mesh.data_dir", .0.display())]
    NotThere(PathBuf),
    /// The database took too long to store a batch.
    #[error(
        "append to ledger: no answer within {0:?}; check that the database is reachable and nothing locks the head row"
    )]
    TooSlow(Duration),
    /// The ledger was restored to an earlier state. Nothing is appended, because the next entries
    /// existed before, perhaps in another order.
    #[error(
        "append to ledger: it has {entries} entries, but a checkpoint of {signed} was signed; restore the rest with `smesh ledger resume`"
    )]
    SetBack {
        /// Number of entries.
        entries: u64,
        /// Size of the largest known checkpoint.
        signed: u64,
    },
    /// Another process appended to a ledger that is being resumed.
    #[error(
        "resume ledger: its last entry is {entries}, not {after}: another process appends to it; try again"
    )]
    Moved {
        /// Actual number of entries.
        entries: u64,
        /// Expected number of entries.
        after: u64,
    },
    /// The lost end of a restored ledger cannot be recovered.
    #[error("resume ledger: {0}")]
    NotResumed(String),
    /// Entries could not be stored. Nothing of the batch is stored.
    #[error("append to ledger")]
    Append(#[source] sqlx::Error),
    /// The ledger could not be read.
    #[error("read ledger")]
    Read(#[source] sqlx::Error),
    /// Missing index rows could not be filled.
    #[error("index ledger")]
    Index(#[source] sqlx::Error),
    /// A stored body cannot be decoded: the database was changed from outside.
    #[error("read ledger entry {seq}: its body was changed; run `smesh verify`")]
    Corrupt {
        /// Sequence of the entry.
        seq: i64,
    },
    /// Published messages could not be read.
    #[error(transparent)]
    Bus(mesh_bus::Error),
    /// A checkpoint could not be stored.
    #[error("store checkpoint")]
    Sign(#[source] sqlx::Error),
    /// A range could not be recorded as archived, or its payloads could not be deleted.
    #[error("archive old payloads of the ledger")]
    Retain(#[source] sqlx::Error),
    /// Archives must be signed, and this process cannot sign.
    #[error("archive old payloads of the ledger: {0}")]
    Unsigned(String),
    /// The ledger was restored to an earlier state, so nothing of it is signed or deleted.
    #[error(
        "archive old payloads of the ledger: refused, because it has {entries} entries, but a checkpoint of {signed} was signed; restore the rest with `smesh ledger resume` first"
    )]
    NotRetained {
        /// Number of entries.
        entries: u64,
        /// Size of the largest known checkpoint.
        signed: u64,
    },
    /// The ledger did not sign a recorded range.
    #[error(
        "the table archives lists entries {first_seq} to {last_seq} as archived or erased without a signature of this ledger: retention stops; run `smesh verify`"
    )]
    ForgedArchive {
        /// Sequence of the first entry.
        first_seq: i64,
        /// Sequence of the last entry.
        last_seq: i64,
    },
    /// An archive file could not be written, or is invalid.
    #[error("archive {}", path.display())]
    Archive {
        /// Path of the file or its folder.
        path: PathBuf,
        /// Cause.
        #[source]
        source: ArchiveFileError,
    },
    /// The database is not a ledger.
    #[error("open ledger {0}: it has no ledger tables; check the address")]
    NotALedger(Location),
    /// The tables are those of another version.
    #[error("open ledger {location}: its tables are those of {whose}")]
    OtherVersion {
        /// Database address.
        location: Location,
        /// Version of the tables, and what to do.
        whose: &'static str,
    },
    /// The progress of a replay could not be stored.
    #[error("store replay")]
    Replay(#[source] sqlx::Error),
    /// A stored replay cannot be decoded: the database was changed from outside.
    #[error("read replay {0}: its row is damaged; delete it from the table replays")]
    CorruptReplay(String),
    /// The private key file could not be read or written.
    #[error("read or write signing key {}", path.display())]
    KeyFile {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The private key file is invalid.
    #[error("read signing key {}: {fault}", path.display())]
    KeyUnfit {
        /// Path of the file.
        path: PathBuf,
        /// The fault.
        fault: String,
    },
    /// Too few witnesses cosigned a checkpoint, or no witness can be contacted.
    #[error("sign checkpoint: {0}")]
    Witness(String),
    /// No checkpoint is signed, because it would contradict an earlier one.
    #[error("sign checkpoint: refused, because {0}; run `smesh verify`")]
    Inconsistent(String),
    /// This replica has no key to sign with.
    #[error("sign checkpoint: {0}")]
    NoKey(String),
    /// The head is not a sequence and a hash: the database was changed from outside.
    #[error("read the ledger's head: it was changed; run `smesh verify`")]
    CorruptHead,
}

impl Error {
    const fn cause(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Append(source)
            | Self::Sign(source)
            | Self::Retain(source)
            | Self::Replay(source)
            | Self::Read(source)
            | Self::Index(source) => Some(source),
            _ => None,
        }
    }

    /// True if a query exceeded its time limit.
    pub fn is_timeout(&self) -> bool {
        self.cause().is_some_and(mesh_db::is_timeout)
    }

    /// True if the failure is transient, such as a restart or a network outage.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Database(error) => error.is_unavailable(),
            Self::TooSlow(_) => true,
            _ => self.cause().is_some_and(mesh_db::is_unavailable),
        }
    }
}
