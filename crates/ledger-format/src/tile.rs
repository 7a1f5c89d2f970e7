//! The stored part of the Merkle tree: the leaves, and the hashes of all complete subtrees of 256,
//! 256², 256³, … leaves.
//!
//! Hashes between these levels are computed on demand from a [`Tile`] of 256 stored hashes. A proof
//! in a ledger of ten million entries therefore reads a few tiles instead of all leaves. The stored
//! subtrees follow from the leaves and can be rebuilt.

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::Hash;
use crate::merkle::{Frontier, Node, Range};

/// Number of tree levels between two stored levels.
pub const TILE_HEIGHT: u8 = 8;
/// Number of hashes in a full tile.
pub const TILE_WIDTH: u64 = 1 << TILE_HEIGHT;

/// Up to 256 stored hashes of one level, starting at `index` · 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tile {
    /// Level in the tree, a multiple of 8. Level 0 holds the leaves.
    pub level: u8,
    /// Index among the tiles of its level.
    pub index: u64,
}

impl Tile {
    /// Returns the index of its first hash.
    pub const fn start(self) -> u64 {
        self.index * TILE_WIDTH
    }

    /// Returns the tile from which a subtree is computed, the offset of its first hash there, and
    /// the number of hashes.
    const fn of(node: Node) -> (Self, usize, usize) {
        let above = node.level % TILE_HEIGHT;
        let first = node.index << above;
        let tile = Self {
            level: node.level - above,
            index: first / TILE_WIDTH,
        };
        (tile, (first % TILE_WIDTH) as usize, 1 << above)
    }
}

/// Returns the tiles needed to compute the hashes of the given ranges.
pub fn tiles(ranges: &[Range]) -> BTreeSet<Tile> {
    ranges
        .iter()
        .flat_map(|range| range.nodes())
        .map(|node| Tile::of(node).0)
        .collect()
}

/// Tiles that were read from the database.
#[derive(Clone, Debug, Default)]
pub struct Tiles(BTreeMap<Tile, Vec<Hash>>);

impl Tiles {
    /// Adds a tile with its hashes, from the first on and without gaps.
    pub fn insert(&mut self, tile: Tile, hashes: Vec<Hash>) {
        self.0.insert(tile, hashes);
    }

    /// Appends a stored hash to its tile, if that tile was read.
    pub fn push(&mut self, node: Node, hash: Hash) {
        let tile = Tile {
            level: node.level,
            index: node.index / TILE_WIDTH,
        };
        if let Some(hashes) = self.0.get_mut(&tile)
            && tile.start() + hashes.len() as u64 == node.index
        {
            hashes.push(hash);
        }
    }

    /// Returns the hash of a subtree, or `None` if its tile was not read or is too short.
    fn node(&self, node: Node) -> Option<Hash> {
        let (tile, first, count) = Tile::of(node);
        let hashes = self.0.get(&tile)?.get(first..first + count)?;
        let mut subtree = Frontier::default();
        for hash in hashes {
            subtree.push(*hash);
        }
        Some(subtree.root())
    }

    /// Returns the hashes of the ranges, or `None` if a needed tile was not read.
    pub fn hashes(&self, ranges: &[Range]) -> Option<Vec<Hash>> {
        let hash = |range: &Range| {
            let nodes = range.nodes().into_iter().map(|node| self.node(node));
            Range::hash(&nodes.collect::<Option<Vec<_>>>()?)
        };
        ranges.iter().map(hash).collect()
    }

    /// Returns the frontier of a tree with `size` leaves, or `None` if a needed tile was not read.
    pub fn frontier(&self, size: u64) -> Option<Frontier> {
        let peaks = Frontier::nodes(size)
            .into_iter()
            .map(|node| self.node(node));
        Frontier::new(size, peaks.collect::<Option<_>>()?).ok()
    }
}

/// Adds a leaf, and appends the completed subtrees of stored levels to `subtrees`.
pub fn grow(frontier: &mut Frontier, leaf: Hash, subtrees: &mut Vec<(Node, Hash)>) {
    frontier.push_with(leaf, |node, hash| {
        if node.level > 0 && node.level % TILE_HEIGHT == 0 {
            subtrees.push((node, *hash));
        }
    });
}

#[cfg(test)]
mod tests {
    use crate::merkle::{consistency, inclusion, verify_consistency, verify_inclusion};
    use proptest::prelude::*;

    use super::*;

    /// The stored part of a tree, as in a database.
    struct StoredEntry(BTreeMap<u8, Vec<Hash>>);

    impl StoredEntry {
        fn of(size: u64) -> (Self, Frontier) {
            let mut levels: BTreeMap<u8, Vec<Hash>> = BTreeMap::new();
            let mut frontier = Frontier::default();
            let mut subtrees = Vec::new();
            for n in 0..size {
                levels.entry(0).or_default().push(leaf(n));
                grow(&mut frontier, leaf(n), &mut subtrees);
            }
            for (node, hash) in subtrees {
                let level = levels.entry(node.level).or_default();
                assert_eq!(node.index, level.len() as u64);
                level.push(hash);
            }
            (Self(levels), frontier)
        }

        fn read(&self, tiles: BTreeSet<Tile>) -> Tiles {
            let mut read = Tiles::default();
            for tile in tiles {
                let hashes = self.0[&tile.level].iter();
                let hashes = hashes.skip(tile.start() as usize).take(TILE_WIDTH as usize);
                read.insert(tile, hashes.copied().collect());
            }
            read
        }

        fn hashes(&self, ranges: &[Range]) -> Vec<Hash> {
            self.read(tiles(ranges)).hashes(ranges).unwrap()
        }
    }

    fn leaf(n: u64) -> Hash {
        let mut leaf = [7; 32];
        leaf[..8].copy_from_slice(&n.to_be_bytes());
        leaf
    }

    fn root(size: u64) -> Hash {
        let mut frontier = Frontier::default();
        for n in 0..size {
            frontier.push(leaf(n));
        }
        frontier.root()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3))]
        #[test]
        fn proofs_come_out_of_few_blocks(size in 1u64..70_000, a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()) {
            let (stored, frontier) = StoredEntry::of(size);
            let index = a.index(size as usize) as u64;
            let ranges = inclusion(index, size).unwrap();
            prop_assert!(tiles(&ranges).len() <= 6);
            let proof = stored.hashes(&ranges);
            prop_assert!(verify_inclusion(&leaf(index), index, size, &proof, &frontier.root()));

            let from = b.index(size as usize) as u64 + 1;
            let ranges = consistency(from, size).unwrap();
            prop_assert!(tiles(&ranges).len() <= 6);
            let proof = stored.hashes(&ranges);
            prop_assert!(verify_consistency(from, &root(from), size, &frontier.root(), &proof));

            let edge = Range { start: 0, end: from };
            let tiles = stored.read(tiles(&[edge]));
            prop_assert_eq!(tiles.frontier(from).unwrap().root(), root(from));
        }
    }

    #[test]
    fn unread_input_gives_no_hash() {
        let range = Range { start: 0, end: 3 };
        let mut read = Tiles::default();
        assert_eq!(read.hashes(&[range]), None);
        let [tile] = Vec::from_iter(tiles(&[range]))[..] else {
            panic!("leaves of one tile")
        };
        read.insert(tile, vec![leaf(0), leaf(1)]);
        assert_eq!((read.hashes(&[range]), read.frontier(3)), (None, None));
        assert!(read.frontier(2).is_some());
        assert_eq!(read.frontier(0), Some(Frontier::default()));
    }
}
