//! The hashes needed for a proof. RFC 6962 §2.1.1 (audit paths) and §2.1.2 (consistency).

use super::Range;

/// The requested proof lies outside the tree.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{what} is outside a tree of {size} leaves")]
pub struct OutOfRange {
    /// Requested leaf index, or requested size of the smaller tree.
    pub what: u64,
    /// Number of leaves of the tree.
    pub size: u64,
}

/// Returns the ranges whose hashes prove that a leaf is in a tree, in proof order: from the leaf up
/// to the root.
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

/// Returns the ranges whose hashes prove that one tree is a prefix of another, in proof order. It
/// is empty if both trees have the same size, or the smaller one has no leaves.
///
/// # Errors
/// If `from` is larger than `to`.
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
    // Descends to the subtree where the smaller tree ends.
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
    // If this is the whole smaller tree, the verifier knows its root already.
    if start > 0 {
        path.push(Range { start, end });
    }
    path.reverse();
    Ok(path)
}

/// Number of leaves of the left subtree: the largest power of two below `leaves`, which is at
/// least 2.
const fn split(leaves: u64) -> u64 {
    1 << (leaves - 1).ilog2()
}
