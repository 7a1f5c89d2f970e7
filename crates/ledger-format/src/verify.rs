//! Verification of a ledger: recomputes the whole chain and the tree from the stored bodies.
//!
//! The verifier reads the entries in the order of their sequence and stops at the first fault. It
//! holds one chain value and the right edge of the tree, so its memory does not grow with the
//! ledger. It detects these kinds of tampering:
//!
//! - a changed body, subject, cluster or id: the leaf no longer matches;
//! - a changed leaf or chain value: it no longer matches its inputs;
//! - swapped or rewritten entries: neither leaf nor chain value matches;
//! - a removed entry or payload: its sequence is missing;
//! - entries removed or added at the end: the head names another end;
//! - a consistently rewritten history: the first [`ExpectedCheckpoint`] after the changed entry has
//!   another root. No hash shows which entry after the last matching checkpoint was changed first;
//! - a checkpoint that no trusted key has signed;
//! - query columns that are missing or differ from the body. They are not part of the chain, so a
//!   fault of the chain is reported first.
//!
//! The holder of the signing key can sign another history. Only a checkpoint stored by a third
//! party reveals that.

use std::collections::BTreeMap;

use crate::chain::{self, GENESIS, Hash};
use crate::checkpoint::Checkpoint;
pub use crate::fault::{Fault, FirstFault};
use crate::merkle::{Frontier, Node};
use crate::note::PublicKey;
use crate::tile::grow;

/// An entry as read from the database. Nothing in it is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Sequence of the entry.
    pub seq: i64,
    /// Id of the event, as bytes: a tampered id may not be valid UTF-8.
    pub id: Vec<u8>,
    /// Stored leaf hash.
    pub leaf: Vec<u8>,
    /// Stored chain value.
    pub chain: Vec<u8>,
    /// Content from which the leaf was computed, `None` if the row is missing.
    pub payload: Option<StoredPayload>,
}

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPayload {
    /// Slurm's ClusterName.
    pub cluster: Vec<u8>,
    /// NATS subject on which the event was received.
    pub subject: Vec<u8>,
    /// Body as received.
    pub body: Vec<u8>,
}

impl StoredEntry {
    /// Same as [`StoredEntryRef::hashed`].
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

/// Same as [`StoredEntry`], but borrows from the row of the database driver.
#[derive(Clone, Copy, Debug)]
pub struct StoredEntryRef<'a> {
    /// Sequence of the entry.
    pub seq: i64,
    /// Id of the event.
    pub id: &'a [u8],
    /// Stored leaf hash.
    pub leaf: &'a [u8],
    /// Stored chain value.
    pub chain: &'a [u8],
    /// Cluster, subject and body; `None` if the row is missing.
    pub payload: Option<[&'a [u8]; 3]>,
}

impl StoredEntryRef<'_> {
    /// Hashes the content. This is the only work that depends on the length of an entry, and it can
    /// run on any thread.
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

    /// Computes the leaf hash. Returns `None` if id, cluster or subject is not UTF-8: such an entry
    /// was never appended.
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

    /// Copies the entry.
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

/// An entry whose content was hashed. Only its position in the chain remains to be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedEntry {
    /// Sequence of the entry.
    pub seq: i64,
    /// Stored leaf hash, `None` if it has another length than a hash.
    pub leaf: Option<Hash>,
    /// Stored chain value, `None` if it has another length than a hash.
    pub chain: Option<Hash>,
    /// Leaf hash computed from the content.
    pub content: LeafContent,
}

/// Result of hashing the content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafContent {
    /// The content is missing.
    Missing,
    /// The content is not UTF-8, so it was never appended.
    NotUtf8,
    /// Computed leaf hash.
    Leaf(Hash),
}

/// The head of the chain as stored in the database.
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
    /// Number of entries, and sequence of the last.
    pub count: u64,
    /// Chain value of the last entry.
    pub head: Hash,
    /// Size of the largest matching checkpoint; 0 if none was compared.
    pub signed: u64,
    /// Number of entries whose payload retention has archived or erased. Only their hashes were
    /// verified.
    pub archived: u64,
    /// Number of archives without an audit record. A running ledger writes these records soon, so
    /// the number is normally 0.
    pub unaudited: u64,
}

/// A checkpoint to compare with the entries when its size is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedCheckpoint {
    size: u64,
    claim: Result<Hash, Fault>,
    is_trusted: bool,
}

impl ExpectedCheckpoint {
    /// Creates the expectation from a checkpoint stored with the ledger. If no key has signed it,
    /// or its columns differ from the note, the expectation is a fault.
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

    /// Creates the expectation from a size and its root or fault.
    pub const fn with_root(size: u64, claim: Result<Hash, Fault>) -> Self {
        Self {
            size,
            claim,
            is_trusted: false,
        }
    }

    /// Creates the expectation from a checkpoint with a verified signature.
    pub const fn verified(checkpoint: &Checkpoint) -> Self {
        Self {
            size: checkpoint.size,
            claim: Ok(checkpoint.root),
            is_trusted: false,
        }
    }

    /// Creates the expectation from a trusted checkpoint stored by a third party.
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
    /// Checkpoints not reached yet, by size.
    expected: BTreeMap<u64, Vec<ExpectedCheckpoint>>,
    /// Size of the largest matching checkpoint.
    matched_size: u64,
    archived: u64,
    /// Completed subtrees of the stored levels.
    subtrees: Vec<(Node, Hash)>,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::after(Frontier::default(), GENESIS)
    }
}

impl Verifier {
    /// Starts after the entries of a tree, with their last chain value.
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

    /// Returns the sequence of the last verified entry.
    pub const fn last(&self) -> i64 {
        self.last
    }

    /// Takes the subtrees completed since the last call.
    pub fn take_subtrees(&mut self) -> Vec<(Node, Hash)> {
        std::mem::take(&mut self.subtrees)
    }

    /// Registers a checkpoint to be compared when its size is reached. Call it before the entries:
    /// a checkpoint whose size has been passed is reported as a fault.
    pub fn expect(&mut self, checkpoint: ExpectedCheckpoint) {
        self.expected
            .entry(checkpoint.size)
            .or_default()
            .push(checkpoint);
    }

    /// Verifies the next entry.
    ///
    /// # Errors
    /// The first fault. The verifier must not be used afterwards.
    pub fn next(&mut self, entry: &StoredEntry) -> Result<(), FirstFault> {
        self.next_hashed(&entry.hashed())
    }

    /// Same as [`Self::next`], for an entry hashed on another thread.
    ///
    /// # Errors
    /// The first fault. The verifier must not be used afterwards.
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

    /// Verifies the next entry by its hashes only, because its payload is archived.
    ///
    /// # Errors
    /// The first fault. The verifier must not be used afterwards.
    pub fn next_archived(&mut self, entry: &StoredEntry) -> Result<(), FirstFault> {
        self.next_archived_hashed(&entry.hashed())
    }

    /// Same as [`Self::next_archived`], for an entry hashed on another thread.
    ///
    /// # Errors
    /// The first fault. The verifier must not be used afterwards.
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

    /// Returns the entry's leaf and chain value if the chain value follows from the leaf.
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

    /// Compares the checkpoints whose size is reached.
    fn compare(&mut self) -> Result<(), FirstFault> {
        let reached = self.tree.size();
        let remaining = self.expected.split_off(&(reached + 1));
        let expected = std::mem::replace(&mut self.expected, remaining);
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

    /// Ends the verification, and compares the end with the head and with the sizes of the
    /// checkpoints.
    ///
    /// # Errors
    /// If the head or a checkpoint names another end.
    pub fn finish(self, head: &StoredHead) -> Result<VerifiedLedger, FirstFault> {
        if self.last == head.seq && self.chain != head.chain.as_slice() {
            return Err(FirstFault {
                seq: self.last,
                what: Fault::HeadChanged,
            });
        }
        self.finish_at(head.seq)
    }

    /// Ends the verification at a known sequence, and compares it with the sizes of the
    /// checkpoints.
    ///
    /// # Errors
    /// If the ledger ends elsewhere.
    pub fn finish_at(mut self, seq: i64) -> Result<VerifiedLedger, FirstFault> {
        let bad = |seq, what| Err(FirstFault { seq, what });
        if self.last < seq {
            return bad(self.last + 1, Fault::CutOff);
        }
        if self.last > seq {
            return bad(seq + 1, Fault::Extra);
        }
        // Checkpoints of size 0.
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
