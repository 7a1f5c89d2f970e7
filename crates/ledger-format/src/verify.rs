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
//! - a history that was written anew from some entry on, so that it fits together: the first [`Mark`] behind that entry, a signed checkpoint,
//!   has another root. Which of the entries since the last mark that fits is the first to differ, no hash tells;
//! - a checkpoint that no trusted key has signed;
//! - columns for queries that are missing or say something else than the body. They are no part of the chain, so a fault in the chain is
//!   named before one in them.
//!
//! Whoever holds the signing key can write and sign another history: against that helps a checkpoint that was kept elsewhere.

use std::collections::BTreeMap;

use crate::chain::{self, GENESIS, Hash};
use crate::checkpoint::Checkpoint;
pub use crate::fault::{Fault, FirstBad};
use crate::merkle::{Frontier, Node};
use crate::note::PublicKey;
use crate::tree::grow;

/// An entry as the database has it; nothing about it is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Sequence.
    pub seq: i64,
    /// Id: bytes, as somebody may have put something else than text there.
    pub id: Vec<u8>,
    /// Leaf hash.
    pub leaf: Vec<u8>,
    /// Chain value.
    pub chain: Vec<u8>,
    /// What the leaf was computed from; `None` if the row is missing.
    pub payload: Option<Payload>,
}

/// The payload of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Cluster.
    pub cluster: Vec<u8>,
    /// Subject.
    pub subject: Vec<u8>,
    /// Body as received.
    pub body: Vec<u8>,
}

impl Stored {
    /// As [`StoredRef::hashed`].
    pub fn hashed(&self) -> Hashed {
        self.borrowed().hashed()
    }

    fn borrowed(&self) -> StoredRef<'_> {
        let payload = self.payload.as_ref();
        StoredRef {
            seq: self.seq,
            id: &self.id,
            leaf: &self.leaf,
            chain: &self.chain,
            payload: payload.map(|payload| {
                let Payload {
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
pub struct StoredRef<'a> {
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

impl StoredRef<'_> {
    /// Hashes its content: the only work that grows with the length of an entry, and the same on any thread.
    pub fn hashed(&self) -> Hashed {
        let content = match self.payload {
            None => Content::Missing,
            Some(payload) => self.leaf_of(payload).map_or(Content::NoText, Content::Leaf),
        };
        Hashed {
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
    pub fn to_stored(&self) -> Stored {
        Stored {
            seq: self.seq,
            id: self.id.to_vec(),
            leaf: self.leaf.to_vec(),
            chain: self.chain.to_vec(),
            payload: self.payload.map(|[cluster, subject, body]| Payload {
                cluster: cluster.to_vec(),
                subject: subject.to_vec(),
                body: body.to_vec(),
            }),
        }
    }
}

/// What is left to verify of an entry whose content was hashed: how it is chained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Sequence.
    pub seq: i64,
    /// The leaf hash that is stored; `None` if that is no hash.
    pub leaf: Option<Hash>,
    /// The chain value that is stored; `None` if that is no hash.
    pub chain: Option<Hash>,
    /// What the content says.
    pub content: Content,
}

/// What the content of an entry says about its leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// There is none.
    Missing,
    /// It is none that was ever chained.
    NoText,
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

/// A ledger that fits together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// How many entries there are; also the sequence of the last.
    pub count: u64,
    /// Chain value of the last entry.
    pub head: Hash,
    /// Up to which entry a checkpoint says the same; 0 if none was compared.
    pub signed: u64,
    /// How many entries have no payload any more, as retention has archived or erased it: only their hashes were checked.
    pub archived: u64,
    /// How many archives the audit does not name yet: the ledger does that when it runs, so for long there is none.
    pub unaudited: u64,
}

/// A checkpoint that the entries are compared with when its size is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    size: u64,
    claim: Result<Hash, Fault>,
    kept: bool,
}

impl Mark {
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
            kept: false,
        }
    }

    /// A checkpoint of this size, and its root, or what is wrong with it.
    pub const fn claimed(size: u64, claim: Result<Hash, Fault>) -> Self {
        Self {
            size,
            claim,
            kept: false,
        }
    }

    /// A checkpoint whose signature was looked at.
    pub const fn signed(checkpoint: &Checkpoint) -> Self {
        Self {
            size: checkpoint.size,
            claim: Ok(checkpoint.root),
            kept: false,
        }
    }

    /// A checkpoint that somebody kept elsewhere, which is trusted: its signature was looked at, or it was kept safely.
    pub const fn kept(checkpoint: &Checkpoint) -> Self {
        Self {
            size: checkpoint.size,
            claim: Ok(checkpoint.root),
            kept: true,
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
    marks: BTreeMap<u64, Vec<Mark>>,
    /// Size of the last mark that fits.
    fits: u64,
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
    /// Begins behind the entries of a tree, whose last chain value is given.
    pub fn after(tree: Frontier, chain: Hash) -> Self {
        Self {
            last: tree.size().cast_signed(),
            chain,
            fits: tree.size(),
            tree,
            marks: BTreeMap::new(),
            archived: 0,
            subtrees: Vec::new(),
        }
    }

    /// Sequence of the last entry that was verified.
    pub const fn last(&self) -> i64 {
        self.last
    }

    /// The subtrees that were completed since this was last asked.
    pub fn take_subtrees(&mut self) -> Vec<(Node, Hash)> {
        std::mem::take(&mut self.subtrees)
    }

    /// Compares the entries with a checkpoint, once there are as many. One of a size that is passed already is compared with nothing and
    /// is a fault, so give marks before the entries.
    pub fn expect(&mut self, mark: Mark) {
        self.marks.entry(mark.size).or_default().push(mark);
    }

    /// Takes the next entry.
    ///
    /// # Errors
    /// The first fault; the verifier is of no use afterwards.
    pub fn next(&mut self, entry: &Stored) -> Result<(), FirstBad> {
        self.next_hashed(&entry.hashed())
    }

    /// As [`Self::next`], of an entry that was hashed on some thread.
    ///
    /// # Errors
    /// The first fault; the verifier is of no use afterwards.
    pub fn next_hashed(&mut self, entry: &Hashed) -> Result<(), FirstBad> {
        let expected = self.in_order(entry.seq)?;
        let bad = |what| {
            Err(FirstBad {
                seq: expected,
                what,
            })
        };
        let leaf = match entry.content {
            Content::Missing => return bad(Fault::PayloadMissing),
            Content::NoText => None,
            Content::Leaf(leaf) => Some(leaf),
        };
        let link = leaf.map(|leaf| (leaf, chain::link(&self.chain, &leaf)));
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

    /// Takes the next entry, whose payload retention has archived: only its hashes can be checked.
    ///
    /// # Errors
    /// The first fault; the verifier is of no use afterwards.
    pub fn next_archived(&mut self, entry: &Stored) -> Result<(), FirstBad> {
        self.next_archived_hashed(&entry.hashed())
    }

    /// As [`Self::next_archived`], of an entry that was hashed on some thread.
    ///
    /// # Errors
    /// The first fault; the verifier is of no use afterwards.
    pub fn next_archived_hashed(&mut self, entry: &Hashed) -> Result<(), FirstBad> {
        let expected = self.in_order(entry.seq)?;
        match self.chained_leaf(entry) {
            Some((leaf, link)) => {
                self.archived += 1;
                self.take(leaf, link)
            }
            None => Err(FirstBad {
                seq: expected,
                what: Fault::ChainBroken,
            }),
        }
    }

    /// The sequence that an entry has if it is the next.
    const fn in_order(&self, seq: i64) -> Result<i64, FirstBad> {
        let expected = self.last + 1;
        if seq > expected {
            return Err(FirstBad {
                seq: expected,
                what: Fault::Missing,
            });
        }
        if seq < expected {
            return Err(FirstBad {
                seq,
                what: Fault::Extra,
            });
        }
        Ok(expected)
    }

    /// The entry's leaf and chain value, if the one follows from the other.
    fn chained_leaf(&self, entry: &Hashed) -> Option<(Hash, Hash)> {
        let leaf = entry.leaf?;
        let link = chain::link(&self.chain, &leaf);
        (entry.chain == Some(link)).then_some((leaf, link))
    }

    fn take(&mut self, leaf: Hash, link: Hash) -> Result<(), FirstBad> {
        self.last += 1;
        self.chain = link;
        grow(&mut self.tree, leaf, &mut self.subtrees);
        match self.marks.first_key_value() {
            Some((size, _)) if *size <= self.tree.size() => self.compare(),
            _ => Ok(()),
        }
    }

    /// Compares with the marks whose size is reached.
    fn compare(&mut self) -> Result<(), FirstBad> {
        let reached = self.tree.size();
        let later = self.marks.split_off(&(reached + 1));
        let marks = std::mem::replace(&mut self.marks, later);
        for mark in marks.into_values().flatten() {
            let differs = match mark.kept {
                true => Fault::ForkedUpTo(mark.size),
                false => Fault::RewrittenUpTo(mark.size),
            };
            let (at, what) = match mark.claim {
                Ok(root) if mark.size == reached && root == self.tree.root() => {
                    self.fits = reached;
                    continue;
                }
                Ok(_) => (self.fits + 1, differs),
                Err(forged) => (mark.size, forged),
            };
            return Err(FirstBad {
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
    pub fn finish(self, head: &StoredHead) -> Result<Verified, FirstBad> {
        if self.last == head.seq && self.chain != head.chain.as_slice() {
            return Err(FirstBad {
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
    pub fn finish_at(mut self, seq: i64) -> Result<Verified, FirstBad> {
        let bad = |seq, what| Err(FirstBad { seq, what });
        if self.last < seq {
            return bad(self.last + 1, Fault::CutOff);
        }
        if self.last > seq {
            return bad(seq + 1, Fault::Extra);
        }
        // Marks without any entry before them.
        self.compare()?;
        if let Some(mark) = self.marks.into_values().flatten().next() {
            return match mark.claim {
                Ok(_) => bad(self.last + 1, Fault::CutOff),
                Err(forged) => bad(mark.size.cast_signed(), forged),
            };
        }
        Ok(Verified {
            count: self.last.unsigned_abs(),
            head: self.chain,
            signed: self.fits,
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
    entries: impl IntoIterator<Item = &'a Stored>,
    head: &StoredHead,
) -> Result<Verified, FirstBad> {
    let mut verifier = Verifier::default();
    for entry in entries {
        verifier.next(entry)?;
    }
    verifier.finish(head)
}

#[cfg(test)]
mod tests;
