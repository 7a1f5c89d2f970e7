//! The Merkle tree over the ledger's leaves, as RFC 6962 §2.1 builds it: roots, proofs, and their verification.
//!
//! The tree never holds all leaves in memory. [`Frontier`] grows it leaf by leaf and keeps one hash per complete subtree on the left edge,
//! at most 64. Proofs name the hashes they need as [`Range`]s of leaves; whoever stores the tree looks up the complete subtrees
//! ([`Node`]) that a range is made of.
//!
//! The leaf at index `i` (from 0) is the one of the ledger's entry with sequence `i + 1`.

mod frontier;
mod prove;
mod verify;

use sha2::{Digest as _, Sha256};

use crate::chain::Hash;

pub use frontier::{Frontier, InvalidFrontier};
pub use prove::{OutOfRange, consistency, inclusion};
pub use verify::{verify_consistency, verify_inclusion};

/// Root of the tree without leaves: the hash of nothing.
pub const EMPTY_ROOT: Hash = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// The hash above two others: SHA-256 of a one byte, the left and the right.
pub fn parent(left: &Hash, right: &Hash) -> Hash {
    let mut hash = Sha256::new();
    hash.update([1]);
    hash.update(left);
    hash.update(right);
    hash.finalize().into()
}

/// A complete subtree: 2^level leaves, the first of which has index `index` · 2^level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// Height: 0 is a leaf.
    pub level: u8,
    /// Place among the nodes of its level, from 0.
    pub index: u64,
}

/// The leaves from `start` up to, but not including, `end`, as they occur in a tree: a complete subtree, or the right edge of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First leaf.
    pub start: u64,
    /// Leaf after the last.
    pub end: u64,
}

impl Range {
    /// The complete subtrees it is made of, from left to right: each as large as its place allows.
    pub fn nodes(self) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut start = self.start;
        while start < self.end {
            // As high as the start is aligned, and no higher than what is left.
            let level = start.trailing_zeros().min((self.end - start).ilog2());
            nodes.push(Node {
                level: level as u8,
                index: start >> level,
            });
            start += 1 << level;
        }
        nodes
    }

    /// Its hash, from the hashes of [`nodes`](Self::nodes) in their order; `None` if there are none.
    pub fn hash(hashes: &[Hash]) -> Option<Hash> {
        let (last, before) = hashes.split_last()?;
        Some(
            before
                .iter()
                .rfold(*last, |right, left| parent(left, &right)),
        )
    }
}
