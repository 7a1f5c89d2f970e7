//! Audit entries about closed periods and changed budgets, until they are published.

use mesh_db::sql::{Row, Sql};

use super::Store;
use crate::error::Error;

/// An audit entry, for the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Id of the entry.
    pub audit_id: String,
    /// Cluster of the process.
    pub cluster: String,
    /// The entry.
    pub body: Vec<u8>,
}

impl AuditRow {
    /// The statement that stores it, for the transaction of what it is about.
    pub(super) fn insertion(&self) -> Sql {
        Sql::new("INSERT INTO audit_entries (audit_id, cluster, audit_entry) VALUES (")
            .list([
                (&self.audit_id).into(),
                (&self.cluster).into(),
                self.body.as_slice().into(),
            ])
            .push(")")
    }
}

impl Store {
    /// The entries that JetStream does not have yet.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn unpublished_audit_entries(&self) -> Result<Vec<AuditRow>, Error> {
        const ACTION: &str = "read audit entries";
        let sql = Sql::new("SELECT audit_id, cluster, audit_entry FROM audit_entries");
        let rows = self.database.rows(ACTION, &sql).await?;
        let read = |row: &Row| {
            Ok(AuditRow {
                audit_id: row.get("audit_id")?,
                cluster: row.get("cluster")?,
                body: row.get("audit_entry")?,
            })
        };
        let entries: Result<_, sqlx::Error> = rows.iter().map(read).collect();
        entries.map_err(Error::database(ACTION))
    }

    /// Removes an entry that JetStream has.
    ///
    /// # Errors
    /// If the database refuses. The entry is then published again, with the same id.
    pub async fn audit_entry_published(&self, audit_id: &str) -> Result<(), Error> {
        let sql = Sql::new("DELETE FROM audit_entries WHERE audit_id = ").bind(audit_id);
        self.database
            .change("remove audit entry", sql, Vec::new())
            .await?;
        Ok(())
    }
}
