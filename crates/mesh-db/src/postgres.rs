//! A PostgreSQL database.
//!
//! Any number of processes may share one. Whoever holds a lock and is heard of no more is thrown out by the server
//! (`idle_in_transaction_session_timeout`), so that the others go on.

use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};

use crate::pool::Pool;
use crate::{Error, Location};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// The oldest server with all that is used.
const OLDEST: i32 = 140_000;

/// A service's tables.
pub struct Tables {
    /// Whose they are, as `ledger`.
    pub name: &'static str,
    /// How they are made.
    pub migrations: &'static Migrator,
    /// The first of them: whoever owns it may change all.
    pub first: &'static str,
    /// What to do where they are missing and the role may not make them.
    pub remedy: &'static str,
}

/// Connections that write, each statement no longer than `statement_timeout`: a commit is durable before it is answered, whatever the
/// server or the role says. Nothing is opened yet.
pub fn writers(
    name: &str,
    options: &PgConnectOptions,
    connections: u32,
    statement_timeout: &str,
) -> Pool {
    let options = with_limits(name, options, statement_timeout);
    pool(connections, options.options([("synchronous_commit", "on")]))
}

/// Connections that only read, each query no longer than a time. Nothing is opened yet.
pub fn readers(
    name: &str,
    options: &PgConnectOptions,
    connections: u32,
    longest: Duration,
) -> Pool {
    let options = with_limits(name, options, &format!("{}ms", longest.as_millis()));
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
        .acquire_timeout(CONNECT)
        .connect_lazy_with(options);
    Pool::Postgres(pool)
}

impl Tables {
    /// Brings the tables to this version if the role may; if not, they have to be there.
    ///
    /// # Errors
    /// If the server is away or unfit, or the tables cannot be made.
    pub async fn prepare(
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
        // By hand, as a pool only says that it had to wait too long.
        let mut connection = tokio::time::timeout(CONNECT, options.connect())
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
        let unfit = |fault| Error::Unfit {
            name,
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
        if owner && self.owned(&mut connection).await.map_err(open)? {
            // Over a connection without the limits of the others: a change of large tables takes as long as it takes.
            let unlimited = PgPoolOptions::new()
                .max_connections(1)
                .acquire_timeout(CONNECT)
                .connect_lazy_with(options.clone());
            let migrated = self.migrations.run(&unlimited).await;
            unlimited.close().await;
            migrated.map_err(|source| Error::Migrate {
                name,
                location: location.clone(),
                source,
            })
        } else if self.migrated(&mut connection).await {
            Ok(())
        } else {
            Err(Error::NotMigrated {
                name,
                location: location.clone(),
                remedy: self.remedy,
            })
        }
    }

    /// True if the tables are the role's, or there are none yet.
    async fn owned(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        sqlx::query_scalar(
            "SELECT NOT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1) AND NOT pg_has_role(relowner, 'USAGE'))",
        )
        .bind(self.first)
        .fetch_one(connection)
        .await
    }

    /// True if every migration of this version was run.
    async fn migrated(&self, connection: &mut PgConnection) -> bool {
        let versions: Result<Vec<i64>, sqlx::Error> =
            sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success")
                .fetch_all(connection)
                .await;
        versions.is_ok_and(|versions| {
            self.migrations
                .iter()
                .all(|migration| versions.contains(&migration.version))
        })
    }
}
