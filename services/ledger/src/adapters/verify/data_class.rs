//! Classes of verified data, and the class of each fault.

use super::outcome::{
    Class, Elsewhere, RemovedAudit, TrustAnchors, VerifyError, VerifyReport, list,
};
use crate::domain::verify::{Fault, VerifiedLedger};

const ENTRIES: &str = "entries, chain and head";
/// What an export proves.
pub const EXPORTED: &str = "entries, chain and checkpoint";
const INDEX: &str = "columns for queries";
const CHECKPOINTS: &str = "checkpoints";
const KEYS: &str = "keys and hand-overs";
const TRUSTED: &str = "checkpoints kept elsewhere";
/// Compared only by callers that can read NATS: [`super::UnverifiedLedger::check_published`].
pub const PUBLISHED: &str = "published checkpoints";
const SUBTREES: &str = "subtrees";
const ARCHIVES: &str = "archives";
const AUDIT: &str = "audit entries about archives and keys";
const FILES: &str = "files of archives";
const SCHEMA: &str = "tables, indexes, triggers";
const INTEGRITY: &str = "integrity of the database";

/// Returns all classes of a successful verification. `unread` is the number of archive files that
/// are missing and may be, `removed` are the audit entries whose content is.
pub(super) fn checked(trust: &TrustAnchors, unread: usize, removed: &[i64]) -> Vec<Class> {
    let files = match (unread, &trust.elsewhere) {
        (0, _) => None,
        (unread, Elsewhere::Names(_)) => Some(format!(
            "{unread} are kept elsewhere, or were deleted to erase their content, by your own word"
        )),
        (unread, Elsewhere::All) => Some(format!(
            "{unread} are not on this host: compare them with `smesh verify --archive DIR` where they are"
        )),
    };
    let word = match &trust.removed_audit {
        RemovedAudit::Named(_) => ", by your own word by an earlier version",
        RemovedAudit::All => "",
    };
    let audit = (!removed.is_empty()).then(|| {
        let seqs = list(removed);
        format!("the content of {seqs} was removed{word}; signatures or their hashes prove what they said")
    });
    [
        (ENTRIES, None),
        (INDEX, None),
        (CHECKPOINTS, None),
        (KEYS, None),
        (TRUSTED, none_given(trust)),
        (SUBTREES, None),
        (ARCHIVES, None),
        (AUDIT, audit),
        (FILES, files),
        (SCHEMA, None),
        (INTEGRITY, None),
    ]
    .map(|(name, unchecked)| Class { name, unchecked })
    .into()
}

fn none_given(trust: &TrustAnchors) -> Option<String> {
    let is_missing = trust.checkpoints.is_empty() && trust.newest.is_none();
    is_missing.then(|| "none was given".to_owned())
}

impl VerifyReport {
    /// Report of an export, which has entries up to one checkpoint and nothing else of the ledger.
    pub fn of_export(verified: VerifiedLedger, trust: &TrustAnchors) -> Self {
        let without = |what: &str| Some(format!("an export has no {what}"));
        let classes = [
            (EXPORTED, None),
            (INDEX, without("index")),
            (CHECKPOINTS, without("checkpoint but its last")),
            (KEYS, without("keys")),
            (TRUSTED, none_given(trust)),
            (SUBTREES, without("subtrees")),
            (ARCHIVES, without("records of archives")),
            (AUDIT, without("records of archives or keys")),
            (FILES, without("records of archives")),
            (SCHEMA, without("database")),
            (INTEGRITY, without("database")),
            (
                PUBLISHED,
                Some("only `smesh verify` of the database reads MESH_CHECKPOINTS".to_owned()),
            ),
        ];
        Self {
            verified,
            classes: classes
                .map(|(name, unchecked)| Class { name, unchecked })
                .into(),
        }
    }
}

impl VerifyError {
    /// Returns the class of the fault, or `None` if the ledger could not be read.
    pub const fn class(&self) -> Option<&'static str> {
        match self {
            Self::Invalid(bad) | Self::FilesMissing { first: bad, .. } => Some(of(bad.what)),
            Self::AuditRemoved(_) => Some(AUDIT),
            Self::NoHead => Some(ENTRIES),
            Self::Schema(_) => Some(SCHEMA),
            Self::Damaged(_) | Self::NotCompared(_) => Some(INTEGRITY),
            Self::Archive { .. } | Self::Read(_) => None,
        }
    }
}

const fn of(fault: Fault) -> &'static str {
    match fault {
        Fault::Missing
        | Fault::PayloadMissing
        | Fault::ContentChanged
        | Fault::LeafChanged
        | Fault::ChainBroken
        | Fault::Replaced
        | Fault::CutOff
        | Fault::Extra
        | Fault::HeadChanged
        | Fault::Unreadable => ENTRIES,
        Fault::RewrittenUpTo(_)
        | Fault::CheckpointForged
        | Fault::CheckpointOrder
        | Fault::CheckpointMissing(_) => CHECKPOINTS,
        Fault::ForkedUpTo(_) => TRUSTED,
        Fault::KeysChanged => KEYS,
        Fault::SubtreeDiffers => SUBTREES,
        Fault::ArchiveMisplaced | Fault::ArchiveUnsigned | Fault::ArchivedIdsDiffer => ARCHIVES,
        Fault::ArchiveUnreadable | Fault::ArchiveFileDiffers | Fault::ArchiveFileMissing => FILES,
        Fault::IndexDiffers => INDEX,
    }
}
