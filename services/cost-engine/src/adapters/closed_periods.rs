//! Closed periods: reports that do not change any more, and the audit entries about them.

use mesh_db::sql::{Row, Sql};

use super::Store;
use crate::error::Error;

/// A closed period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedPeriod {
    /// Name, such as 2026-10; months of UTC.
    pub period: String,
    /// The report as JSON.
    pub report: String,
    /// SHA-256 of the report in hexadecimal digits.
    pub digest: String,
    /// Number of rows of the report.
    pub rows: i64,
    /// Unix seconds.
    pub closed_at: i64,
    /// Who closed it.
    pub closed_by: String,
}

/// An audit entry that JetStream does not have yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishedClosing {
    /// Name of the period.
    pub period: String,
    /// Cluster of the process that closed it.
    pub cluster: String,
    /// Id of the entry.
    pub audit_id: String,
    /// The entry.
    pub body: Vec<u8>,
}

impl Store {
    /// Closes a period, unless it is closed. `audit` are cluster, id and bytes of the audit entry.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn close_period(
        &self,
        closed: &ClosedPeriod,
        (cluster, audit_id, body): (&str, &str, &[u8]),
    ) -> Result<bool, Error> {
        let sql = Sql::new(
            "INSERT INTO closed_periods (period, report, digest, report_rows, closed_at, closed_by, cluster, audit_id, audit_entry) VALUES (",
        )
        .list([
            (&closed.period).into(),
            (&closed.report).into(),
            (&closed.digest).into(),
            closed.rows.into(),
            closed.closed_at.into(),
            (&closed.closed_by).into(),
            cluster.into(),
            audit_id.into(),
            body.into(),
        ])
        .push(") ON CONFLICT DO NOTHING");
        let changed = self.database.change("close period", sql, Vec::new()).await;
        Ok(changed?)
    }

    /// The closed periods by name.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn closed_periods(&self) -> Result<Vec<ClosedPeriod>, Error> {
        const ACTION: &str = "read closed periods";
        let sql = Sql::new(
            "SELECT period, report, digest, report_rows, closed_at, closed_by FROM closed_periods ORDER BY period",
        );
        let read = |row: &Row| {
            Ok(ClosedPeriod {
                period: row.get("period")?,
                report: row.get("report")?,
                digest: row.get("digest")?,
                rows: row.get("report_rows")?,
                closed_at: row.get("closed_at")?,
                closed_by: row.get("closed_by")?,
            })
        };
        let rows = self.database.rows(ACTION, &sql).await?;
        let periods: Result<_, sqlx::Error> = rows.iter().map(read).collect();
        periods.map_err(Error::database(ACTION))
    }

    /// Audit entries of closed periods that are not published.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn unpublished_closings(&self) -> Result<Vec<UnpublishedClosing>, Error> {
        const ACTION: &str = "read audit entries";
        let sql = Sql::new(
            "SELECT period, cluster, audit_id, audit_entry FROM closed_periods WHERE audit_entry IS NOT NULL",
        );
        let read = |row: &Row| {
            Ok(UnpublishedClosing {
                period: row.get("period")?,
                cluster: row.get("cluster")?,
                audit_id: row.get("audit_id")?,
                body: row.get("audit_entry")?,
            })
        };
        let rows = self.database.rows(ACTION, &sql).await?;
        let entries: Result<_, sqlx::Error> = rows.iter().map(read).collect();
        entries.map_err(Error::database(ACTION))
    }

    /// Notes that JetStream has the audit entry of a period.
    ///
    /// # Errors
    /// If the database refuses. The entry is then published again, with the same id.
    pub async fn closing_published(&self, period: &str) -> Result<(), Error> {
        let sql =
            Sql::new("UPDATE closed_periods SET audit_entry = NULL WHERE period = ").bind(period);
        let changed = self.database.change("note audit entry", sql, Vec::new());
        changed.await?;
        Ok(())
    }
}
