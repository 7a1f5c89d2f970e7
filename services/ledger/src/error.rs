//! What can go wrong.

use std::path::PathBuf;
use std::time::Duration;

use mesh_db::Location;

use crate::adapters::ArchiveFileError;

/// An operation of the ledger that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The section `[ledger]` does not name a database.
    #[error("{fault}")]
    Config {
        /// What is wrong, with the key.
        fault: String,
    },
    /// The database could not be opened or brought to this version.
    #[error(transparent)]
    Database(#[from] mesh_db::Error),
    /// There is no ledger.
    #[error("open ledger {}: no such file; check ledger.db.url and mesh.data_dir", .0.display())]
    NotThere(PathBuf),
    /// The database took too long to store a batch.
    #[error(
        "append to ledger: no answer within {0:?}; is the database reachable, and nobody locking its head?"
    )]
    TooSlow(Duration),
    /// Nothing is appended to a ledger that was set back: what comes next was appended before, maybe in another order.
    #[error(
        "append to ledger: it has {entries} entries, and a checkpoint of {signed} was signed; bring back the rest with `smesh ledger resume`"
    )]
    SetBack {
        /// Entries it has.
        entries: u64,
        /// Entries of the greatest checkpoint that is known.
        signed: u64,
    },
    /// Somebody else appended to a ledger that is being resumed.
    #[error(
        "resume ledger: its last entry is {entries}, not {after}: somebody else appends to it; try again"
    )]
    Moved {
        /// Entries it has.
        entries: u64,
        /// Entries it should have.
        after: u64,
    },
    /// The end of a ledger that was set back cannot be brought back.
    #[error("resume ledger: {0}")]
    NotResumed(String),
    /// Facts could not be stored; none of the batch is.
    #[error("append to ledger")]
    Append(#[source] sqlx::Error),
    /// The ledger could not be read.
    #[error("read ledger")]
    Read(#[source] sqlx::Error),
    /// The columns for queries could not be filled again.
    #[error("index ledger")]
    Index(#[source] sqlx::Error),
    /// A stored body cannot be read: the database was changed from outside.
    #[error("read ledger entry {seq}: its body is not what was stored; run `smesh verify`")]
    Corrupt {
        /// Sequence.
        seq: i64,
    },
    /// What was published before could not be read.
    #[error(transparent)]
    Bus(mesh_bus::Error),
    /// A checkpoint could not be stored.
    #[error("store checkpoint")]
    Sign(#[source] sqlx::Error),
    /// A range could not be noted as archived, or its payloads not be taken out.
    #[error("archive old payloads of the ledger")]
    Retain(#[source] sqlx::Error),
    /// Archiving is signed, and this process cannot.
    #[error("archive old payloads of the ledger: {0}")]
    Unsigned(String),
    /// A range is noted that the ledger did not archive.
    #[error(
        "the table of archives says that entries {first_seq} to {last_seq} were archived or erased, which this ledger has not signed: nothing more is taken out; run `smesh verify`"
    )]
    ForgedArchive {
        /// Sequence of its first entry.
        first_seq: i64,
        /// Sequence of its last entry.
        last_seq: i64,
    },
    /// The file of an archive could not be written, or is not what it should be.
    #[error("archive {}", path.display())]
    Archive {
        /// The file or its folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: ArchiveFileError,
    },
    /// Something else than a ledger.
    #[error("open ledger {0}: it has no tables of a ledger; check the address")]
    NotALedger(Location),
    /// The tables are those of another version.
    #[error("open ledger {location}: its tables are those of {whose}")]
    OtherVersion {
        /// Where it is.
        location: Location,
        /// Of which version, and what to do.
        whose: &'static str,
    },
    /// How a replay stands could not be stored.
    #[error("store replay")]
    Replay(#[source] sqlx::Error),
    /// A stored replay cannot be read: the database was changed from outside.
    #[error("read replay {0}: it is not what was stored; delete its row of the table replays")]
    CorruptReplay(String),
    /// The file of the private key could not be read or written.
    #[error("read or write the key that signs checkpoints, {}", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file of the private key is not one that can be used.
    #[error("read the key that signs checkpoints, {}: {fault}", path.display())]
    KeyUnfit {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: String,
    },
    /// Too few witnesses signed a checkpoint, or none can be asked.
    #[error("sign checkpoint: {0}")]
    Witness(String),
    /// No checkpoint is signed, as it would contradict one that was.
    #[error("sign checkpoint: refused, as {0}; run `smesh verify`")]
    Inconsistent(String),
    /// This replica has no key to sign with.
    #[error("sign checkpoint: {0}")]
    NoKey(String),
    /// The head is not a sequence and a hash: the database was changed from outside.
    #[error("read the ledger's head: it is not what was stored; run `smesh verify`")]
    CorruptHead,
}

impl Error {
    /// What the database said.
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

    /// True if a query was ended as it took longer than it may.
    pub fn is_timeout(&self) -> bool {
        self.cause().is_some_and(mesh_db::is_timeout)
    }

    /// True if the database may be there again by itself: it restarts, or the way to it is cut.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Database(error) => error.is_unavailable(),
            Self::TooSlow(_) => true,
            _ => self.cause().is_some_and(mesh_db::is_unavailable),
        }
    }
}
