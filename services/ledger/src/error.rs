//! What can go wrong.

use std::path::PathBuf;

/// An operation of the ledger that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The section `[ledger]` does not name a database.
    #[error("{fault}")]
    Config {
        /// What is wrong, with the key.
        fault: String,
    },
    /// The database could not be opened.
    #[error("open ledger {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// The database file could not be made.
    #[error("create ledger {}; check that the folder exists and is writable", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// There is no ledger.
    #[error("open ledger {}: no such file; check ledger.db.url and mesh.data_dir", .0.display())]
    NotThere(PathBuf),
    /// The tables could not be made or brought up to date.
    #[error("set up ledger {}", path.display())]
    Migrate {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: sqlx::migrate::MigrateError,
    },
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
    /// The head is not a sequence and a hash: the database was changed from outside.
    #[error("read the ledger's head: it is not what was stored; run `smesh verify`")]
    CorruptHead,
}
