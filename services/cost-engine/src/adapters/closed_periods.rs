//! Closed periods: reports that do not change any more.

use mesh_db::sql::{Row, Sql};

use super::{AuditRow, Store};
use crate::error::Error;

/// A closed period, without its report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedPeriod {
    /// Name, such as 2026-10; months of UTC.
    pub period: String,
    /// SHA-256 of the report in hexadecimal digits.
    pub digest: String,
    /// Number of rows of the report.
    pub rows: i64,
    /// Unix seconds.
    pub closed_at: i64,
    /// Who closed it.
    pub closed_by: String,
}

impl Store {
    /// Closes a period with its report as JSON, unless it is closed.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn close_period(
        &self,
        closed: &ClosedPeriod,
        report: &str,
        audit: &AuditRow,
    ) -> Result<bool, Error> {
        let sql = insertion(closed, report);
        let changed = self
            .database
            .change("close period", sql, vec![audit.insertion()]);
        Ok(changed.await?)
    }

    /// Stores a closed period that an audit entry has. False if it is stored.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn restore_period(&self, closed: &ClosedPeriod, report: &str) -> Result<bool, Error> {
        let sql = insertion(closed, report);
        let changed = self.database.change("restore period", sql, Vec::new());
        Ok(changed.await?)
    }

    /// The closed periods by name.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn closed_periods(&self) -> Result<Vec<ClosedPeriod>, Error> {
        const ACTION: &str = "read closed periods";
        let sql = Sql::new(
            "SELECT period, digest, report_rows, closed_at, closed_by FROM closed_periods ORDER BY period",
        );
        let rows = self.database.rows(ACTION, &sql).await?;
        let periods: Result<_, sqlx::Error> = rows.iter().map(read).collect();
        periods.map_err(Error::database(ACTION))
    }

    /// A closed period and its report.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn closed_period(&self, name: &str) -> Result<Option<(ClosedPeriod, String)>, Error> {
        const ACTION: &str = "read closed period";
        let sql = Sql::new(
            "SELECT period, report, digest, report_rows, closed_at, closed_by FROM closed_periods WHERE period = ",
        )
        .bind(name);
        let rows = self.database.rows(ACTION, &sql).await?;
        let with_report = |row: &Row| Ok((read(row)?, row.get("report")?));
        let found: Result<_, sqlx::Error> = rows.first().map(with_report).transpose();
        found.map_err(Error::database(ACTION))
    }
}

fn insertion(closed: &ClosedPeriod, report: &str) -> Sql {
    Sql::new(
        "INSERT INTO closed_periods (period, report, digest, report_rows, closed_at, closed_by) VALUES (",
    )
    .list([
        (&closed.period).into(),
        report.into(),
        (&closed.digest).into(),
        closed.rows.into(),
        closed.closed_at.into(),
        (&closed.closed_by).into(),
    ])
    .push(") ON CONFLICT DO NOTHING")
}

fn read(row: &Row) -> Result<ClosedPeriod, sqlx::Error> {
    Ok(ClosedPeriod {
        period: row.get("period")?,
        digest: row.get("digest")?,
        rows: row.get("report_rows")?,
        closed_at: row.get("closed_at")?,
        closed_by: row.get("closed_by")?,
    })
}
