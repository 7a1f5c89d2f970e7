//! Verification: the whole chain and the tree are computed again from the stored bodies.
//!
//! The verifier takes the entries in the order of their sequence and stops at the first that does not fit. It holds one chain value and
//! the edge of the tree, so its memory does not grow with the ledger. What it finds of a tampering:
//!
//! - a body, subject, cluster or id that was changed: the leaf no longer fits;
//! - a leaf or a chain value that was changed: it no longer fits what it was computed from;
//! - entries that were swapped, or written anew: neither fits;
//! - an entry or a payload that was taken out: its sequence is missing;
//! - entries that were cut off the end or added there: the head names another end;
//! - a history that was written anew from some entry on, so that it fits together: the first [`ExpectedCheckpoint`] behind that entry, a signed checkpoint,
//!   has another root. No hash shows which entry since the last matching checkpoint differs first;
//! - a checkpoint that no trusted key has signed;
//! - columns for queries that are missing or say something else than the body. They are no part of the chain, so a fault in the chain is
//!   named before one in them.
//!
//! The holder of the signing key can sign another history. A checkpoint stored by a third party reveals that.

use std::collections::BTreeMap;

use crate::chain::{self, GENESIS, Hash};
use crate::checkpoint::Checkpoint;
pub use crate::fault::{Fault, FirstFault};
use crate::merkle::{Frontier, Node};
use crate::note::PublicKey;
use crate::tile::grow;

/// An entry as the database has it; nothing about it is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Sequence.
    pub seq: i64,
    /// Id: bytes, as somebody may have put something else than text there.
    pub id: Vec<u8>,
    /// Leaf hash.
    pub leaf: Vec<u8>,
    /// Chain value.
    pub chain: Vec<u8>,
    /// What the leaf was computed from; `None` if the row is missing.
    pub payload: Option<StoredPayload>,
}

/// The payload of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPayload {
    /// Cluster.
    pub cluster: Vec<u8>,
    /// Subject.
    pub subject: Vec<u8>,
    /// Body as received.
    pub body: Vec<u8>,
}

impl StoredEntry {
    /// As [`StoredEntryRef::hashed`].
    pub fn hashed(&self) -> HashedEntry {
        self.borrowed().hashed()
    }

    fn borrowed(&self) -> StoredEntryRef<'_> {
        let payload = self.payload.as_ref();
        StoredEntryRef {
            seq: self.seq,
            id: &self.id,
            leaf: &self.leaf,
            chain: &self.chain,
            payload: payload.map(|payload| {
                let StoredPayload {
                    cluster,
                    subject,
                    body,
                } = payload;
                [cluster.as_slice(), subject, body]
            }),
        }
    }
}

/// As [`Stored`], where the database's driver has it.
#[derive(Clone, Copy, Debug)]
pub struct StoredEntryRef<'a> {
    /// Sequence.
    pub seq: i64,
    /// Id.
    pub id: &'a [u8],
    /// Leaf hash.
    pub leaf: &'a [u8],
    /// Chain value.
    pub chain: &'a [u8],
    /// Cluster, subject and body; `None` if the row is missing.
    pub payload: Option<[&'a [u8]; 3]>,
}

impl StoredEntryRef<'_> {
    /// Hashes its content: the only work that grows with the length of an entry, and the same on any thread.
    pub fn hashed(&self) -> HashedEntry {
        let content = match self.payload {
            None => LeafContent::Missing,
            Some(payload) => self
                .leaf_of(payload)
                .map_or(LeafContent::NotUtf8, LeafContent::Leaf),
        };
        HashedEntry {
            seq: self.seq,
            leaf: self.leaf.try_into().ok(),
            chain: self.chain.try_into().ok(),
            content,
        }
    }

    /// The leaf hash of its content; `None` if id, cluster or subject are no text, which were never chained.
    fn leaf_of(&self, [cluster, subject, body]: [&[u8]; 3]) -> Option<Hash> {
        let leaf = chain::Entry {
            cluster: str::from_utf8(cluster).ok()?,
            seq: self.seq.cast_unsigned(),
            id: str::from_utf8(self.id).ok()?,
            subject: str::from_utf8(subject).ok()?,
            body,
        }
        .leaf();
        Some(leaf)
    }

    /// A copy.
    pub fn to_stored(&self) -> StoredEntry {
        StoredEntry {
            seq: self.seq,
            id: self.id.to_vec(),
            leaf: self.leaf.to_vec(),
            chain: self.chain.to_vec(),
            payload: self.payload.map(|[cluster, subject, body]| StoredPayload {
                cluster: cluster.to_vec(),
                subject: subject.to_vec(),
                body: body.to_vec(),
            }),
        }
    }
}

/// What is left to verify of an entry whose content was hashed: how it is chained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedEntry {
    /// Sequence.
    pub seq: i64,
    /// The leaf hash that is stored; `None` if that is no hash.
    pub leaf: Option<Hash>,
    /// The chain value that is stored; `None` if that is no hash.
    pub chain: Option<Hash>,
    /// Leaf hash of the content.
    pub content: LeafContent,
}

/// The leaf hash that the content of an entry gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafContent {
    /// The content is missing.
    Missing,
    /// The content is not UTF-8, so it was never appended.
    NotUtf8,
    /// Its leaf hash.
    Leaf(Hash),
}

/// The end of the chain as the database has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredHead {
    /// Sequence of the last entry.
    pub seq: i64,
    /// Chain value of the last entry.
    pub chain: Vec<u8>,
}

/// Result of a successful verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedLedger {
    /// How many entries there are; also the sequence of the last.
    pub count: u64,
    /// Chain value of the last entry.
    pub head: Hash,
    /// Size of the largest matching checkpoint; 0 if none was compared.
    pub signed: u64,
    /// How many entries have no payload any more, as retention has archived or erased it: only their hashes were checked.
    pub archived: u64,
    /// How many archives the audit does not name yet: the ledger does that when it runs, so for long there is none.
    pub unaudited: u64,
}

/// A checkpoint that the entries are compared with when its size is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedCheckpoint {
    size: u64,
    claim: Result<Hash, Fault>,
    is_trusted: bool,
}

impl ExpectedCheckpoint {
    /// A checkpoint that is stored with the ledger: of this size, by its column, and signed by one of the keys, or it is a fault.
    pub fn stored(size: i64, root: &[u8], note: &str, keys: &[PublicKey]) -> Self {
        let size = u64::try_from(size).unwrap_or_default();
        let claim = match Checkpoint::open(note, keys) {
            Ok((checkpoint, _)) if checkpoint.size == size && checkpoint.root == root => {
                Ok(checkpoint.root)
            }
            _ => Err(Fault::CheckpointForged),
        };
        Self {
            size,
            claim,
            is_trusted: false,
        }
    }

    /// A checkpoint of a size, with its root or its fault.
    pub const fn with_root(size: u64, claim: Result<Hash, Fault>) -> Self {
        Self {
            size,
            claim,
            is_trusted: false,
        }
    }

    /// A checkpoint whose signature was verified.
    pub const fn verified(checkpoint: &Checkpoint) -> Self {
        Self {
            size: checkpoint.size,
            claim: Ok(checkpoint.root),
            is_trusted: false,
        }
    }

    /// A checkpoint stored by a third party, which is trusted.
    pub const fn trusted(checkpoint: &Checkpoint) -> Self {
        Self {
            size: checkpoint.size,
            claim: Ok(checkpoint.root),
            is_trusted: true,
        }
    }
}

/// Verifies entry by entry.
#[derive(Clone, Debug)]
pub struct Verifier {
    last: i64,
    chain: Hash,
    tree: Frontier,
    /// Marks that are not reached yet, by size.
    expected: BTreeMap<u64, Vec<ExpectedCheckpoint>>,
    /// Size of the largest matching checkpoint.
    matched_size: u64,
    archived: u64,
    /// Subtrees that were completed, of the levels that a ledger stores.
    subtrees: Vec<(Node, Hash)>,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::after(Frontier::default(), GENESIS)
    }
}

impl Verifier {
    /// Starts after the entries of a tree, from their last chain value.
    pub fn after(tree: Frontier, chain: Hash) -> Self {
        Self {
            last: tree.size().cast_signed(),
            chain,
            matched_size: tree.size(),
            tree,
            expected: BTreeMap::new(),
            archived: 0,
            subtrees: Vec::new(),
        }
    }

    /// Sequence of the last entry that was verified.
    pub const fn last(&self) -> i64 {
        self.last
    }

    /// Takes the subtrees completed since the last call.
    pub fn take_subtrees(&mut self) -> Vec<(Node, Hash)> {
        std::mem::take(&mut self.subtrees)
    }

    /// Compares the entries with a checkpoint, once there are as many. One of a size that is passed already is compared with nothing and
    /// is a fault, so give expected before the entries.
    pub fn expect(&mut self, checkpoint: ExpectedCheckpoint) {
        self.expected
            .entry(checkpoint.size)
            .or_default()
            .push(checkpoint);
    }

    /// Verifies the next entry.
    ///
    /// # Errors
    /// The first fault; the verifier is of no use afterwards.
    pub fn next(&mut self, entry: &StoredEntry) -> Result<(), FirstFault> {
        self.next_hashed(&entry.hashed())
    }

    /// As [`Self::next`], for an entry hashed on another thread.
    ///
    /// # Errors
    /// The first fault; the verifier is of no use afterwards.
    pub fn next_hashed(&mut self, entry: &HashedEntry) -> Result<(), FirstFault> {
        let expected = self.in_order(entry.seq)?;
        let bad = |what| {
            Err(FirstFault {
                seq: expected,
                what,
            })
        };
        let leaf = match entry.content {
            LeafContent::Missing => return bad(Fault::PayloadMissing),
            LeafContent::NotUtf8 => None,
            LeafContent::Leaf(leaf) => Some(leaf),
        };
        let link = leaf.map(|leaf| (leaf, chain::chain_hash(&self.chain, &leaf)));
        let leaf_fits = leaf.is_some() && entry.leaf == leaf;
        let chained = link.filter(|(_, link)| entry.chain == Some(*link));
        match (leaf_fits, chained) {
            (true, Some((leaf, link))) => self.take(leaf, link),
            (true, None) => bad(Fault::ChainBroken),
            (false, Some(_)) => bad(Fault::LeafChanged),
            (false, None) => bad(match self.chained_leaf(entry) {
                Some(_) => Fault::ContentChanged,
                None => Fault::Replaced,
            }),
        }
    }

    /// Verifies the next entry by its hashes only: its payload is archived.
    ///
    /// # Errors
    /// The first fault; the verifier is of no use afterwards.
    pub fn next_archived(&mut self, entry: &StoredEntry) -> Result<(), FirstFault> {
        self.next_archived_hashed(&entry.hashed())
    }

    /// As [`Self::next_archived`], for an entry hashed on another thread.
    ///
    /// # Errors
    /// The first fault; the verifier is of no use afterwards.
    pub fn next_archived_hashed(&mut self, entry: &HashedEntry) -> Result<(), FirstFault> {
        let expected = self.in_order(entry.seq)?;
        match self.chained_leaf(entry) {
            Some((leaf, link)) => {
                self.archived += 1;
                self.take(leaf, link)
            }
            None => Err(FirstFault {
                seq: expected,
                what: Fault::ChainBroken,
            }),
        }
    }

    /// Checks that the sequence is the next one.
    const fn in_order(&self, seq: i64) -> Result<i64, FirstFault> {
        let expected = self.last + 1;
        if seq > expected {
            return Err(FirstFault {
                seq: expected,
                what: Fault::Missing,
            });
        }
        if seq < expected {
            return Err(FirstFault {
                seq,
                what: Fault::Extra,
            });
        }
        Ok(expected)
    }

    /// The entry's leaf and chain value, if the one follows from the other.
    fn chained_leaf(&self, entry: &HashedEntry) -> Option<(Hash, Hash)> {
        let leaf = entry.leaf?;
        let link = chain::chain_hash(&self.chain, &leaf);
        (entry.chain == Some(link)).then_some((leaf, link))
    }

    fn take(&mut self, leaf: Hash, link: Hash) -> Result<(), FirstFault> {
        self.last += 1;
        self.chain = link;
        grow(&mut self.tree, leaf, &mut self.subtrees);
        match self.expected.first_key_value() {
            Some((size, _)) if *size <= self.tree.size() => self.compare(),
            _ => Ok(()),
        }
    }

    /// Compares with the expected whose size is reached.
    fn compare(&mut self) -> Result<(), FirstFault> {
        let reached = self.tree.size();
        let later = self.expected.split_off(&(reached + 1));
        let expected = std::mem::replace(&mut self.expected, later);
        for checkpoint in expected.into_values().flatten() {
            let differs = match checkpoint.is_trusted {
                true => Fault::ForkedUpTo(checkpoint.size),
                false => Fault::RewrittenUpTo(checkpoint.size),
            };
            let (at, what) = match checkpoint.claim {
                Ok(root) if checkpoint.size == reached && root == self.tree.root() => {
                    self.matched_size = reached;
                    continue;
                }
                Ok(_) => (self.matched_size + 1, differs),
                Err(forged) => (checkpoint.size, forged),
            };
            return Err(FirstFault {
                seq: at.cast_signed(),
                what,
            });
        }
        Ok(())
    }

    /// Compares the end with the head, and with what checkpoints count.
    ///
    /// # Errors
    /// If one of them names another end.
    pub fn finish(self, head: &StoredHead) -> Result<VerifiedLedger, FirstFault> {
        if self.last == head.seq && self.chain != head.chain.as_slice() {
            return Err(FirstFault {
                seq: self.last,
                what: Fault::HeadChanged,
            });
        }
        self.finish_at(head.seq)
    }

    /// Ends where it is known to end, and compares with what checkpoints count.
    ///
    /// # Errors
    /// If this is another end.
    pub fn finish_at(mut self, seq: i64) -> Result<VerifiedLedger, FirstFault> {
        let bad = |seq, what| Err(FirstFault { seq, what });
        if self.last < seq {
            return bad(self.last + 1, Fault::CutOff);
        }
        if self.last > seq {
            return bad(seq + 1, Fault::Extra);
        }
        // Marks without any entry before them.
        self.compare()?;
        if let Some(checkpoint) = self.expected.into_values().flatten().next() {
            return match checkpoint.claim {
                Ok(_) => bad(self.last + 1, Fault::CutOff),
                Err(forged) => bad(checkpoint.size.cast_signed(), forged),
            };
        }
        Ok(VerifiedLedger {
            count: self.last.unsigned_abs(),
            head: self.chain,
            signed: self.matched_size,
            archived: self.archived,
            unaudited: 0,
        })
    }
}

/// Verifies a whole ledger.
///
/// # Errors
/// The first fault.
pub fn verify<'a>(
    entries: impl IntoIterator<Item = &'a StoredEntry>,
    head: &StoredHead,
) -> Result<VerifiedLedger, FirstFault> {
    let mut verifier = Verifier::default();
    for entry in entries {
        verifier.next(entry)?;
    }
    verifier.finish(head)
}

#[cfg(test)]
mod tests;
