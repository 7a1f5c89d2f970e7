//! The ledger's audit entries about its own archives and keys, as evidence for the rows about them.

use ledger_format::chain::{self, Hash};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::subject;
use prost::Message as _;

/// The audit entry of an archive or a key.
#[derive(Clone, Debug)]
pub struct Audited {
    /// Sequence of the audit entry.
    pub seq: i64,
    /// Leaf of the audit entry.
    pub leaf: Vec<u8>,
    /// Body of the audit entry. Retention keeps it, so `None` means that another party removed it,
    /// or the retention of an earlier version.
    pub body: Option<Vec<u8>>,
    /// Names that the cluster of an entry without a body may have.
    pub clusters: Vec<String>,
}

impl Audited {
    /// True if the entry is the expected one of its cluster. The ledger computes these entries from
    /// rows, so without a body the leaf shows it: the leaf contains the body, to the byte.
    pub fn is(&self, expected: impl Fn(&str) -> AuditEntry) -> bool {
        match &self.body {
            Some(body) => {
                let expected = expected("");
                AuditEntry::decode(body.as_slice())
                    .is_ok_and(|stored| (stored.at, stored.act) == (expected.at, expected.act))
            }
            None => {
                let mut clusters = self.clusters.iter();
                clusters.any(|cluster| self.leaf == leaf(&expected(cluster), self.seq))
            }
        }
    }

    /// Returns the sequence if the content of the entry was removed.
    pub fn removed(&self) -> Option<i64> {
        self.body.is_none().then_some(self.seq)
    }
}

/// Computes the leaf of an audit entry that the ledger published itself.
fn leaf(entry: &AuditEntry, seq: i64) -> Hash {
    chain::Entry {
        cluster: &entry.cluster,
        seq: seq.cast_unsigned(),
        id: &entry.id,
        subject: &subject::audit(&entry.cluster, &entry.kind),
        body: &entry.encode_to_vec(),
    }
    .leaf()
}
