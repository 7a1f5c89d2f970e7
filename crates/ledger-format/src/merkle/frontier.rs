//! A tree that grows at its right edge.

use super::{EMPTY_ROOT, Node, Range, parent};
use crate::chain::Hash;

/// The right edge of a tree: the hashes of its largest complete subtrees, from the largest to the
/// smallest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    peaks: Vec<Hash>,
}

/// The number of hashes does not match the size of the tree.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a tree of {size} leaves has {} complete subtrees at its edge, not {given}", size.count_ones())]
pub struct InvalidFrontier {
    /// Number of leaves.
    pub size: u64,
    /// Number of hashes that were given.
    pub given: usize,
}

impl Frontier {
    /// Creates the frontier of a tree from the hashes of the complete subtrees at its edge, the
    /// largest first.
    ///
    /// # Errors
    /// If the number of hashes does not match the size.
    pub fn new(size: u64, peaks: Vec<Hash>) -> Result<Self, InvalidFrontier> {
        if peaks.len() == size.count_ones() as usize {
            Ok(Self { size, peaks })
        } else {
            Err(InvalidFrontier {
                size,
                given: peaks.len(),
            })
        }
    }

    /// Returns the number of leaves.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the hashes of the complete subtrees at the edge, the largest first.
    pub fn peaks(&self) -> &[Hash] {
        &self.peaks
    }

    /// Returns the complete subtrees at the edge of a tree with `size` leaves, the largest first.
    pub fn nodes(size: u64) -> Vec<Node> {
        Range {
            start: 0,
            end: size,
        }
        .nodes()
    }

    /// Adds a leaf.
    pub fn push(&mut self, leaf: Hash) {
        self.push_with(leaf, |_, _| {});
    }

    /// Adds a leaf and calls `completed` for every subtree that it completes, beginning with the
    /// leaf itself.
    pub fn push_with(&mut self, leaf: Hash, mut completed: impl FnMut(Node, &Hash)) {
        let mut hash = leaf;
        completed(
            Node {
                level: 0,
                index: self.size,
            },
            &hash,
        );
        // Works like a binary increment: each trailing one is carried.
        for level in 1..=self.size.trailing_ones() {
            let Some(left) = self.peaks.pop() else { break };
            hash = parent(&left, &hash);
            completed(
                Node {
                    level: level as u8,
                    index: self.size >> level,
                },
                &hash,
            );
        }
        self.peaks.push(hash);
        self.size += 1;
    }

    /// Computes the root of the tree.
    pub fn root(&self) -> Hash {
        Range::hash(&self.peaks).unwrap_or(EMPTY_ROOT)
    }
}
