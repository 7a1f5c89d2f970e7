//! Size of events on disk, and number of index entries.

use ledger::Location;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use super::database::{postgres, sqlite};
use super::raw::TABLES;

#[derive(Default)]
pub struct Size {
    pub bytes: i64,
    /// Entries of all indexes, including keys. A table that is its own index has none.
    pub index_entries: i64,
}

impl Size {
    /// For a ledger that no process has open.
    pub async fn of(location: &Location) -> anyhow::Result<Self> {
        let tables = TABLES.map(|table| format!("'{table}'")).join(", ");
        let mut size = Self::default();
        match location {
            Location::Sqlite(path) => {
                size.bytes = i64::try_from(std::fs::metadata(path)?.len())?;
                let mut connection = sqlite(location)?.connect().await?;
                let indexes: Vec<(String, Option<String>)> = sqlx::query_as(AssertSqlSafe(format!(
                    "SELECT tbl_name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name IN ({tables})"
                )))
                .fetch_all(&mut connection)
                .await?;
                for (table, definition) in indexes {
                    let only = definition
                        .as_deref()
                        .and_then(|sql| sql.split_once(" WHERE "));
                    let only = only.map_or("TRUE", |(_, only)| only);
                    let count = format!("SELECT COUNT(*) FROM {table} WHERE {only}");
                    let count: i64 = sqlx::query_scalar(AssertSqlSafe(count))
                        .fetch_one(&mut connection)
                        .await?;
                    size.index_entries += count;
                }
                connection.close().await?;
            }
            Location::Postgres(_) => {
                let mut connection = postgres(location)?.connect().await?;
                size.bytes = sqlx::query_scalar(
                    "SELECT SUM(pg_total_relation_size(oid))::BIGINT FROM pg_class
                     WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace",
                )
                .fetch_one(&mut connection)
                .await?;
                let indexes: Vec<(String, String)> = sqlx::query_as(AssertSqlSafe(format!(
                    "SELECT c.relname::TEXT, COALESCE(pg_get_expr(i.indpred, i.indrelid), 'TRUE') FROM pg_index i
                     JOIN pg_class c ON c.oid = i.indrelid WHERE c.relname IN ({tables})"
                )))
                .fetch_all(&mut connection)
                .await?;
                for (table, only) in indexes {
                    let count = format!("SELECT COUNT(*) FROM {table} WHERE {only}");
                    let count: i64 = sqlx::query_scalar(AssertSqlSafe(count))
                        .fetch_one(&mut connection)
                        .await?;
                    size.index_entries += count;
                }
                connection.close().await?;
            }
        }
        Ok(size)
    }
}
