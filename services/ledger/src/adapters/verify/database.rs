//! Whether the database itself is whole: what its pages and indexes say of each other.

use mesh_db::pool::Connection;
use mesh_db::sql::Sql;

use crate::error::Error;

/// What the database says of itself.
pub enum Integrity {
    /// Pages and indexes fit each other.
    Whole,
    /// They do not, in its words.
    Damaged(String),
    /// That cannot be asked, and why.
    Unasked(String),
}

/// Asks the database to check itself: SQLite all of it, PostgreSQL the indexes of the ledger's tables, where the extension amcheck is there.
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
        // Not allowed; no such function: an older one.
        Err(sqlx::Error::Database(error))
            if matches!(error.code().as_deref(), Some("42501" | "42883")) =>
        {
            Ok(Integrity::Unasked(error.message().to_owned()))
        }
        // Classes of damaged data and indexes; the rest is a failure to read.
        Err(sqlx::Error::Database(error))
            if error.code().is_some_and(|code| code.starts_with("XX")) =>
        {
            Ok(Integrity::Damaged(error.message().to_owned()))
        }
        Err(error) => Err(error),
    }
}
