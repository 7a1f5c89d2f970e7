//! PostgreSQL pools and tables.
//!
//! Several processes may share a database. The server ends an idle session that holds a lock
//! (`idle_in_transaction_session_timeout`), so that it does not block the others.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};

use crate::pool::Pool;
use crate::{Error, Location, Tables, migrations};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_SERVER_VERSION_NUM: i32 = 140_000;

/// Creates a lazy pool for writing. Commits are durable whatever the server or the role configures.
pub fn writers(
    name: &str,
    options: &PgConnectOptions,
    connections: u32,
    statement_timeout: &str,
) -> Pool {
    let options = with_limits(name, options, statement_timeout);
    pool(connections, options.options([("synchronous_commit", "on")]))
}

/// Creates a lazy pool of read-only connections.
pub fn readers(
    name: &str,
    options: &PgConnectOptions,
    connections: u32,
    query_timeout: Duration,
) -> Pool {
    let options = with_limits(name, options, &format!("{}ms", query_timeout.as_millis()));
    pool(
        connections,
        options.options([("default_transaction_read_only", "on")]),
    )
}

fn with_limits(name: &str, options: &PgConnectOptions, statement: &str) -> PgConnectOptions {
    options
        .clone()
        .application_name(&format!("slurm-mesh {name}"))
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
        .acquire_timeout(CONNECT_TIMEOUT)
        .connect_lazy_with(options);
    Pool::Postgres(pool)
}

impl Tables {
    /// Migrates the tables if the role may; otherwise checks that they are up to date.
    pub(crate) async fn migrate(
        &self,
        options: &PgConnectOptions,
        location: &Location,
    ) -> Result<(), Error> {
        let name = self.name;
        let open = |source| Error::Open {
            name,
            location: location.clone(),
            source,
        };
        // A pool would report only a timeout.
        let mut connection = tokio::time::timeout(CONNECT_TIMEOUT, options.connect())
            .await
            .map_err(|_| open(sqlx::Error::PoolTimedOut))?
            .map_err(open)?;
        let row = connection
            .fetch_one(
                "SELECT current_setting('server_version_num')::INTEGER AS version, current_setting('server_encoding') AS encoding,
                     current_setting('fsync') AS fsync, COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false) AS owner",
            )
            .await
            .map_err(open)?;
        let version: i32 = row.try_get("version").map_err(open)?;
        let encoding: String = row.try_get("encoding").map_err(open)?;
        let fsync: String = row.try_get("fsync").map_err(open)?;
        let owner: bool = row.try_get("owner").map_err(open)?;
        let unsupported = |fault| Error::Unsupported {
            name,
            location: location.clone(),
            fault,
        };
        if version < MIN_SERVER_VERSION_NUM {
            return Err(unsupported(format!(
                "the server has version {}; 14 or newer is required",
                version / 10_000
            )));
        }
        if encoding != "UTF8" {
            return Err(unsupported(format!(
                "the database has encoding {encoding}; create one with ENCODING 'UTF8'"
            )));
        }
        if fsync == "off" {
            tracing::warn!(%location, "server runs with fsync = off, a power failure loses acknowledged entries");
        }
        if owner && self.is_owner(&mut connection).await.map_err(open)? {
            // No statement timeout: migrating large tables may take long.
            let unlimited = PgPoolOptions::new()
                .max_connections(1)
                .acquire_timeout(CONNECT_TIMEOUT)
                .connect_lazy_with(options.clone());
            let migrated =
                migrations::run_on_postgres(name, &self.postgres, &unlimited, location).await;
            unlimited.close().await;
            migrated
        } else if self.is_migrated(&mut connection).await {
            Ok(())
        } else {
            Err(Error::NotMigrated {
                name,
                location: location.clone(),
                remedy: self.remedy,
            })
        }
    }

    /// True if the role owns the tables, or they do not exist yet.
    async fn is_owner(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        sqlx::query_scalar(
            "SELECT NOT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1) AND NOT pg_has_role(relowner, 'USAGE'))",
        )
        .bind(self.first)
        .fetch_one(connection)
        .await
    }

    /// True if all migrations of this version have run.
    async fn is_migrated(&self, connection: &mut PgConnection) -> bool {
        let versions: Result<Vec<i64>, sqlx::Error> =
            sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success")
                .fetch_all(connection)
                .await;
        versions.is_ok_and(|versions| {
            self.postgres
                .iter()
                .all(|migration| versions.contains(&migration.version))
        })
    }
}
