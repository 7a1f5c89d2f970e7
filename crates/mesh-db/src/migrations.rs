//! Migrations. They only add, so that a program also works with a database that a newer version has migrated: both run beside each other
//! during an upgrade, and one can go back to the older one. A migration that older programs cannot work with has a name that begins with
//! `contract`; they then refuse to start.

use sqlx::migrate::{Migrate as _, Migrator};
use sqlx::postgres::PgPool;
use sqlx::sqlite::SqlitePool;

use crate::{Error, Location};

/// First word of the name of a migration that older programs cannot work with.
const CONTRACT: &str = "contract";

const TABLE: &str = "_sqlx_migrations";
const APPLIED: &str = "SELECT version, description FROM _sqlx_migrations ORDER BY version";

/// A service's tables.
#[derive(Debug)]
pub struct Tables {
    /// Owning service, such as `ledger`.
    pub name: &'static str,
    /// Migrations that create them in a SQLite file.
    pub sqlite: Migrator,
    /// Migrations that create them in a PostgreSQL database.
    pub postgres: Migrator,
    /// Name of the first table: the role that owns it may migrate all of them.
    pub first: &'static str,
    /// Instruction for the operator if the tables are missing and the role may not create them.
    pub remedy: &'static str,
}

impl Tables {
    /// Version of the newest migration.
    pub fn version(&self, location: &Location) -> i64 {
        let migrations = match location {
            Location::Sqlite(_) => &self.sqlite,
            Location::Postgres(_) => &self.postgres,
        };
        let versions = migrations.iter().map(|migration| migration.version);
        versions.max().unwrap_or_default()
    }
}

/// Runs the missing migrations on a SQLite file.
///
/// # Errors
/// If one fails, or a newer version has changed the tables in a way that this one cannot work with.
pub async fn run_on_sqlite(
    name: &'static str,
    migrations: &Migrator,
    pool: &SqlitePool,
    location: &Location,
) -> Result<(), Error> {
    let migrate = async {
        let mut connection = pool.acquire().await?;
        connection.ensure_migrations_table(TABLE).await?;
        let applied = sqlx::query_as(APPLIED).fetch_all(&mut *connection).await?;
        if let Some(newer) = incompatible(migrations, applied) {
            return Ok(Some(newer));
        }
        tolerant(migrations)
            .run_direct(None, &mut *connection, false)
            .await?;
        Ok(None)
    };
    outcome(name, location, migrate.await)
}

/// As [`run_on_sqlite`], on PostgreSQL.
pub(crate) async fn run_on_postgres(
    name: &'static str,
    migrations: &Migrator,
    pool: &PgPool,
    location: &Location,
) -> Result<(), Error> {
    let migrate = async {
        let mut connection = pool.acquire().await?;
        // Several services may start at once. A connection that is closed gives the lock back.
        connection.close_on_drop();
        connection.lock().await?;
        connection.ensure_migrations_table(TABLE).await?;
        let applied = sqlx::query_as(APPLIED).fetch_all(&mut *connection).await?;
        if let Some(newer) = incompatible(migrations, applied) {
            return Ok(Some(newer));
        }
        tolerant(migrations)
            .set_locking(false)
            .run_direct(None, &mut *connection, false)
            .await?;
        connection.unlock().await?;
        Ok(None)
    };
    outcome(name, location, migrate.await)
}

fn outcome(
    name: &'static str,
    location: &Location,
    migrated: Result<Option<String>, sqlx::migrate::MigrateError>,
) -> Result<(), Error> {
    let location = location.clone();
    match migrated {
        Ok(None) => Ok(()),
        Ok(Some(migration)) => Err(Error::Newer {
            name,
            location,
            migration,
        }),
        Err(source) => Err(Error::Migrate {
            name,
            location,
            source,
        }),
    }
}

/// The first applied migration that this program does not have and cannot work with.
fn incompatible(migrations: &Migrator, applied: Vec<(i64, String)>) -> Option<String> {
    let foreign = applied
        .into_iter()
        .find(|(version, name)| !migrations.version_exists(*version) && name.starts_with(CONTRACT));
    foreign.map(|(version, name)| format!("{version} {name}"))
}

/// The same migrations, for a database that may have more.
fn tolerant(migrations: &Migrator) -> Migrator {
    let mut tolerant = Migrator::with_migrations(migrations.iter().cloned().collect());
    tolerant.set_ignore_missing(true);
    tolerant
}

#[cfg(test)]
mod tests {
    use sqlx::migrate::{Migration, MigrationType};
    use sqlx::sqlite::SqlitePoolOptions;
    use sqlx::{AssertSqlSafe, SqlSafeStr as _};

    use super::*;

    fn migrations(of: &[(i64, &'static str, &'static str)]) -> Migrator {
        let migration = |(version, name, sql): &(i64, &'static str, &'static str)| {
            let sql = AssertSqlSafe(*sql).into_sql_str();
            Migration::new(*version, (*name).into(), MigrationType::Simple, sql, false)
        };
        Migrator::with_migrations(of.iter().map(migration).collect())
    }

    #[tokio::test]
    async fn an_older_program_works_with_a_newer_database_unless_a_migration_forbids_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.db");
        let location = Location::Sqlite(file.clone());
        let options = crate::sqlite::options(&file).create_if_missing(true);
        let pool = SqlitePoolOptions::new()
            .connect_with(options)
            .await
            .unwrap();
        let run = async |of: &[_]| run_on_sqlite("ledger", &migrations(of), &pool, &location).await;
        let first = (1, "first", "CREATE TABLE one (id INTEGER)");
        let added = (2, "added", "ALTER TABLE one ADD COLUMN more INTEGER");
        let contract = (3, "contract one", "ALTER TABLE one DROP COLUMN id");

        run(&[first]).await.unwrap();
        run(&[first, added]).await.unwrap();
        run(&[first]).await.unwrap();
        let changed = run(&[(1, "first", "CREATE TABLE two (id INTEGER)")]).await;
        assert!(matches!(changed, Err(Error::Migrate { .. })), "{changed:?}");

        run(&[first, added, contract]).await.unwrap();
        let refused = run(&[first, added]).await.unwrap_err().to_string();
        assert!(
            refused.contains("newer version") && refused.contains("3 contract one"),
            "{refused}"
        );
        run(&[first, added, contract]).await.unwrap();
        pool.close().await;
    }
}
