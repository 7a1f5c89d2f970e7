//! A ledger in a PostgreSQL database.
//!
//! Any number of ledgers may append to one: each takes the lock on the head's row first. Whoever holds it and is heard of no more is
//! thrown out by the server (`idle_in_transaction_session_timeout`), so that the others go on.

use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};

use super::pool::Pool;
use crate::error::Error;
use crate::location::Location;

/// Appenders of one process: events and audit entries.
const WRITERS: u32 = 2;
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// The oldest server with all that is used here.
const OLDEST: i32 = 140_000;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// Connections that write, and those that read, maybe with another role. Nothing is opened yet.
pub(super) fn pools(
    options: &PgConnectOptions,
    reader: Option<&PgConnectOptions>,
    readers: u32,
) -> (Pool, Pool) {
    // A commit is durable before it is answered, whatever the server or the role says.
    let writer = with_limits(options, "5s").options([("synchronous_commit", "on")]);
    let reader = with_limits(reader.unwrap_or(options), "30s");
    (
        pool(WRITERS, writer),
        pool(
            readers,
            reader.options([("default_transaction_read_only", "on")]),
        ),
    )
}

/// Reads only.
pub(super) fn only_reading(options: &PgConnectOptions) -> Pool {
    let options = with_limits(options, "10min");
    pool(
        1,
        options.options([("default_transaction_read_only", "on")]),
    )
}

fn with_limits(options: &PgConnectOptions, statement: &str) -> PgConnectOptions {
    options
        .clone()
        .application_name("slurm-mesh ledger")
        .options([
            ("statement_timeout", statement),
            ("lock_timeout", "3s"),
            ("idle_in_transaction_session_timeout", "5s"),
        ])
        .disable_statement_logging()
}

fn pool(connections: u32, options: PgConnectOptions) -> Pool {
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(CONNECT)
        .connect_lazy_with(options);
    Pool::Postgres(pool)
}

/// Brings the tables to this version if the role may; if not, they have to be there.
pub(super) async fn prepare(writer: &PgPool, location: &Location) -> Result<(), Error> {
    let open = |source| Error::Open {
        location: location.clone(),
        source,
    };
    // By hand, as a pool only says that it had to wait too long.
    let mut connection = match location {
        Location::Postgres(options) => tokio::time::timeout(CONNECT, options.connect())
            .await
            .map_err(|_| open(sqlx::Error::PoolTimedOut))?
            .map_err(open)?,
        Location::Sqlite(_) => return Ok(()),
    };
    let row = connection
        .fetch_one(
            "SELECT current_setting('server_version_num')::INTEGER AS version, current_setting('server_encoding') AS encoding,
                 current_setting('fsync') AS fsync, current_schema() AS schema,
                 COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false) AS owner",
        )
        .await
        .map_err(open)?;
    let version: i32 = row.try_get("version").map_err(open)?;
    let encoding: String = row.try_get("encoding").map_err(open)?;
    let fsync: String = row.try_get("fsync").map_err(open)?;
    let owner: bool = row.try_get("owner").map_err(open)?;
    let unfit = |fault| Error::Unfit {
        location: location.clone(),
        fault,
    };
    if version < OLDEST {
        return Err(unfit(format!(
            "the server has version {}; 14 or newer is needed",
            version / 10_000
        )));
    }
    if encoding != "UTF8" {
        return Err(unfit(format!(
            "the database has encoding {encoding}; make one with ENCODING 'UTF8'"
        )));
    }
    if fsync == "off" {
        tracing::warn!(%location, "the server runs with fsync = off: a power cut loses acknowledged entries");
    }
    if owner && owns(&mut connection).await.map_err(open)? {
        MIGRATIONS
            .run(writer)
            .await
            .map_err(|source| Error::Migrate {
                location: location.clone(),
                source,
            })?;
    } else if !migrated(&mut connection).await {
        return Err(Error::NotMigrated(location.clone()));
    }
    add_partitions(writer).await.map_err(open)
}

/// True if the tables are the role's, or there are none yet.
async fn owns(connection: &mut sqlx::PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT NOT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('entries') AND NOT pg_has_role(relowner, 'USAGE'))",
    )
    .fetch_one(connection)
    .await
}

/// True if every migration of this version was run.
async fn migrated(connection: &mut sqlx::PgConnection) -> bool {
    let versions: Result<Vec<i64>, sqlx::Error> =
        sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success")
            .fetch_all(connection)
            .await;
    versions.is_ok_and(|versions| {
        MIGRATIONS
            .iter()
            .all(|migration| versions.contains(&migration.version))
    })
}

/// Makes the partitions of payloads ahead of time.
pub(super) async fn add_partitions(writer: &PgPool) -> Result<(), sqlx::Error> {
    writer
        .execute("SELECT ledger_add_partitions()")
        .await
        .map(drop)
}
