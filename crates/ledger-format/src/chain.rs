//! The hashed bytes of ledger entries, leaves and the chain.
//!
//! - entry: five fields, each preceded by its length as four bytes, big endian: cluster, seq (eight
//!   bytes, big endian), id (text), subject, body. The body is stored as received and never
//!   re-encoded, because protobuf has no canonical form.
//! - leaf: SHA-256 of a zero byte and the entry (the leaf hash of RFC 6962 §2.1).
//! - chain: SHA-256 of the previous chain value and the leaf. The value before the first entry is
//!   32 zero bytes.

use sha2::{Digest, Sha256};

/// A SHA-256 value.
pub type Hash = [u8; 32];

/// The chain value before the first entry.
pub const GENESIS: Hash = [0; 32];

/// The fields of a ledger entry that its leaf hash covers.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Slurm's ClusterName.
    pub cluster: &'a str,
    /// Sequence in the ledger, from 1.
    pub seq: u64,
    /// Id of the event, lower-case text.
    pub id: &'a str,
    /// NATS subject on which it was received.
    pub subject: &'a str,
    /// Body as received.
    pub body: &'a [u8],
}

impl Entry<'_> {
    /// Computes the leaf hash.
    pub fn leaf(&self) -> Hash {
        let mut hash = Sha256::new();
        hash.update([0]);
        let seq = self.seq.to_be_bytes();
        let fields: [&[u8]; 5] = [
            self.cluster.as_bytes(),
            &seq,
            self.id.as_bytes(),
            self.subject.as_bytes(),
            self.body,
        ];
        for field in fields {
            hash.update(length(field.len()));
            hash.update(field);
        }
        hash.finalize().into()
    }
}

/// Returns the length prefix of a field.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes)
        .expect("fields of entries are far below 4 GiB: NATS refuses larger messages")
        .to_be_bytes()
}

/// Computes the chain value after an entry.
pub fn chain_hash(before: &Hash, leaf: &Hash) -> Hash {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(leaf);
    hash.finalize().into()
}
