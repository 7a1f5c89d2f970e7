//! What can be wrong with a ledger, and where.

use std::fmt;

/// The first place where the ledger does not fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstFault {
    /// Sequence.
    pub seq: i64,
    /// What is wrong there.
    pub what: Fault,
}

impl fmt::Display for FirstFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}: {}", self.seq, self.what)
    }
}

/// What is wrong with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// There is no entry with this sequence, but there are later ones.
    Missing,
    /// The entry is there, its payload is not.
    PayloadMissing,
    /// Leaf and chain fit each other, the content does not: body, subject, cluster or id was changed.
    ContentChanged,
    /// Content and chain fit each other, the leaf does not.
    LeafChanged,
    /// Content and leaf fit each other, the chain value does not follow from the one before.
    ChainBroken,
    /// Nothing fits: another entry stands here (swapped, inserted or written anew).
    Replaced,
    /// The head or a checkpoint says that the ledger goes on, but here it ends.
    CutOff,
    /// The head says that the ledger ended before this entry.
    Extra,
    /// The entries fit, the chain value of the head does not.
    HeadChanged,
    /// The entries fit each other, but not a checkpoint of the ledger's own: from some entry after the last checkpoint that fits, this one or
    /// a later one, they were written anew.
    RewrittenUpTo(u64),
    /// As [`Self::RewrittenUpTo`], by a checkpoint stored elsewhere.
    ForkedUpTo(u64),
    /// The checkpoint that counts up to here is not signed by a trusted key, or its columns are not what was signed.
    CheckpointForged,
    /// A checkpoint of so many entries was published, or follows from others, but is not stored.
    CheckpointMissing(u64),
    /// Checkpoints are not numbered without a gap, or one counts fewer entries than the one before it.
    CheckpointOrder,
    /// This checkpoint is not signed by the key whose turn it was, or a key has no hand-over signed by the one before it.
    KeysChanged,
    /// A stored hash of the tree is not the one of the entries, or is missing.
    SubtreeDiffers,
    /// The line of an export is none.
    Unreadable,
    /// The file that has the archived content is damaged here, or was changed.
    ArchiveUnreadable,
    /// The range in the table of archives does not follow the one before it, or claims entries that are not there.
    ArchiveMisplaced,
    /// No key of the ledger has signed that the range that begins here was archived or erased: somebody else wrote that.
    ArchiveUnsigned,
    /// The ids of the archived range that ends here are not those that were signed.
    ArchivedIdsDiffer,
    /// The file of the range that ends here is not the one that was signed.
    ArchiveFileDiffers,
    /// The chain fits from end to end, but the columns for queries are not those of the entry's body: queries hide it or show it to others.
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
                "the checkpoints up to here are not numbered without a gap, or go back: some were deleted, or put elsewhere"
            }
            Self::KeysChanged => {
                "the key that signs from here on has no hand-over signed by the one before it: the table of keys was changed"
            }
            Self::SubtreeDiffers => {
                "the entries fit, but a stored subtree that ends here does not: proofs cannot be made until `smesh verify --repair` has made them anew"
            }
            Self::RewrittenUpTo(size) => {
                return write!(
                    f,
                    "the ledger was written anew here or later, up to {size}: the signed checkpoint of {size} entries has another root"
                );
            }
            Self::ForkedUpTo(size) => {
                return write!(
                    f,
                    "the ledger was written anew here or later, up to {size}: the checkpoint of {size} entries that was kept has another root"
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
                "the leaf hash was changed: it is not the one of the content that was chained"
            }
            Self::ChainBroken => {
                "the chain is broken: the chain value does not follow from the one before it"
            }
            Self::Replaced => {
                "another entry stands here: it was swapped, inserted or written anew"
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
                "the file of the archive that ends here is not the one that was signed: its SHA-256 or length is another"
            }
            Self::HeadChanged => "the head's chain value is not the one of this, the last entry",
            Self::IndexDiffers => {
                "the chain is whole, but the rows in event_index and event_nodes are not what the body says: queries cannot be trusted until the index is made anew"
            }
        })
    }
}
