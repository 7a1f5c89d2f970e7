//! The cost engine's tables: a SQLite file for one process, or a PostgreSQL database for several.

use std::time::Duration;

use mesh_db::{Database, Limits, Location, Tables};

use crate::error::Error;

const LIMITS: Limits = Limits {
    readers: 4,
    // One for batches of job events, one for the outbox, one for budgets.
    writers: 3,
    query_timeout: Duration::from_secs(30),
};

static TABLES: Tables = Tables {
    name: "cost-engine",
    sqlite: sqlx::migrate!("migrations/sqlite"),
    postgres: sqlx::migrate!("migrations/postgres"),
    first: "runs",
    remedy: "start the cost engine once with the address of their owner",
};

/// The tables. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// Their database.
    pub database: Database,
}

impl Store {
    /// Configures the database without opening it.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub fn connect(location: &Location) -> Result<Self, Error> {
        let database = Database::connect(&TABLES, location, LIMITS)?;
        Ok(Self { database })
    }

    /// Opens the database and migrates its schema.
    ///
    /// # Errors
    /// If it cannot be used.
    pub async fn open(location: &Location) -> Result<Self, Error> {
        let store = Self::connect(location)?;
        store.database.prepare().await?;
        Ok(store)
    }
}
