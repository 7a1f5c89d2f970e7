//! Counts the entries of partial indexes on SQLite, which `PRAGMA integrity_check` does not do as of 3.51: it looks for the entry of
//! each row, so an entry too many, such as of an event under another user, is not found.

use mesh_db::pool::Transaction;
use mesh_db::sql::Sql;

/// Tables with their partial indexes, each with its condition.
const PARTIAL: [(&str, &[(&str, &str)]); 2] = [
    (
        "event_index",
        &[
            ("event_index_account", "account IS NOT NULL"),
            ("event_index_array", "array_job_id IS NOT NULL"),
            ("event_index_category", "category = 'audit'"),
            ("event_index_het", "het_job_id IS NOT NULL"),
            ("event_index_job", "job_id IS NOT NULL"),
            ("event_index_name", "name IS NOT NULL"),
            ("event_index_node", "node IS NOT NULL"),
            ("event_index_partition", "partition IS NOT NULL"),
            ("event_index_user", "user_name IS NOT NULL"),
        ],
    ),
    (
        "replays",
        &[
            ("replays_idempotency", "idempotency_key IS NOT NULL"),
            ("replays_open", "audited < 2"),
        ],
    ),
];

/// Returns a description of the first index with another number of entries than its table has rows for it, or `None`.
pub(super) async fn damage(snapshot: &mut Transaction<'_>) -> Result<Option<String>, sqlx::Error> {
    for (table, indexes) in PARTIAL {
        let counts = indexes
            .iter()
            .map(|(_, condition)| format!("COUNT(*) FILTER (WHERE {condition})"));
        let counts: Vec<String> = counts.collect();
        let sql = format!("SELECT {} FROM {table} NOT INDEXED", counts.join(", "));
        let Some(rows) = snapshot.conn().first(&Sql::new(sql)).await? else {
            continue;
        };
        for (place, (name, _)) in indexes.iter().enumerate() {
            let rows: i64 = rows.at(place)?;
            // The cells of its pages: a query could leave out entries.
            let sql =
                Sql::new("SELECT COALESCE(SUM(ncell), 0) FROM dbstat WHERE name = ").bind(*name);
            let entries = snapshot.conn().first(&sql).await?;
            let entries: i64 = entries.map_or(Ok(0), |row| row.at(0))?;
            if entries != rows {
                return Ok(Some(format!(
                    "the index {name} has {entries} entries for {rows} rows of {table}"
                )));
            }
        }
    }
    unlisted(snapshot).await
}

/// Returns a description of a partial index whose entries nothing counts, or `None`.
async fn unlisted(snapshot: &mut Transaction<'_>) -> Result<Option<String>, sqlx::Error> {
    let sql = Sql::new(
        "SELECT i.name FROM sqlite_schema t, pragma_index_list(t.name) i WHERE t.type = 'table' AND i.partial",
    );
    for row in snapshot.conn().rows(&sql).await? {
        let name: String = row.at(0)?;
        let mut listed = PARTIAL.iter().flat_map(|(_, indexes)| *indexes);
        if !listed.any(|(known, _)| *known == name) {
            return Ok(Some(format!("the ledger has no partial index {name}")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqlitePoolOptions;

    use super::PARTIAL;
    use crate::adapters::tables::TABLES;

    #[tokio::test]
    async fn all_partial_indexes_are_counted() {
        let options = SqlitePoolOptions::new().max_connections(1);
        let pool = options.connect("sqlite::memory:").await.unwrap();
        TABLES.sqlite.run(&pool).await.unwrap();
        let made: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT tbl_name, name, substr(sql, instr(sql, ' WHERE ') + 7) FROM sqlite_schema
             WHERE type = 'index' AND instr(sql, ' WHERE ') ORDER BY tbl_name, name",
        )
        .fetch_all(&pool)
        .await
        .unwrap();
        pool.close().await;
        let listed = PARTIAL.iter().flat_map(|(table, indexes)| {
            let named = |(name, condition): &(&str, &str)| {
                (
                    (*table).to_owned(),
                    (*name).to_owned(),
                    (*condition).to_owned(),
                )
            };
            indexes.iter().map(named)
        });
        assert_eq!(listed.collect::<Vec<_>>(), made);
    }
}
