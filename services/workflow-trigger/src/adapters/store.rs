//! The workflow-trigger's tables: a SQLite file for one process, or a PostgreSQL database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mesh_db::pool::WriteTransaction;
use mesh_db::sql::{Row, Sql};
use mesh_db::{Database, Limits, Location, Tables};

use crate::domain::rule::RuleId;
use crate::error::Error;

pub(super) const NAME: &str = "workflow-trigger";

const LIMITS: Limits = Limits {
    readers: 4,
    // Events, the driver, the API, the outbox.
    writers: 4,
    query_timeout: Duration::from_secs(30),
};

static TABLES: Tables = Tables {
    name: NAME,
    sqlite: sqlx::migrate!("migrations/sqlite"),
    postgres: sqlx::migrate!("migrations/postgres"),
    first: "intents",
    remedy: "start the workflow-trigger once with the address of their owner",
};

/// The tables. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// Their database.
    pub database: Database,
    is_restoring: Arc<AtomicBool>,
}

impl Store {
    /// Configures the database without opening it.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub fn connect(location: &Location) -> Result<Self, Error> {
        let database = Database::connect(&TABLES, location, LIMITS)?;
        Ok(Self {
            database,
            is_restoring: Arc::default(),
        })
    }

    /// Forbids planning while a recovered database lacks what was planned before.
    pub fn set_restoring(&self, is_restoring: bool) {
        self.is_restoring.store(is_restoring, Ordering::SeqCst);
    }

    /// # Errors
    /// [`Error::Restoring`] while planning is forbidden.
    pub(super) fn ensure_restored(&self) -> Result<(), Error> {
        match self.is_restoring.load(Ordering::SeqCst) {
            true => Err(Error::Restoring),
            false => Ok(()),
        }
    }

    /// Executes statements in one transaction, as [`Database::change`].
    pub(super) async fn change(
        &self,
        action: &'static str,
        first: Sql,
        others: Vec<Sql>,
    ) -> Result<bool, Error> {
        Ok(self.database.change(action, first, others).await?)
    }
}

/// Names in a column, one per line.
pub(super) fn names(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.join("\n")
}

/// The rule that these columns of a row name.
pub(super) fn rule_id(row: &Row, owner: &str, name: &str) -> Result<RuleId, sqlx::Error> {
    Ok(RuleId {
        owner: row.get(owner)?,
        name: row.get(name)?,
    })
}

/// The row of a query that has one.
pub(super) async fn first(
    transaction: &mut WriteTransaction,
    sql: &Sql,
) -> Result<Row, sqlx::Error> {
    let row = transaction.conn().first(sql).await?;
    row.ok_or(sqlx::Error::RowNotFound)
}

/// A number in a column, e.g. of rows.
pub(super) fn count(row: &Row, column: &str) -> Result<u32, sqlx::Error> {
    let number: i64 = row.get(column)?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}
