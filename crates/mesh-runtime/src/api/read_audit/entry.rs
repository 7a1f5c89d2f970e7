//! The audit entry of a query.

use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, Read};

use super::DataOfOthers;

/// The entry of a query, apart from what was shown.
pub(super) struct ReadEntry {
    /// Beginning of its keys: cluster and service.
    pub prefix: String,
    pub entry: AuditEntry,
    pub read: Read,
}

impl ReadEntry {
    pub(super) fn key(&self, slot: u16) -> String {
        format!("{}.{slot}", self.prefix)
    }

    pub(super) fn with(&self, pages: u64, others: &DataOfOthers) -> AuditEntry {
        let mut read = self.read.clone();
        read.pages = pages;
        others.clone().put(&mut read);
        AuditEntry {
            act: Some(Act::Read(read)),
            ..self.entry.clone()
        }
    }
}
