//! Appends records to the chain.
//!
//! Each id is stored once. A record with a known id and the same bytes is a duplicate. With
//! different bytes it is a conflict, and the first record is retained. Observers of one event agree
//! on its id, but not on every byte (`observed_at` differs). Conflicts are therefore counted, but
//! are not errors.

use std::collections::HashMap;

use ledger_format::chain::{self, GENESIS, Hash};

use super::record::Record;

/// The head of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Sequence of the last entry, 0 before the first.
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
pub struct NewEntry {
    /// Sequence from 1, without gaps.
    pub seq: u64,
    /// Leaf hash of the record at this sequence.
    pub leaf: Hash,
    /// Chain value after this entry.
    pub chain: Hash,
    /// Index of its record among the appended records.
    pub record: usize,
}

/// A stored entry with the id of a record.
#[derive(Clone, Copy, Debug)]
pub struct ExistingEntry {
    /// Sequence of the entry.
    pub seq: u64,
    /// Leaf hash of the entry.
    pub leaf: Hash,
}

/// A record whose id is stored with different bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Id of the event.
    pub id: String,
    /// Sequence of the stored entry.
    pub stored_seq: u64,
}

/// Result of appending a batch.
#[derive(Clone, Debug, Default)]
pub struct AppendResult {
    /// Entries to store, in order.
    pub entries: Vec<NewEntry>,
    /// Head of the chain after them.
    pub head: Head,
    /// Records that were already stored with the same bytes.
    pub duplicates: u64,
    /// Records that were already stored with different bytes.
    pub conflicts: Vec<Conflict>,
}

/// Chains new records to the head. `known` has the stored entries with the id of one of the records.
pub fn append(
    head: Head,
    records: &[Record],
    known: &HashMap<String, ExistingEntry>,
) -> AppendResult {
    let mut appended = AppendResult {
        entries: Vec::with_capacity(records.len()),
        head,
        ..AppendResult::default()
    };
    let mut in_batch: HashMap<&str, ExistingEntry> = HashMap::with_capacity(records.len());
    for (index, record) in records.iter().enumerate() {
        let id = record.id.as_str();
        if let Some(known) = known.get(id).or_else(|| in_batch.get(id)) {
            // The leaf covers every field, so equal leaves at the same sequence mean equal records.
            if record.leaf(known.seq) == known.leaf {
                appended.duplicates += 1;
            } else {
                appended.conflicts.push(Conflict {
                    id: id.to_owned(),
                    stored_seq: known.seq,
                });
            }
            continue;
        }
        let seq = appended.head.seq + 1;
        let leaf = record.leaf(seq);
        let chain = chain::chain_hash(&appended.head.chain, &leaf);
        appended.head = Head { seq, chain };
        in_batch.insert(id, ExistingEntry { seq, leaf });
        appended.entries.push(NewEntry {
            seq,
            leaf,
            chain,
            record: index,
        });
    }
    appended
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(id: u8, body: u8) -> Record {
        Record::for_tests(&format!("id-{id}"), &[body])
    }

    /// Splits a list of records into batches and appends them as the store does.
    fn in_batches(records: &[(u8, u8)], size: usize) -> (Vec<(NewEntry, Record)>, u64, usize) {
        let mut head = Head::default();
        let mut known = HashMap::new();
        let (mut entries, mut duplicates, mut conflicts) = (Vec::new(), 0, 0);
        for batch in records.chunks(size) {
            let batch: Vec<Record> = batch.iter().map(|(id, body)| record(*id, *body)).collect();
            let appended = append(head, &batch, &known);
            head = appended.head;
            for entry in appended.entries {
                let record = batch[entry.record].clone();
                let (seq, leaf) = (entry.seq, entry.leaf);
                known.insert(record.id.clone(), ExistingEntry { seq, leaf });
                entries.push((entry, record));
            }
            duplicates += appended.duplicates;
            conflicts += appended.conflicts.len();
        }
        (entries, duplicates, conflicts)
    }

    proptest! {
        #[test]
        fn batching_changes_nothing_and_every_id_is_stored_once(
            records in proptest::collection::vec((0u8..20, 0u8..3), 1..60),
            size in 1usize..20,
        ) {
            let (entries, duplicates, conflicts) = in_batches(&records, size);
            let (reference, ..) = in_batches(&records, records.len());
            prop_assert_eq!(entries.len() + usize::try_from(duplicates).unwrap() + conflicts, records.len());
            let mut seen = std::collections::HashSet::new();
            for (index, (entry, record)) in entries.iter().enumerate() {
                prop_assert_eq!(entry.seq, index as u64 + 1);
                prop_assert!(seen.insert(record.id.clone()));
                prop_assert_eq!(entry.chain, reference[index].0.chain);
                // The first bytes of an id are retained.
                let first = records.iter().find(|(id, _)| record.id == format!("id-{id}")).unwrap();
                prop_assert_eq!(record.body.as_ref(), &[first.1]);
            }
        }
    }

    #[test]
    fn the_same_id_with_different_bytes_retains_the_first() {
        let appended = append(
            Head::default(),
            &[record(1, 1), record(1, 1), record(1, 2)],
            &HashMap::new(),
        );
        assert_eq!(appended.entries.len(), 1);
        assert_eq!(appended.duplicates, 1);
        assert_eq!(
            appended.conflicts,
            [Conflict {
                id: "id-1".into(),
                stored_seq: 1
            }]
        );
    }
}
