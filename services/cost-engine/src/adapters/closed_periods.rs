//! Closed periods: reports that do not change any more.

use audit_outbox::AuditRow;
use mesh_db::pool::Conn;
use mesh_db::sql::{Row, Sql};

use super::{AUDIT_ENTRIES, Store};
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
    /// True if costs of closed periods are missing since the file was recovered.
    pub incomplete: bool,
}

impl Store {
    /// Closes a period with its report as JSON. False if it is closed, or if there are not `known` closed periods, from which the
    /// corrections of the report were computed: another request has closed one since.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn close_period(
        &self,
        closed: &ClosedPeriod,
        report: &str,
        known: usize,
        audit: &AuditRow,
    ) -> Result<bool, Error> {
        let mut transaction = self.begin().await?;
        let stored = async {
            // SQLite has a single writer anyway.
            if matches!(transaction.conn(), Conn::Postgres(_)) {
                let lock =
                    "SELECT pg_advisory_xact_lock(hashtext('cost_engine_closed_periods'))::TEXT";
                transaction.conn().rows(&Sql::new(lock)).await?;
            }
            let count = Sql::new("SELECT COUNT(*) AS periods FROM closed_periods");
            let rows = transaction.conn().rows(&count).await?;
            let count = rows.first().map(|row| row.get::<i64>("periods"));
            if count.transpose()?.map(usize::try_from) != Some(Ok(known)) {
                return Ok(false);
            }
            let sql = insertion(closed, report);
            if transaction.conn().execute(&sql).await? == 0 {
                return Ok(false);
            }
            transaction
                .conn()
                .execute(&AUDIT_ENTRIES.insertion(audit))
                .await?;
            Ok(true)
        };
        let stored = stored.await.map_err(Error::database("close period"))?;
        transaction.commit().await?;
        Ok(stored)
    }

    /// Marks all closed periods as incomplete.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn mark_periods_incomplete(&self) -> Result<(), Error> {
        let sql = Sql::new("UPDATE closed_periods SET incomplete = 1");
        let changed = self.database.change("mark periods", sql, Vec::new());
        Ok(changed.await.map(drop)?)
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
            "SELECT period, digest, report_rows, closed_at, closed_by, incomplete FROM closed_periods ORDER BY period",
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
            "SELECT period, report, digest, report_rows, closed_at, closed_by, incomplete FROM closed_periods WHERE period = ",
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
        incomplete: row.get::<i64>("incomplete")? != 0,
    })
}
