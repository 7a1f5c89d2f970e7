//! The Merkle tree over the ledger's leaves, built as in RFC 6962 §2.1: roots, proofs, and their
//! verification.
//!
//! The tree is never held in memory as a whole. [`Frontier`] adds leaves one by one and holds one
//! hash per complete subtree at the right edge, at most 64. A proof names the hashes that it needs
//! as [`Range`]s of leaves. The store of the tree then looks up the complete subtrees ([`Node`]s)
//! of each range.
//!
//! The leaf at index `i` (from 0) belongs to the entry with sequence `i + 1`.

mod frontier;
mod prove;
mod verify;

use sha2::{Digest as _, Sha256};

use crate::chain::Hash;

pub use frontier::{Frontier, InvalidFrontier};
pub use prove::{OutOfRange, consistency, inclusion};
pub use verify::{verify_consistency, verify_inclusion};

/// Root of the tree without leaves: SHA-256 of an empty string.
pub const EMPTY_ROOT: Hash = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// Computes the hash of an inner node: SHA-256 of a byte 1, the left hash and the right hash.
pub fn parent(left: &Hash, right: &Hash) -> Hash {
    let mut hash = Sha256::new();
    hash.update([1]);
    hash.update(left);
    hash.update(right);
    hash.finalize().into()
}

/// A complete subtree of 2^level leaves. Its first leaf has index `index` · 2^level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// Height: 0 is a leaf.
    pub level: u8,
    /// Index among the nodes of its level, from 0.
    pub index: u64,
}

/// The leaves from `start` up to, but not including, `end`. In a tree they form a complete subtree,
/// or its right edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Index of the first leaf.
    pub start: u64,
    /// Index after the last leaf.
    pub end: u64,
}

impl Range {
    /// Splits the range into complete subtrees from left to right, each as large as its position
    /// allows.
    pub fn nodes(self) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut start = self.start;
        while start < self.end {
            // Limited by the alignment of the start and the number of remaining leaves.
            let level = start.trailing_zeros().min((self.end - start).ilog2());
            nodes.push(Node {
                level: level as u8,
                index: start >> level,
            });
            start += 1 << level;
        }
        nodes
    }

    /// Computes the hash of a range from the hashes of its [`nodes`](Self::nodes), in order.
    /// Returns `None` if there are none.
    pub fn hash(hashes: &[Hash]) -> Option<Hash> {
        let (last, before) = hashes.split_last()?;
        Some(
            before
                .iter()
                .rfold(*last, |right, left| parent(left, &right)),
        )
    }
}
