//! Budgets that were made by the API.

use audit_outbox::AuditRow;
use mesh_db::sql::{Row, Sql};

use super::{AUDIT_ENTRIES, Store};
use crate::error::Error;

impl Store {
    /// Names and contents of the budgets, by name.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn api_budgets(&self) -> Result<Vec<(String, String)>, Error> {
        const ACTION: &str = "read budgets";
        let sql = Sql::new("SELECT name, content FROM api_budgets ORDER BY name");
        let rows = self.database.rows(ACTION, &sql).await?;
        let read = |row: &Row| Ok((row.get("name")?, row.get("content")?));
        let budgets: Result<_, sqlx::Error> = rows.iter().map(read).collect();
        budgets.map_err(Error::database(ACTION))
    }

    /// Stores a budget, with the audit entry about it, over the content that the caller's right was checked for (`None`: there was no such
    /// budget). False if that is no longer the content.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn put_budget(
        &self,
        (name, content): (&str, &str),
        known: Option<&str>,
        (by, at): (&str, i64),
        audit: &AuditRow,
    ) -> Result<bool, Error> {
        let sql = match known {
            None => {
                Sql::new("INSERT INTO api_budgets (name, content, changed_by, changed_at) VALUES (")
                    .list([name.into(), content.into(), by.into(), at.into()])
                    .push(") ON CONFLICT (name) DO NOTHING")
            }
            Some(known) => Sql::new("UPDATE api_budgets SET content = ")
                .bind(content)
                .push(", changed_by = ")
                .bind(by)
                .push(", changed_at = ")
                .bind(at)
                .push(" WHERE name = ")
                .bind(name)
                .push(" AND content = ")
                .bind(known),
        };
        let changed =
            self.database
                .change("store budget", sql, vec![AUDIT_ENTRIES.insertion(audit)]);
        Ok(changed.await?)
    }

    /// Stores a budget that an audit entry has. False if there is one of its name.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn restore_budget(
        &self,
        (name, content): (&str, &str),
        (by, at): (&str, i64),
    ) -> Result<bool, Error> {
        let sql =
            Sql::new("INSERT INTO api_budgets (name, content, changed_by, changed_at) VALUES (")
                .list([name.into(), content.into(), by.into(), at.into()])
                .push(") ON CONFLICT (name) DO NOTHING");
        let changed = self.database.change("restore budget", sql, Vec::new());
        Ok(changed.await?)
    }

    /// Removes a budget with this content, with the audit entry about it. False if it does not exist or has another content.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn delete_budget(
        &self,
        (name, known): (&str, &str),
        audit: &AuditRow,
    ) -> Result<bool, Error> {
        let sql = Sql::new("DELETE FROM api_budgets WHERE name = ")
            .bind(name)
            .push(" AND content = ")
            .bind(known);
        let changed =
            self.database
                .change("remove budget", sql, vec![AUDIT_ENTRIES.insertion(audit)]);
        Ok(changed.await?)
    }
}
