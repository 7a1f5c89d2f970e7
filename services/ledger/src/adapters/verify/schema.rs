//! Compares the tables, indexes, triggers and rules of a database with those that the migrations
//! create. A manipulated index can hide an entry; a foreign key or a rule can delete it later.

use std::collections::BTreeMap;

use mesh_db::pool::{Connection, Pool};
use mesh_db::sql::{Dialect, Sql};
use sqlx::sqlite::SqlitePoolOptions;
use tokio::sync::OnceCell;

use super::shadows;
use crate::adapters::sqlite;
use crate::adapters::tables::TABLES;
use crate::error::Error;

/// Objects of a new ledger on PostgreSQL, one per line. Created by the adjacent query.
pub const POSTGRES: &str = include_str!("schema/postgres.txt");
const POSTGRES_QUERY: &str = include_str!("schema/postgres.sql");
/// Placeholder in lines about objects that exist once per partition.
const MONTH_PLACEHOLDER: &str = "<month>";

/// Tables of ANALYZE on SQLite. They do not affect entries. Compared as a whole: another object under
/// their name, or a similar one, is not one of them.
const OF_ANALYZE: [&str; 2] = [
    "table sqlite_stat1 on sqlite_stat1: CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "table sqlite_stat4 on sqlite_stat4: CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
];

/// Objects of a new ledger in a SQLite file, computed once.
static EXPECTED_SQLITE: OnceCell<SchemaObjects> = OnceCell::const_new();

/// Returns a description of the first difference, or `None`.
pub async fn difference(connection: &mut Connection) -> Result<Option<String>, Error> {
    let dialect = connection.dialect();
    if dialect == Dialect::Postgres
        && let Some(shadow) = shadows::first(connection).await.map_err(Error::Read)?
    {
        return Ok(Some(format!("this was added or changed: {shadow}")));
    }
    let found = match dialect {
        Dialect::Sqlite => of_sqlite(connection).await,
        Dialect::Postgres => of_postgres(connection).await,
    };
    let found = found.map_err(Error::Read)?;
    let expected = match dialect {
        Dialect::Sqlite => EXPECTED_SQLITE
            .get_or_try_init(expected_of_sqlite)
            .await?
            .clone(),
        Dialect::Postgres => {
            let months = found
                .iter()
                .filter(|(line, _)| {
                    line.starts_with("relation ") && line.contains(MONTH_PLACEHOLDER)
                })
                .map(|(_, count)| *count);
            let months = months.max().unwrap_or_default();
            POSTGRES
                .lines()
                .map(|line| {
                    (
                        line.to_owned(),
                        if line.contains(MONTH_PLACEHOLDER) {
                            months
                        } else {
                            1
                        },
                    )
                })
                .filter(|(_, count)| *count > 0)
                .collect()
        }
    };
    let missing = expected
        .iter()
        .find(|(line, count)| found.get(*line) != Some(*count));
    let added = found.iter().find(|(line, _)| !expected.contains_key(*line));
    Ok(match (added, missing) {
        (Some((line, _)), _) => Some(format!("this was added or changed: {line}")),
        (None, Some((line, _))) => Some(format!("this is missing: {line}")),
        (None, None) => None,
    })
}

type SchemaObjects = BTreeMap<String, i64>;

async fn of_sqlite(connection: &mut Connection) -> Result<SchemaObjects, sqlx::Error> {
    let sql = Sql::new(
        "SELECT type || ' ' || name || ' on ' || tbl_name || COALESCE(': ' || sql, '') AS line FROM sqlite_schema",
    );
    let rows = connection.conn().rows(&sql).await?;
    let mut lines = SchemaObjects::new();
    for row in rows {
        let line: String = row.get("line")?;
        if !OF_ANALYZE.contains(&&*line) {
            *lines.entry(line).or_default() += 1;
        }
    }
    Ok(lines)
}

/// Objects of a new ledger, created in memory.
async fn expected_of_sqlite() -> Result<SchemaObjects, Error> {
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect("sqlite::memory:")
        .await
        .map_err(Error::Read)?;
    TABLES
        .sqlite
        .run(&pool)
        .await
        .map_err(|error| Error::Read(sqlx::Error::Migrate(Box::new(error))))?;
    sqlite::guard_index(&pool).await.map_err(Error::Read)?;
    let pool = Pool::Sqlite(pool);
    let lines = async { of_sqlite(&mut pool.acquire().await?).await }.await;
    pool.close().await;
    lines.map_err(Error::Read)
}

async fn of_postgres(connection: &mut Connection) -> Result<SchemaObjects, sqlx::Error> {
    let rows = connection.conn().rows(&Sql::new(POSTGRES_QUERY)).await?;
    let mut lines = SchemaObjects::new();
    for row in rows {
        lines.insert(row.get("line")?, row.get("count")?);
    }
    Ok(lines)
}

/// Returns the objects of a ledger on PostgreSQL, in the format of [`POSTGRES`].
pub async fn lines_of(pool: &Pool) -> Result<String, sqlx::Error> {
    let lines = of_postgres(&mut pool.acquire().await?).await?;
    Ok(lines.into_keys().map(|line| line + "\n").collect())
}
