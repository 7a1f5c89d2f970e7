//! Which hashes a proof is made of. RFC 6962 §2.1.1 (audit paths) and §2.1.2 (consistency).

use super::Range;

/// A proof was asked for that no tree has.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{what} is not within a tree of {size} leaves")]
pub struct OutOfRange {
    /// Index of a leaf, or the size of the smaller tree.
    pub what: u64,
    /// Leaves of the tree.
    pub size: u64,
}

/// The ranges whose hashes prove that a leaf is in a tree, in the order of the proof: from the leaf up to the root.
///
/// # Errors
/// If the tree has no such leaf.
pub fn inclusion(index: u64, size: u64) -> Result<Vec<Range>, OutOfRange> {
    if index >= size {
        return Err(OutOfRange { what: index, size });
    }
    let (mut start, mut end) = (0, size);
    let mut path = Vec::new();
    while end - start > 1 {
        let middle = start + split(end - start);
        if index < middle {
            path.push(Range { start: middle, end });
            end = middle;
        } else {
            path.push(Range { start, end: middle });
            start = middle;
        }
    }
    path.reverse();
    Ok(path)
}

/// The ranges whose hashes prove that a tree is the beginning of another, in the order of the proof. Empty if they are of one size, or if the
/// smaller one has no leaves.
///
/// # Errors
/// If the first is the larger.
pub fn consistency(from: u64, to: u64) -> Result<Vec<Range>, OutOfRange> {
    if from > to {
        return Err(OutOfRange {
            what: from,
            size: to,
        });
    }
    if from == 0 {
        return Ok(Vec::new());
    }
    let (mut start, mut end) = (0, to);
    let mut path = Vec::new();
    // Down to the subtree where the smaller tree ends.
    while end != from {
        let middle = start + split(end - start);
        if from <= middle {
            path.push(Range { start: middle, end });
            end = middle;
        } else {
            path.push(Range { start, end: middle });
            start = middle;
        }
    }
    // If that is the whole smaller tree, its root is known and not repeated.
    if start > 0 {
        path.push(Range { start, end });
    }
    path.reverse();
    Ok(path)
}

/// Leaves of the left subtree: the largest power of two below a number of leaves, which is at least two.
const fn split(leaves: u64) -> u64 {
    1 << (leaves - 1).ilog2()
}
