//! The faults that verification of a ledger can find.

use std::fmt;

/// The first fault of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstFault {
    /// Sequence of the first bad entry.
    pub seq: i64,
    /// Kind of the fault.
    pub what: Fault,
}

impl fmt::Display for FirstFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}: {}", self.seq, self.what)
    }
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// There is no entry with this sequence, but there are later ones.
    Missing,
    /// The entry exists, but its payload is missing.
    PayloadMissing,
    /// Leaf and chain value match each other, but not the content: body, subject, cluster or id was
    /// changed.
    ContentChanged,
    /// Content and chain value match each other, but not the leaf.
    LeafChanged,
    /// Content and leaf match each other, but the chain value does not follow from the previous
    /// one.
    ChainBroken,
    /// Nothing matches: this is another entry (swapped, inserted or rewritten).
    Replaced,
    /// The ledger ends here, but the head or a checkpoint counts later entries.
    CutOff,
    /// The head counts fewer entries than the ledger has: this is the first extra entry.
    Extra,
    /// The entries are consistent, but the chain value of the head differs.
    HeadChanged,
    /// The entries are consistent with each other, but not with a checkpoint of this ledger. They
    /// were rewritten from this entry or a later one on: this is the first entry after the last
    /// matching checkpoint.
    RewrittenUpTo(u64),
    /// Same as [`Self::RewrittenUpTo`], but the contradicting checkpoint is stored elsewhere.
    ForkedUpTo(u64),
    /// The checkpoint of this size is not signed by a trusted key, or its columns differ from the
    /// signed note.
    CheckpointForged,
    /// A checkpoint of this size was published, or is implied by others, but is not stored.
    CheckpointMissing(u64),
    /// The numbers of the checkpoints have a gap, or a checkpoint counts fewer entries than the
    /// previous one.
    CheckpointOrder,
    /// This checkpoint is not signed by the key that was active, or a key has no hand-over signed
    /// by the previous key.
    KeysChanged,
    /// A stored hash of the tree is missing or does not match the entries.
    SubtreeDiffers,
    /// A line of an export is not an entry.
    Unreadable,
    /// The archive file is damaged or was changed at this entry.
    ArchiveUnreadable,
    /// The range in the table of archives does not follow the previous range, or includes entries
    /// that do not exist.
    ArchiveMisplaced,
    /// The archive record of the range that begins here is not signed by a key of the ledger:
    /// another party wrote it.
    ArchiveUnsigned,
    /// The ids of the archived range that ends here differ from the signed ones.
    ArchivedIdsDiffer,
    /// The archive file of the range that ends here differs from the signed one.
    ArchiveFileDiffers,
    /// The archive file of the range that ends here is missing.
    ArchiveFileMissing,
    /// The whole chain matches, but the query columns differ from the entry's body. Queries may
    /// hide the entry or show it to the wrong users.
    IndexDiffers,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CheckpointMissing(size) => {
                return write!(
                    f,
                    "the signed checkpoint of {size} entries is not stored: it was deleted"
                );
            }
            Self::CheckpointOrder => {
                "the checkpoints up to here are not numbered consecutively: some were deleted or moved"
            }
            Self::KeysChanged => {
                "the key that signs from here on has no hand-over signed by the one before it: the table of keys was changed"
            }
            Self::SubtreeDiffers => {
                "the entries fit, but a stored subtree that ends here does not: proofs cannot be made until `smesh verify --repair` has repaired them"
            }
            Self::RewrittenUpTo(size) => {
                return write!(
                    f,
                    "the ledger was rewritten here or later, up to {size}: the signed checkpoint of {size} entries has another root"
                );
            }
            Self::ForkedUpTo(size) => {
                return write!(
                    f,
                    "the ledger was rewritten here or later, up to {size}: the saved checkpoint of {size} entries has another root"
                );
            }
            Self::CheckpointForged => {
                "the checkpoint that ends with this entry is not signed by a key that is trusted: it is forged, or a key is missing"
            }
            Self::Missing => "the entry is missing: it was deleted",
            Self::PayloadMissing => "the entry's payload is missing: it was deleted",
            Self::ContentChanged => {
                "the content was changed: body, subject, cluster or id do not give the leaf hash"
            }
            Self::LeafChanged => {
                "the leaf hash was changed: it is not that of the content that was chained"
            }
            Self::ChainBroken => {
                "the chain is broken: the chain value does not follow from the one before it"
            }
            Self::Replaced => {
                "this is a different entry: it was swapped, inserted or rewritten"
            }
            Self::CutOff => {
                "the ledger ends before this entry although its head or a checkpoint counts it: the tail was cut off"
            }
            Self::Extra => "the entry is out of order, or not counted by the ledger's head: it was added or moved by hand",
            Self::Unreadable => "the line of this entry cannot be read",
            Self::ArchiveUnreadable => {
                "the archive that has the content of this entry is damaged, or was changed"
            }
            Self::ArchiveMisplaced => {
                "the archive that begins here does not follow the one before it: the table of archives was changed"
            }
            Self::ArchiveUnsigned => {
                "this ledger has not signed that the entries from here on were archived or erased: the table of archives was changed, and their content is missing"
            }
            Self::ArchivedIdsDiffer => {
                "the ids of the archived entries up to here are not those that were signed: one was changed"
            }
            Self::ArchiveFileDiffers => {
                "the file of the archive that ends here is not the one that was signed: its SHA-256 or length differs"
            }
            Self::ArchiveFileMissing => {
                "the file of the archive that ends here is missing: it was deleted, or is kept elsewhere (--archive DIR, or --elsewhere NAME)"
            }
            Self::HeadChanged => "the head's chain value is not the one of this, the last entry",
            Self::IndexDiffers => {
                "the chain is whole, but the rows in event_index and event_nodes are not what the body says: queries cannot be trusted until the index is rebuilt"
            }
        })
    }
}
