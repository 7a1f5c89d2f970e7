//! Inputs, progress and results of a verification.

use std::path::PathBuf;

use crate::adapters::archive_file::ArchiveReadError;
use crate::domain::checkpoint::Checkpoint;
use crate::domain::note::PublicKey;
use crate::domain::verify::{FirstFault, VerifiedLedger};
use crate::error::Error;

/// Progress of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Number of verified entries.
    pub verified: u64,
    /// Number of entries according to the head.
    pub of: u64,
}

/// A failed verification.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The first fault.
    #[error("{0}")]
    Invalid(FirstFault),
    /// Files of archives are missing.
    #[error("{first}: {}", names.join(", "))]
    FilesMissing {
        /// The first of their ranges.
        first: FirstFault,
        /// Names of all of them.
        names: Vec<String>,
    },
    /// The content of audit entries about archives or keys was removed. Hashes and signatures prove
    /// what they said.
    #[error(
        "the content of the audit entries {} about archives or keys was removed: by another party, or by the retention of an earlier version. Signatures or their hashes prove what they said (--removed SEQ)",
        list(.0)
    )]
    AuditRemoved(Vec<i64>),
    /// The file of an archive cannot be read.
    #[error("read archive {}", path.display())]
    Archive {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The head is missing, or there are several.
    #[error("the ledger has no head, or more than one: it was deleted or added to")]
    NoHead,
    /// Tables, indexes, triggers or rules differ from the migrations.
    #[error("the tables are not as the ledger makes them: {0}")]
    Schema(String),
    /// The integrity check of the database failed.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// The integrity check of the database could not run.
    #[error("the indexes cannot be compared with their tables: {0}")]
    NotCompared(String),
    /// The ledger could not be read.
    #[error(transparent)]
    Read(#[from] Error),
}

/// Trusted keys and checkpoints from outside the ledger.
#[derive(Clone, Debug, Default)]
pub struct TrustAnchors {
    /// Keys that may sign checkpoints. If empty, the keys stored in the ledger.
    pub keys: Vec<PublicKey>,
    /// Checkpoints stored elsewhere.
    pub checkpoints: Vec<Checkpoint>,
    /// The newest checkpoint signed on this host. It, or a later one, must be stored.
    pub newest: Option<Checkpoint>,
    /// Folder of archive files whose content is also verified. If `None`, files are compared
    /// by SHA-256 at their path.
    pub archives: Option<PathBuf>,
    /// Archive files that may be missing.
    pub elsewhere: Elsewhere,
    /// Audit entries about archives and keys whose content may have been removed.
    pub removed_audit: RemovedAudit,
}

/// Audit entries about archives and keys whose content may have been removed. This version keeps
/// it, earlier ones did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovedAudit {
    /// Those with these sequences.
    Named(Vec<i64>),
    /// All, for a copy of a ledger that is verified elsewhere.
    All,
}

impl Default for RemovedAudit {
    fn default() -> Self {
        Self::Named(Vec::new())
    }
}

impl RemovedAudit {
    pub(super) fn has(&self, seq: i64) -> bool {
        match self {
            Self::Named(seqs) => seqs.contains(&seq),
            Self::All => true,
        }
    }
}

/// Returns the sequences as text.
pub(super) fn list(seqs: &[i64]) -> String {
    let seqs: Vec<String> = seqs.iter().map(ToString::to_string).collect();
    seqs.join(", ")
}

/// Archive files that may be missing: they are kept elsewhere, or were deleted to erase their
/// content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// Those with these names.
    Names(Vec<String>),
    /// All, for a copy of a ledger on another host.
    All,
}

impl Default for Elsewhere {
    fn default() -> Self {
        Self::Names(Vec::new())
    }
}

impl Elsewhere {
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Names(names) => names.iter().any(|one| one == name),
            Self::All => true,
        }
    }
}

/// Result of the integrity check of the database.
pub enum Integrity {
    /// Pages and indexes are consistent.
    Whole,
    /// Damaged, with the database's message.
    Damaged(String),
    /// The check could not run, with the reason.
    Unasked(String),
}

/// A class of verified data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Name of the class.
    pub name: &'static str,
    /// Why the class was not compared, or `None` if it was compared and matches.
    pub unchecked: Option<String>,
}

/// Result of a successful verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Result for the entries.
    pub verified: VerifiedLedger,
    /// Classes of data, compared or not.
    pub classes: Vec<Class>,
}

impl From<ArchiveReadError> for VerifyError {
    fn from(error: ArchiveReadError) -> Self {
        match error {
            ArchiveReadError::Unreadable(path, source) => Self::Archive { path, source },
            ArchiveReadError::Invalid(fault) => Self::Invalid(fault),
        }
    }
}
