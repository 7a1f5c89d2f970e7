//! A ledger in a PostgreSQL database.
//!
//! Any number of ledgers may append to one: each takes the lock on the head's row first.

use std::time::Duration;

use mesh_db::pool::Pool;
use mesh_db::postgres::{Tables, readers, writers};
use sqlx::Executor as _;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPool};

/// Name of the database in messages.
pub(super) const NAME: &str = "ledger";
/// How long one statement of who verifies may take.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(600);
/// Appenders of one process: events and audit entries.
const MAX_WRITERS: u32 = 2;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// The ledger's tables.
pub(super) const TABLES: Tables = Tables {
    name: NAME,
    migrations: &MIGRATIONS,
    first: "entries",
    remedy: "run `smesh ledger migrate` with the address of their owner",
};

/// Connections that write, and those that read, maybe with another role. Nothing is opened yet.
pub(super) fn pools(
    options: &PgConnectOptions,
    reader: Option<&PgConnectOptions>,
    most_readers: u32,
    longest: Duration,
) -> (Pool, Pool) {
    // A statement is planned for what it asks about. Without that PostgreSQL plans it once for all after a few times, and goes through the
    // whole ledger for whatever is rare.
    let reader = reader.unwrap_or(options).clone();
    let reader = reader.options([("plan_cache_mode", "force_custom_plan")]);
    (
        writers(NAME, options, MAX_WRITERS, "5s"),
        readers(NAME, &reader, most_readers, longest),
    )
}

/// Takes payloads out.
pub(super) fn dropping(options: &PgConnectOptions) -> Pool {
    writers(NAME, options, 1, "60s")
}

/// Reads only.
pub(super) fn only_reading(options: &PgConnectOptions) -> Pool {
    readers(NAME, options, 1, VERIFY_TIMEOUT)
}

/// Makes the partitions of payloads ahead of time.
pub(super) async fn add_partitions(writer: &PgPool) -> Result<(), sqlx::Error> {
    writer
        .execute("SELECT ledger_add_partitions()")
        .await
        .map(drop)
}

/// The version of the tables.
pub(super) fn newest_migration() -> i64 {
    let versions = MIGRATIONS.iter().map(|migration| migration.version);
    versions.max().unwrap_or_default()
}
