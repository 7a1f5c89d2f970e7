//! How the chain grows.
//!
//! A fact is kept once, by its id. What comes again with the same bytes is a duplicate; what comes again with other bytes is a
//! conflict: the first stays. Observers of one fact agree on its id but not on every byte (each notes when *it* looked), so a conflict is
//! no alarm, but it is counted.

use std::collections::HashMap;

use ledger_format::chain::{self, GENESIS, Hash};

use super::fact::Fact;

/// End of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Sequence of the last entry; 0 before the first.
    pub seq: u64,
    /// Chain value of the last entry.
    pub chain: Hash,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            seq: 0,
            chain: GENESIS,
        }
    }
}

/// A new entry of the chain.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Sequence, dense, from 1.
    pub seq: u64,
    /// Leaf hash of the fact at this sequence.
    pub leaf: Hash,
    /// Chain value.
    pub chain: Hash,
    /// What is kept.
    pub fact: Fact,
}

/// What is known of an id that is already in the ledger.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Sequence it was given.
    pub seq: u64,
    /// Its leaf hash.
    pub leaf: Hash,
}

/// An id that came again with other bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The id.
    pub id: String,
    /// Sequence of the entry that is kept.
    pub kept: u64,
}

/// What a batch does to the ledger.
#[derive(Clone, Debug, Default)]
pub struct Appended {
    /// Entries to store, in order.
    pub entries: Vec<Entry>,
    /// End of the chain after them.
    pub head: Head,
    /// How many facts were there already, byte for byte.
    pub duplicates: u64,
    /// Facts that were there already with other bytes.
    pub conflicts: Vec<Conflict>,
}

/// Chains the facts that are new to the head.
pub fn append(head: Head, facts: Vec<Fact>, known: &HashMap<String, Known>) -> Appended {
    let mut appended = Appended {
        head,
        ..Appended::default()
    };
    let mut in_batch: HashMap<String, Known> = HashMap::new();
    for fact in facts {
        if let Some(known) = known.get(&fact.id).or_else(|| in_batch.get(&fact.id)) {
            // The leaf hashes everything a stranger can check, so two facts are the same if they have the same leaf at the same place.
            if fact.leaf(known.seq) == known.leaf {
                appended.duplicates += 1;
            } else {
                appended.conflicts.push(Conflict {
                    id: fact.id,
                    kept: known.seq,
                });
            }
            continue;
        }
        let seq = appended.head.seq + 1;
        let leaf = fact.leaf(seq);
        let chain = chain::chain_hash(&appended.head.chain, &leaf);
        appended.head = Head { seq, chain };
        in_batch.insert(fact.id.clone(), Known { seq, leaf });
        appended.entries.push(Entry {
            seq,
            leaf,
            chain,
            fact,
        });
    }
    appended
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fact(id: u8, body: u8) -> Fact {
        Fact::for_tests(&format!("id-{id}"), &[body])
    }

    /// Splits a list of facts into batches and appends them as the store does.
    fn in_batches(facts: &[(u8, u8)], size: usize) -> (Vec<Entry>, u64, usize) {
        let mut head = Head::default();
        let mut known = HashMap::new();
        let (mut entries, mut duplicates, mut conflicts) = (Vec::new(), 0, 0);
        for batch in facts.chunks(size) {
            let appended = append(
                head,
                batch.iter().map(|(id, body)| fact(*id, *body)).collect(),
                &known,
            );
            head = appended.head;
            for entry in &appended.entries {
                known.insert(
                    entry.fact.id.clone(),
                    Known {
                        seq: entry.seq,
                        leaf: entry.leaf,
                    },
                );
            }
            entries.extend(appended.entries);
            duplicates += appended.duplicates;
            conflicts += appended.conflicts.len();
        }
        (entries, duplicates, conflicts)
    }

    proptest! {
        #[test]
        fn batching_changes_nothing_and_every_id_is_kept_once(
            facts in proptest::collection::vec((0u8..20, 0u8..3), 1..60),
            size in 1usize..20,
        ) {
            let (entries, duplicates, conflicts) = in_batches(&facts, size);
            let (reference, ..) = in_batches(&facts, facts.len());
            prop_assert_eq!(entries.len() + usize::try_from(duplicates).unwrap() + conflicts, facts.len());
            let mut seen = std::collections::HashSet::new();
            for (index, entry) in entries.iter().enumerate() {
                prop_assert_eq!(entry.seq, index as u64 + 1);
                prop_assert!(seen.insert(entry.fact.id.clone()));
                prop_assert_eq!(entry.chain, reference[index].chain);
                // The first bytes of an id are those that are kept.
                let first = facts.iter().find(|(id, _)| entry.fact.id == format!("id-{id}")).unwrap();
                prop_assert_eq!(entry.fact.body.as_ref(), &[first.1]);
            }
        }
    }

    #[test]
    fn the_same_id_with_other_bytes_keeps_the_first() {
        let appended = append(
            Head::default(),
            vec![fact(1, 1), fact(1, 1), fact(1, 2)],
            &HashMap::new(),
        );
        assert_eq!(appended.entries.len(), 1);
        assert_eq!(appended.duplicates, 1);
        assert_eq!(
            appended.conflicts,
            [Conflict {
                id: "id-1".into(),
                kept: 1
            }]
        );
    }
}
