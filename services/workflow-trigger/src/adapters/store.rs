//! The workflow-trigger's tables: a SQLite file for one process, or a PostgreSQL database.

use std::sync::Arc;
use std::time::Duration;

use mesh_db::sql::Sql;
use mesh_db::{Database, Limits, Location, Tables};

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
    /// Id of this process in claims. Empty for SQLite, where the claims of an earlier process are this one's.
    pub(super) instance: Arc<str>,
}

impl Store {
    /// Configures the database without opening it.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub fn connect(location: &Location) -> Result<Self, Error> {
        let database = Database::connect(&TABLES, location, LIMITS)?;
        let instance = match database.is_shared() {
            true => uuid::Uuid::new_v4().to_string(),
            false => String::new(),
        };
        Ok(Self {
            database,
            instance: instance.into(),
        })
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
