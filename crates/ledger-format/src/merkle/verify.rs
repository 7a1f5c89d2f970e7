//! Verification of proofs. RFC 9162 §2.1.3.2 and §2.1.4.2; the trees are those of RFC 6962.

use super::{EMPTY_ROOT, parent};
use crate::chain::Hash;

/// True if the proof shows that the tree of this root and size has the leaf at this index.
pub fn verify_inclusion(leaf: &Hash, index: u64, size: u64, proof: &[Hash], root: &Hash) -> bool {
    if index >= size {
        return false;
    }
    let (mut first, mut last) = (index, size - 1);
    let mut hash = *leaf;
    for beside in proof {
        if last == 0 {
            return false;
        }
        if first % 2 == 1 || first == last {
            hash = parent(beside, &hash);
            // At the right edge, some levels have no sibling.
            while first % 2 == 0 && first != 0 {
                first >>= 1;
                last >>= 1;
            }
        } else {
            hash = parent(&hash, beside);
        }
        first >>= 1;
        last >>= 1;
    }
    last == 0 && hash == *root
}

/// True if the proof shows that the tree of size `from` is a prefix of the tree of size `to`.
pub fn verify_consistency(
    from: u64,
    from_root: &Hash,
    to: u64,
    to_root: &Hash,
    proof: &[Hash],
) -> bool {
    if from == to {
        return proof.is_empty() && from_root == to_root;
    }
    if from == 0 {
        return proof.is_empty() && *from_root == EMPTY_ROOT;
    }
    if from > to {
        return false;
    }
    // If the smaller tree is one complete subtree, the proof starts with its root and omits it.
    let (begin, rest) = if from.is_power_of_two() {
        (*from_root, proof)
    } else {
        match proof.split_first() {
            Some((first, rest)) => (*first, rest),
            None => return false,
        }
    };
    let (mut first, mut last) = (from - 1, to - 1);
    while first % 2 == 1 {
        first >>= 1;
        last >>= 1;
    }
    let (mut smaller, mut larger) = (begin, begin);
    for beside in rest {
        if last == 0 {
            return false;
        }
        if first % 2 == 1 || first == last {
            smaller = parent(beside, &smaller);
            larger = parent(beside, &larger);
            while first % 2 == 0 && first != 0 {
                first >>= 1;
                last >>= 1;
            }
        } else {
            larger = parent(&larger, beside);
        }
        first >>= 1;
        last >>= 1;
    }
    last == 0 && smaller == *from_root && larger == *to_root
}
