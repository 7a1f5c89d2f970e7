//! Audit entries about closed periods and changed budgets, until they are published.

use audit_outbox::{AuditRow, AuditTable};

use super::Store;
use crate::error::Error;

/// The table of these entries.
pub(crate) static AUDIT_ENTRIES: AuditTable = AuditTable {
    service: "cost-engine",
    kind: "cost",
    table: "audit_entries",
    id: "audit_id",
    cluster: Some("cluster"),
    body: "audit_entry",
    sequence: None,
};

impl Store {
    /// The entries that JetStream does not have yet.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn unpublished_audit_entries(&self) -> Result<Vec<AuditRow>, Error> {
        let rows = AUDIT_ENTRIES.unpublished(&self.database, u32::MAX).await?;
        Ok(rows)
    }
}
