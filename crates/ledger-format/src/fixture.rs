//! A small ledger for tests.

use crate::chain::{self, GENESIS};
use crate::verify::{StoredEntry, StoredHead, StoredPayload};

/// Builds a ledger of `count` entries and its head.
pub(crate) fn ledger(count: u8) -> (Vec<StoredEntry>, StoredHead) {
    let mut chain = GENESIS;
    let mut entries = Vec::new();
    for n in 0..count {
        let (id, body) = (format!("id-{n}"), [n, 1, 2, 3]);
        let entry = chain::Entry {
            cluster: "c",
            seq: u64::from(n) + 1,
            id: &id,
            subject: "slurm.c.job.submitted.p.u",
            body: &body,
        };
        let leaf = entry.leaf();
        chain = chain::chain_hash(&chain, &leaf);
        entries.push(StoredEntry {
            seq: entry.seq.cast_signed(),
            leaf: leaf.to_vec(),
            chain: chain.to_vec(),
            payload: Some(StoredPayload {
                cluster: entry.cluster.into(),
                subject: entry.subject.into(),
                body: body.to_vec(),
            }),
            id: id.into_bytes(),
        });
    }
    let head = StoredHead {
        seq: i64::from(count),
        chain: chain.to_vec(),
    };
    (entries, head)
}
