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
use std::fmt;

use mesh_events::chain::{self, GENESIS, Hash};
use mesh_events::merkle::Frontier;

use super::checkpoint::Checkpoint;
use super::note::PublicKey;

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
    /// The leaf hash of its content at a sequence; `None` if id, cluster or subject are no text, which were never chained.
    fn leaf_at(&self, seq: u64, payload: &Payload) -> Option<Hash> {
        let leaf = chain::Entry {
            cluster: str::from_utf8(&payload.cluster).ok()?,
            seq,
            id: str::from_utf8(&self.id).ok()?,
            subject: str::from_utf8(&payload.subject).ok()?,
            body: &payload.body,
        }
        .leaf();
        Some(leaf)
    }
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
    /// How many entries have no payload any more, as retention has archived it: only their hashes were checked.
    pub archived: u64,
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

/// The first place where the ledger does not fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstBad {
    /// Sequence.
    pub seq: i64,
    /// What is wrong there.
    pub what: Fault,
}

impl fmt::Display for FirstBad {
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
    /// As [`Self::RewrittenUpTo`], by a checkpoint that was kept elsewhere.
    ForkedUpTo(u64),
    /// The checkpoint that counts up to here is not signed by a trusted key, or its columns are not what was signed.
    CheckpointForged,
    /// The line of an export is none.
    Unreadable,
    /// The chain fits from end to end, but the columns for queries are not those of the entry's body: queries hide it or show it to others.
    IndexDiffers,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
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
            Self::HeadChanged => "the head's chain value is not the one of this, the last entry",
            Self::IndexDiffers => {
                "the chain is whole, but the row in event_index is not what the body says: queries cannot be trusted until the index is made anew"
            }
        })
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
        }
    }

    /// Sequence of the last entry that was verified.
    pub const fn last(&self) -> i64 {
        self.last
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
        let expected = self.in_order(entry)?;
        let bad = |what| {
            Err(FirstBad {
                seq: expected,
                what,
            })
        };
        let Some(payload) = &entry.payload else {
            return bad(Fault::PayloadMissing);
        };
        let leaf = entry.leaf_at(expected.unsigned_abs(), payload);
        let link = leaf.map(|leaf| (leaf, chain::link(&self.chain, &leaf)));
        let leaf_fits = leaf.is_some_and(|leaf| entry.leaf == leaf);
        let chained = link.filter(|(_, link)| entry.chain == link);
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
        let expected = self.in_order(entry)?;
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
    const fn in_order(&self, entry: &Stored) -> Result<i64, FirstBad> {
        let expected = self.last + 1;
        if entry.seq > expected {
            return Err(FirstBad {
                seq: expected,
                what: Fault::Missing,
            });
        }
        if entry.seq < expected {
            return Err(FirstBad {
                seq: entry.seq,
                what: Fault::Extra,
            });
        }
        Ok(expected)
    }

    /// The entry's leaf and chain value, if the one follows from the other.
    fn chained_leaf(&self, entry: &Stored) -> Option<(Hash, Hash)> {
        let leaf = Hash::try_from(entry.leaf.as_slice()).ok()?;
        let link = chain::link(&self.chain, &leaf);
        (entry.chain == link).then_some((leaf, link))
    }

    fn take(&mut self, leaf: Hash, link: Hash) -> Result<(), FirstBad> {
        self.last += 1;
        self.chain = link;
        self.tree.push(leaf);
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
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::append::{Head, append};
    use crate::domain::fact::Fact;

    fn ledger(count: u8) -> (Vec<Stored>, StoredHead) {
        let facts = (0..count)
            .map(|n| Fact::for_tests(&format!("id-{n}"), &[n, 1, 2, 3]))
            .collect();
        let appended = append(Head::default(), facts, &HashMap::new());
        let entries = appended
            .entries
            .into_iter()
            .map(|entry| Stored {
                seq: entry.seq.cast_signed(),
                id: entry.fact.id.into_bytes(),
                leaf: entry.leaf.to_vec(),
                chain: entry.chain.to_vec(),
                payload: Some(Payload {
                    cluster: entry.fact.cluster.into_bytes(),
                    subject: entry.fact.subject.into_bytes(),
                    body: entry.fact.body.to_vec(),
                }),
            })
            .collect();
        let head = StoredHead {
            seq: appended.head.seq.cast_signed(),
            chain: appended.head.chain.to_vec(),
        };
        (entries, head)
    }

    /// Tampers with an untouched ledger of ten entries and says what is found.
    fn check(tamper: impl FnOnce(&mut Vec<Stored>, &mut StoredHead), seq: i64, what: Fault) {
        let (mut entries, mut head) = ledger(10);
        tamper(&mut entries, &mut head);
        assert_eq!(verify(&entries, &head), Err(FirstBad { seq, what }));
    }

    fn payload(entry: &mut Stored) -> &mut Payload {
        entry.payload.as_mut().unwrap()
    }

    #[test]
    fn an_untouched_ledger_is_verified() {
        for count in [0, 1, 10] {
            let (entries, head) = ledger(count);
            let verified = verify(&entries, &head).unwrap();
            assert_eq!(verified.count, u64::from(count));
            assert_eq!(verified.head.as_slice(), head.chain.as_slice());
        }
    }

    #[test]
    fn changed_content_is_named() {
        check(
            |e, _| payload(&mut e[4]).body[0] ^= 1,
            5,
            Fault::ContentChanged,
        );
        check(
            |e, _| payload(&mut e[0]).subject.push(b'x'),
            1,
            Fault::ContentChanged,
        );
        check(
            |e, _| payload(&mut e[9]).cluster = "d".into(),
            10,
            Fault::ContentChanged,
        );
        check(|e, _| e[4].id = "other".into(), 5, Fault::ContentChanged);
    }

    #[test]
    fn content_that_is_no_text_is_named() {
        check(|e, _| e[4].id = vec![0xff], 5, Fault::ContentChanged);
        check(
            |e, _| payload(&mut e[4]).subject[0] = 0xff,
            5,
            Fault::ContentChanged,
        );
        check(
            |e, _| payload(&mut e[4]).cluster = vec![0xff, b'A'],
            5,
            Fault::ContentChanged,
        );
    }

    #[test]
    fn changed_hashes_are_named() {
        check(|e, _| e[4].leaf[31] ^= 1, 5, Fault::LeafChanged);
        check(|e, _| e[4].chain[0] ^= 1, 5, Fault::ChainBroken);
        check(|e, _| e[4].leaf.clear(), 5, Fault::LeafChanged);
        check(|_, h| h.chain[0] ^= 1, 10, Fault::HeadChanged);
    }

    #[test]
    fn swapped_entries_are_named() {
        check(
            |e, _| {
                e.swap(4, 6);
                e[4].seq = 5;
                e[6].seq = 7;
            },
            5,
            Fault::Replaced,
        );
        check(
            |e, _| {
                let other = e[6].payload.clone();
                e[6].payload = e[4].payload.take();
                e[4].payload = other;
            },
            5,
            Fault::ContentChanged,
        );
    }

    #[test]
    fn rewritten_entries_break_the_chain() {
        check(
            |e, _| {
                payload(&mut e[4]).body[0] ^= 1;
                let content = payload(&mut e[4]).clone();
                e[4].leaf = e[4].leaf_at(5, &content).unwrap().to_vec();
            },
            5,
            Fault::ChainBroken,
        );
    }

    #[test]
    fn missing_and_extra_entries_are_named() {
        check(|e, _| drop(e.remove(4)), 5, Fault::Missing);
        check(|e, _| drop(e.remove(0)), 1, Fault::Missing);
        check(|e, _| e[4].payload = None, 5, Fault::PayloadMissing);
        check(|e, _| e.truncate(7), 8, Fault::CutOff);
        check(|e, _| e.clear(), 1, Fault::CutOff);
        check(|e, _| e.insert(4, e[3].clone()), 4, Fault::Extra);
        check(
            |_, h| {
                let (_, shorter) = ledger(7);
                *h = shorter;
            },
            8,
            Fault::Extra,
        );
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_found_where_it_is(at in 0usize..10, column in 0usize..3, byte: prop::sample::Index, bit in 0u32..8) {
            let (mut entries, head) = ledger(10);
            let bytes = match column {
                0 => &mut payload(&mut entries[at]).body,
                1 => &mut entries[at].leaf,
                _ => &mut entries[at].chain,
            };
            let byte = byte.index(bytes.len());
            bytes[byte] ^= 1 << bit;
            prop_assert_eq!(verify(&entries, &head).unwrap_err().seq, at as i64 + 1);
        }
    }
}
