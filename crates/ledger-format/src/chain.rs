//! The bytes of ledger entries, leaves and the chain.
//!
//! - entry: five fields, each its length as four bytes, big endian, and its bytes: cluster, seq (eight bytes, big endian), id (text),
//!   subject, body. The body is what was received, never re-encoded: protobuf has no canonical form.
//! - leaf: SHA-256 of a zero byte and the entry (the leaf hash of RFC 6962 §2.1).
//! - chain: SHA-256 of the chain value before and the leaf; before the first entry stand 32 zero bytes.

use sha2::{Digest, Sha256};

/// A SHA-256 value.
pub type Hash = [u8; 32];

/// The chain value before the first entry.
pub const GENESIS: Hash = [0; 32];

/// What a ledger entry is made of.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Slurm's ClusterName.
    pub cluster: &'a str,
    /// Sequence in the ledger, from 1.
    pub seq: u64,
    /// Id of the event, lower-case text.
    pub id: &'a str,
    /// Subject it was received on.
    pub subject: &'a str,
    /// Body as it was received.
    pub body: &'a [u8],
}

impl Entry<'_> {
    /// The leaf hash.
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

/// The length prefix of a field.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes)
        .expect("fields of entries are far below 4 GiB: NATS refuses larger messages")
        .to_be_bytes()
}

/// The chain value after an entry.
pub fn chain_hash(before: &Hash, leaf: &Hash) -> Hash {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(leaf);
    hash.finalize().into()
}
