//! Compares every index of the ledger's tables on PostgreSQL with its table.
//!
//! Three reads of each index and its table, in one snapshot: the keys as the index has them, the rows to which its entries
//! point, and the table in the order of a sort. Each gives a number of rows and a digest that depends on the order; ends of
//! equal keys need none. An entry that is missing, points elsewhere, has another key or is out of order changes one of them.

use mesh_db::pool::{Access, Connection, Transaction};
use mesh_db::sql::{Row, Sql};

use super::database::Integrity;

/// Index scans of the planner that has no other choice.
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_indexscan = on; SET LOCAL enable_indexonlyscan = on";
/// A sorted sequential scan.
const BY_TABLE: &str = "SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = on; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off";
/// For both. A bitmap scan checks keys again, and loses the order. Pages cost nothing and conditions much, so that a partial
/// index is cheaper than another one with the same order, whatever their sizes.
const ALWAYS: &str = "SET LOCAL enable_bitmapscan = off; SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL seq_page_cost = 0; SET LOCAL random_page_cost = 0; SET LOCAL cpu_operator_cost = 1";

const INDEXES: &str = "SELECT i.indexrelid::regclass::text AS name, i.indrelid::regclass::text AS relation,
     COALESCE(pg_get_expr(i.indpred, i.indrelid), 'TRUE') AS condition,
     (SELECT string_agg(pg_get_indexdef(i.indexrelid, k, true), ', ' ORDER BY k) FROM generate_series(1, i.indnkeyatts) k) AS keys
 FROM pg_index i
 JOIN pg_class x ON x.oid = i.indexrelid AND x.relkind = 'i' AND x.relam = (SELECT oid FROM pg_am WHERE amname = 'btree')
 WHERE x.relnamespace = current_schema()::regnamespace AND i.indisvalid AND i.indisready ORDER BY x.relname";

struct Index {
    name: String,
    relation: String,
    condition: String,
    keys: String,
}

/// What a read of an index or a table has found.
#[derive(PartialEq, Eq)]
struct Found {
    rows: i64,
    /// Of the keys, in order.
    keys: String,
    /// Of the places of the rows, in any order.
    places: String,
}

/// Compares all indexes.
///
/// # Errors
/// If the database cannot be read.
pub async fn compare(connection: &mut Connection) -> Result<Integrity, sqlx::Error> {
    let rows = connection.conn().rows(&Sql::new(INDEXES)).await?;
    let index = |row: &Row| {
        Ok(Index {
            name: row.get("name")?,
            relation: row.get("relation")?,
            condition: row.get("condition")?,
            keys: row.get("keys")?,
        })
    };
    let indexes: Result<Vec<Index>, sqlx::Error> = rows.iter().map(index).collect();
    for index in indexes? {
        match index.compare(connection).await {
            Ok(Integrity::Whole) => {}
            Ok(other) => return Ok(other),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42501") => {
                let why = format!("{}; `smesh ledger roles` has the rights", error.message());
                return Ok(Integrity::Unasked(why));
            }
            Err(sqlx::Error::Database(error))
                if error.code().is_some_and(|code| code.starts_with("XX")) =>
            {
                return Ok(Integrity::Damaged(error.message().to_owned()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Integrity::Whole)
}

impl Index {
    async fn compare(&self, connection: &mut Connection) -> Result<Integrity, sqlx::Error> {
        let mut snapshot = connection.begin(Access::Snapshot).await?;
        set(&mut snapshot, ALWAYS).await?;
        set(&mut snapshot, BY_TABLE).await?;
        let table = self.read(&mut snapshot, "ctid", &["Seq Scan"]).await?;
        set(&mut snapshot, BY_INDEX).await?;
        let name = &self.name;
        // The place is in no index, so with it the rows are read.
        let rows = [&*format!("Index Scan using {name} ")];
        let rows = self.read(&mut snapshot, "ctid", &rows).await?;
        let keys = [&*format!("Index Only Scan using {name} ")];
        let keys = self.read(&mut snapshot, "''", &keys).await?;
        snapshot.commit().await?;
        let (Some(table), Some(rows), Some(keys)) = (table, rows, keys) else {
            let why = format!("PostgreSQL does not read the index {name} alone");
            return Ok(Integrity::Unasked(why));
        };
        let is_same = rows == table && (keys.rows, &keys.keys) == (table.rows, &table.keys);
        Ok(match is_same {
            true => Integrity::Whole,
            false => Integrity::Damaged(format!(
                "the index {name} has {} entries for {} rows of {}, or others than they are",
                keys.rows, table.rows, self.relation
            )),
        })
    }

    /// Reads by a plan with one of these scans. `None` if PostgreSQL plans another one.
    async fn read(
        &self,
        snapshot: &mut Transaction<'_>,
        place: &str,
        scans: &[&str],
    ) -> Result<Option<Found>, sqlx::Error> {
        let Self {
            relation,
            condition,
            keys,
            ..
        } = self;
        let sql = format!(
            "SELECT COUNT(*) AS rows, COALESCE(SUM(key_hash * n), 0)::text AS keys, COALESCE(SUM(place_hash), 0)::text AS places
             FROM (SELECT hashtextextended(ROW({keys})::text, 0) & 2147483647 AS key_hash, hashtextextended(place, 0) AS place_hash,
                       row_number() OVER () AS n
                   FROM (SELECT {keys}, {place}::text AS place FROM {relation} WHERE {condition} ORDER BY {keys}) AS ordered) AS hashed"
        );
        let plan = Sql::new(format!("EXPLAIN {sql}"));
        let plan = snapshot.conn().rows(&plan).await?;
        let lines: Result<Vec<String>, _> = plan.iter().map(|row| row.at(0)).collect();
        let lines = lines?;
        let is_planned = |scan: &&str| lines.iter().any(|line| line.contains(*scan));
        if !scans.iter().any(is_planned) {
            return Ok(None);
        }
        let row = snapshot.conn().first(&Sql::new(sql)).await?;
        row.map(|row| {
            Ok(Found {
                rows: row.get("rows")?,
                keys: row.get("keys")?,
                places: row.get("places")?,
            })
        })
        .transpose()
    }
}

async fn set(snapshot: &mut Transaction<'_>, settings: &'static str) -> Result<(), sqlx::Error> {
    for setting in settings.split("; ") {
        snapshot.conn().execute(&Sql::new(setting)).await?;
    }
    Ok(())
}
