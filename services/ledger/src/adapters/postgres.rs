//! A ledger in a PostgreSQL database.
//!
//! Any number of processes may append to it: each first locks the row of the head.

use std::time::Duration;

use mesh_db::pool::Pool;
use mesh_db::postgres::{Tables, readers, writers};
use sqlx::Executor as _;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPool};

/// Name of the database in messages.
pub(super) const NAME: &str = "ledger";
/// Statement timeout of verification connections.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(600);
/// Concurrent writers of one process: events and audit entries.
const MAX_WRITERS: u32 = 2;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

pub(super) const TABLES: Tables = Tables {
    name: NAME,
    migrations: &MIGRATIONS,
    first: "entries",
    remedy: "run `smesh ledger migrate` with the address of their owner",
};

/// Creates the pools for writing and for reading; `reader` may use another role. Opens no
/// connection yet.
pub(super) fn pools(
    options: &PgConnectOptions,
    reader: Option<&PgConnectOptions>,
    max_readers: u32,
    longest: Duration,
) -> (Pool, Pool) {
    // Plans every statement for its actual parameters. By default PostgreSQL switches to a generic
    // plan after a few executions, which scans the whole ledger for rare values.
    let reader = reader.unwrap_or(options).clone();
    let reader = reader.options([("plan_cache_mode", "force_custom_plan")]);
    // Appends look for many ids by index. PostgreSQL retains a plan for statements that are executed
    // often; one of a small table would scan it, and compare each row with each id. What can only be
    // scanned then seems so expensive that it would be compiled.
    let writer = [("enable_seqscan", "off"), ("jit", "off")];
    let writer = options.clone().options(writer);
    (
        writers(NAME, &writer, MAX_WRITERS, "5s"),
        readers(NAME, &reader, max_readers, longest),
    )
}

/// Creates the pool for deleting payloads.
pub(super) fn dropping(options: &PgConnectOptions) -> Pool {
    writers(NAME, options, 1, "60s")
}

/// Creates a read-only pool for verification.
pub(super) fn only_reading(options: &PgConnectOptions, connections: u32) -> Pool {
    readers(NAME, options, connections, VERIFY_TIMEOUT)
}

/// Creates the partitions of payloads ahead of time.
pub(super) async fn add_partitions(writer: &PgPool) -> Result<(), sqlx::Error> {
    writer
        .execute("SELECT ledger_add_partitions()")
        .await
        .map(drop)
}

/// Returns the version of the tables.
pub(super) fn newest_migration() -> i64 {
    let versions = MIGRATIONS.iter().map(|migration| migration.version);
    versions.max().unwrap_or_default()
}
