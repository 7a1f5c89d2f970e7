//! A ledger in a PostgreSQL database.
//!
//! Any number of processes may append to it: each first locks the row of the head.

use std::time::Duration;

use mesh_db::pool::Pool;
use mesh_db::postgres::{readers, writers};
use sqlx::Executor as _;
use sqlx::postgres::{PgConnectOptions, PgPool};

use super::tables::TABLES;

/// Statement timeout of verification connections.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(600);
/// Concurrent writers of one process: events and audit entries.
const MAX_WRITERS: u32 = 2;

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
        writers(TABLES.name, &writer, MAX_WRITERS, "5s"),
        readers(TABLES.name, &reader, max_readers, longest),
    )
}

/// Creates the pool for deleting payloads.
pub(super) fn dropping(options: &PgConnectOptions) -> Pool {
    writers(TABLES.name, options, 1, "60s")
}

/// Creates a read-only pool for verification.
pub(super) fn only_reading(options: &PgConnectOptions, connections: u32) -> Pool {
    readers(TABLES.name, options, connections, VERIFY_TIMEOUT)
}

/// Creates the partitions of payloads ahead of time.
pub(super) async fn add_partitions(writer: &PgPool) -> Result<(), sqlx::Error> {
    writer
        .execute("SELECT ledger_add_partitions()")
        .await
        .map(drop)
}
