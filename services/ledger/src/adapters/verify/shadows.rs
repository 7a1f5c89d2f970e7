//! What may stand for PostgreSQL's own functions and operators in a query. An operator `=` that denies a user hides all rows of them,
//! although rows, indexes and constraints are as they were.

use mesh_db::pool::{Access, Connection};
use mesh_db::sql;
use mesh_db::sql::{Row, Sql};

const QUERY: &str = include_str!("schema/shadows.sql");
/// Qualified, and without any operator, as the search path may be the attacker's.
const SCHEMAS: &str = "SELECT s::pg_catalog.text AS schema FROM pg_catalog.unnest(pg_catalog.current_schemas(true)) AS s";

/// Returns a description of the first function or operator, or of the search path that puts others before PostgreSQL's. To be asked
/// before any query that such a function or operator may falsify.
pub async fn first(connection: &mut Connection) -> Result<Option<String>, sqlx::Error> {
    // Of whatever origin: role, database, configuration of the server, or address.
    let row = connection
        .conn()
        .first(&Sql::new("SHOW search_path"))
        .await?;
    let path: String = row.map_or_else(|| Ok(String::new()), |row| row.get("search_path"))?;
    if is_catalog_late(&path) {
        return Ok(Some(format!("search_path {path}")));
    }
    let rows = connection.conn().rows(&Sql::new(SCHEMAS)).await?;
    let schemas = rows.iter().map(|row: &Row| row.get("schema"));
    let schemas = schemas.collect::<Result<Vec<String>, _>>()?;
    let mut snapshot = connection.begin(Access::Snapshot).await?;
    let only_catalog = Sql::new("SET LOCAL search_path TO pg_catalog");
    snapshot.conn().execute(&only_catalog).await?;
    let found = snapshot.conn().first(&sql!(QUERY, schemas)).await?;
    snapshot.commit().await?;
    found.map(|row| row.get("line")).transpose()
}

/// True if the path names `pg_catalog` after another schema. Unnamed, it is searched first.
fn is_catalog_late(path: &str) -> bool {
    let mut names = path.split(',').map(|name| name.trim().trim_matches('"'));
    let place = names.position(|name| name.eq_ignore_ascii_case("pg_catalog"));
    place.is_some_and(|place| place > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalog_is_searched_first_unless_the_path_says_otherwise() {
        for (path, late) in [
            ("\"$user\", public", false),
            ("", false),
            ("pg_catalog, public", false),
            ("public, pg_catalog", true),
            ("public,\"pg_catalog\"", true),
            ("public, PG_CATALOG, other", true),
            ("my_pg_catalog, public", false),
        ] {
            assert_eq!(is_catalog_late(path), late, "{path}");
        }
    }
}
