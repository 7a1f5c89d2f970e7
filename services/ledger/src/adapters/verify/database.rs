//! Integrity check of the database itself: its pages and indexes.

use mesh_db::pool::Connection;
use mesh_db::sql::Sql;

use crate::error::Error;

/// Result of the integrity check.
pub enum Integrity {
    /// Pages and indexes are consistent.
    Whole,
    /// Damaged, with the database's message.
    Damaged(String),
    /// The check could not run, with the reason.
    Unasked(String),
}

/// Runs the integrity check. SQLite checks the whole file. PostgreSQL checks the indexes of the
/// ledger's tables, if the extension amcheck is installed.
pub async fn integrity(connection: &mut Connection) -> Result<Integrity, Error> {
    match connection {
        Connection::Sqlite(_) => of_sqlite(connection).await.map_err(Error::Read),
        Connection::Postgres(_) => of_postgres(connection).await.map_err(Error::Read),
    }
}

async fn of_sqlite(connection: &mut Connection) -> Result<Integrity, sqlx::Error> {
    let sql = Sql::new("PRAGMA integrity_check(1)");
    let row = connection.conn().first(&sql).await?;
    let text = row.map(|row| row.get::<String>("integrity_check"));
    Ok(match text.transpose()?.as_deref() {
        Some("ok") => Integrity::Whole,
        text => Integrity::Damaged(text.unwrap_or("it says nothing").to_owned()),
    })
}

async fn of_postgres(connection: &mut Connection) -> Result<Integrity, sqlx::Error> {
    let sql = Sql::new(
        "SELECT quote_ident(nspname) AS schema FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'amcheck'",
    );
    let Some(row) = connection.conn().first(&sql).await? else {
        let why = "the extension amcheck is not in this database (CREATE EXTENSION amcheck)";
        return Ok(Integrity::Unasked(why.to_owned()));
    };
    let schema: String = row.get("schema")?;
    let sql = Sql::new(format!(
        "SELECT COUNT({schema}.bt_index_check(i.indexrelid, true)) AS indexes FROM pg_index i
         JOIN pg_class x ON x.oid = i.indexrelid AND x.relkind = 'i' AND x.relam = (SELECT oid FROM pg_am WHERE amname = 'btree')
         WHERE x.relnamespace = current_schema()::regnamespace AND i.indisvalid AND i.indisready"
    ));
    match connection.conn().first(&sql).await {
        Ok(_) => Ok(Integrity::Whole),
        // Insufficient privilege, or no such function in an older version.
        Err(sqlx::Error::Database(error))
            if matches!(error.code().as_deref(), Some("42501" | "42883")) =>
        {
            Ok(Integrity::Unasked(error.message().to_owned()))
        }
        // Class XX reports damaged data or indexes. Any other error is a failed read.
        Err(sqlx::Error::Database(error))
            if error.code().is_some_and(|code| code.starts_with("XX")) =>
        {
            Ok(Integrity::Damaged(error.message().to_owned()))
        }
        Err(error) => Err(error),
    }
}
