//! Tests the Merkle tree against known vectors, the definition in RFC 6962, and another
//! implementation.

use std::collections::HashMap;

use ledger_format::chain::Hash;
use ledger_format::merkle::{
    EMPTY_ROOT, Frontier, Node, Range, consistency, inclusion, parent, verify_consistency,
    verify_inclusion,
};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use tlog_tiles::{HashReader, check_record, check_tree, prove_record, prove_tree};

fn leaf_of(data: &[u8]) -> Hash {
    let mut hash = Sha256::new();
    hash.update([0]);
    hash.update(data);
    hash.finalize().into()
}

fn leaves(count: u64) -> Vec<Hash> {
    (0..count).map(|n| leaf_of(&n.to_be_bytes())).collect()
}

/// The definition of MTH in RFC 6962 §2.1, over all leaves.
fn root_by_definition(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => Sha256::digest([]).into(),
        [leaf] => *leaf,
        _ => {
            let mut k = 1;
            while k * 2 < leaves.len() {
                k *= 2;
            }
            parent(
                &root_by_definition(&leaves[..k]),
                &root_by_definition(&leaves[k..]),
            )
        }
    }
}

/// All complete subtrees of a tree, as a store would hold them.
struct Tree {
    frontier: Frontier,
    nodes: HashMap<Node, Hash>,
}

impl Tree {
    fn of(leaves: &[Hash]) -> Self {
        let mut tree = Self {
            frontier: Frontier::default(),
            nodes: HashMap::new(),
        };
        for leaf in leaves {
            let Tree { frontier, nodes } = &mut tree;
            frontier.push_with(*leaf, |node, hash| {
                assert!(nodes.insert(node, *hash).is_none());
            });
        }
        tree
    }

    fn hashes(&self, ranges: &[Range]) -> Vec<Hash> {
        let hash = |range: &Range| {
            let nodes = range.nodes();
            let hashes: Vec<Hash> = nodes.iter().map(|node| self.nodes[node]).collect();
            Range::hash(&hashes).unwrap()
        };
        ranges.iter().map(hash).collect()
    }

    fn inclusion(&self, index: u64, size: u64) -> Vec<Hash> {
        self.hashes(&inclusion(index, size).unwrap())
    }

    fn consistency(&self, from: u64, to: u64) -> Vec<Hash> {
        self.hashes(&consistency(from, to).unwrap())
    }
}

/// The other implementation numbers the hashes differently.
impl HashReader for Tree {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<tlog_tiles::Hash>, tlog_tiles::Error> {
        let hash = |index: &u64| {
            let (level, index) = tlog_tiles::tlog::split_stored_hash_index(*index);
            tlog_tiles::Hash(self.nodes[&Node { level, index }])
        };
        Ok(indexes.iter().map(hash).collect())
    }
}

/// Leaves and roots from the test data of Certificate Transparency's reference implementation
/// (google/certificate-transparency, `cpp/merkletree/merkle_tree_test.cc`).
const KNOWN: [(&str, &str); 8] = [
    (
        "",
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    ),
    (
        "00",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    ),
    (
        "10",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    ),
    (
        "2021",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
    (
        "3031",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    ),
    (
        "40414243",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    ),
    (
        "5051525354555657",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    ),
    (
        "606162636465666768696a6b6c6d6e6f",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    ),
];

#[test]
fn the_roots_are_those_of_certificate_transparency() {
    let mut frontier = Frontier::default();
    assert_eq!(frontier.root(), EMPTY_ROOT);
    for (data, root) in KNOWN {
        frontier.push(leaf_of(&hex::decode(data).unwrap()));
        assert_eq!(hex::encode(frontier.root()), root);
    }
}

#[test]
fn the_proofs_are_those_of_the_example_in_the_rfc() {
    // RFC 6962 §2.1.3: seven leaves d0 … d6.
    let range = |start, end| Range { start, end };
    let path = |index| inclusion(index, 7).unwrap();
    assert_eq!(path(0), [range(1, 2), range(2, 4), range(4, 7)]);
    assert_eq!(path(3), [range(2, 3), range(0, 2), range(4, 7)]);
    assert_eq!(path(4), [range(5, 6), range(6, 7), range(0, 4)]);
    assert_eq!(path(6), [range(4, 6), range(0, 4)]);
    let proof = |from| consistency(from, 7).unwrap();
    assert_eq!(
        proof(3),
        [range(2, 3), range(3, 4), range(0, 2), range(4, 7)]
    );
    assert_eq!(proof(4), [range(4, 7)]);
    assert_eq!(proof(6), [range(4, 6), range(6, 7), range(0, 4)]);
}

#[test]
fn impossible_sizes_cannot_be_proved() {
    assert!(inclusion(0, 0).is_err() && inclusion(7, 7).is_err());
    assert!(consistency(8, 7).is_err());
    assert!(consistency(0, 7).unwrap().is_empty() && consistency(7, 7).unwrap().is_empty());
    // The largest sizes neither overflow nor take long.
    assert_eq!(inclusion(0, u64::MAX).unwrap().len(), 64);
    assert!(consistency(1, u64::MAX).unwrap().len() <= 65);
    let huge = Range {
        start: 0,
        end: u64::MAX,
    };
    assert_eq!(huge.nodes().len(), 64);
}

#[test]
fn a_frontier_continues_from_its_hashes() {
    let leaves = leaves(100);
    for at in 0..=100usize {
        let tree = Tree::of(&leaves[..at]);
        let peaks: Vec<Hash> = Frontier::nodes(at as u64)
            .iter()
            .map(|node| tree.nodes[node])
            .collect();
        assert!(Frontier::new(at as u64 + 1, peaks.clone()).is_err() || at % 2 == 1);
        let mut frontier = Frontier::new(at as u64, peaks).unwrap();
        for leaf in &leaves[at..] {
            frontier.push(*leaf);
        }
        assert_eq!(frontier, Tree::of(&leaves).frontier);
    }
}

proptest! {
    #[test]
    fn roots_and_proofs_are_those_of_the_definition_and_of_another_implementation(
        size in 1u64..300,
        first in any::<prop::sample::Index>(),
        second in any::<prop::sample::Index>(),
    ) {
        let leaves = leaves(size);
        let tree = Tree::of(&leaves);
        let root = tree.frontier.root();
        prop_assert_eq!(root, root_by_definition(&leaves));
        prop_assert_eq!(root, tlog_tiles::tree_hash(size, &tree).unwrap().0);

        let index = first.index(leaves.len()) as u64;
        let leaf = leaves[index as usize];
        let proof = tree.inclusion(index, size);
        let theirs = prove_record(size, index, &tree).unwrap();
        prop_assert_eq!(&proof, &theirs.iter().map(|hash| hash.0).collect::<Vec<_>>());
        prop_assert!(verify_inclusion(&leaf, index, size, &proof, &root));
        let ours = proof.iter().map(|hash| tlog_tiles::Hash(*hash)).collect();
        prop_assert!(check_record(&ours, size, tlog_tiles::Hash(root), index, tlog_tiles::Hash(leaf)).is_ok());

        let from = second.index(leaves.len()) as u64 + 1;
        let from_root = root_by_definition(&leaves[..from as usize]);
        let proof = tree.consistency(from, size);
        let theirs = prove_tree(size, from, &tree).unwrap();
        prop_assert_eq!(&proof, &theirs.iter().map(|hash| hash.0).collect::<Vec<_>>());
        prop_assert!(verify_consistency(from, &from_root, size, &root, &proof));
        let ours = proof.iter().map(|hash| tlog_tiles::Hash(*hash)).collect();
        prop_assert!(check_tree(&ours, size, tlog_tiles::Hash(root), from, tlog_tiles::Hash(from_root)).is_ok());
    }

    #[test]
    fn a_proof_of_something_else_is_refused(
        size in 2u64..300,
        at in any::<prop::sample::Index>(),
        element in any::<prop::sample::Index>(),
        bit in 0usize..256,
    ) {
        let leaves = leaves(size);
        let tree = Tree::of(&leaves);
        let root = tree.frontier.root();
        let flip = |hash: &Hash| {
            let mut hash = *hash;
            hash[bit / 8] ^= 1 << (bit % 8);
            hash
        };
        let flip_one = |proof: &[Hash]| {
            let mut proof = proof.to_vec();
            let place = element.index(proof.len());
            proof[place] = flip(&proof[place]);
            proof
        };

        let index = at.index(leaves.len()) as u64;
        let leaf = leaves[index as usize];
        let proof = tree.inclusion(index, size);
        prop_assert!(!verify_inclusion(&flip(&leaf), index, size, &proof, &root));
        prop_assert!(!verify_inclusion(&leaf, index, size, &proof, &flip(&root)));
        prop_assert!(!verify_inclusion(&leaf, index, size, &flip_one(&proof), &root));
        prop_assert!(!verify_inclusion(&leaf, index, size, &proof[1..], &root));
        prop_assert!(!verify_inclusion(&leaf, index, size, &[&proof[..], &[root]].concat(), &root));
        prop_assert!(!verify_inclusion(&leaf, (index + 1) % size, size, &proof, &root));
        prop_assert!(!verify_inclusion(&leaf, size, size, &proof, &root));

        let from = at.index(leaves.len() - 1) as u64 + 1;
        let from_root = root_by_definition(&leaves[..from as usize]);
        let proof = tree.consistency(from, size);
        prop_assert!(!verify_consistency(from, &flip(&from_root), size, &root, &proof));
        prop_assert!(!verify_consistency(from, &from_root, size, &flip(&root), &proof));
        prop_assert!(!verify_consistency(from, &from_root, size, &root, &flip_one(&proof)));
        prop_assert!(!verify_consistency(from, &from_root, size, &root, &proof[1..]));
        prop_assert!(!verify_consistency(from, &from_root, size, &root, &[&proof[..], &[root]].concat()));
        prop_assert!(!verify_consistency(size, &root, from, &from_root, &proof));
    }
}
