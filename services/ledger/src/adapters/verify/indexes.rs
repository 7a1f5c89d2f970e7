//! Compares every index of the ledger's tables on PostgreSQL with its table.
//!
//! Three reads in one snapshot: the table without an order, and for each of its indexes the keys as the index has them and the
//! rows to which its entries point, both in the order of the index. Each gives a number of rows and a sum of hashes, the latter two
//! also how often a key is smaller than the one before it. With the same sums and no such key both are the table in the order of the
//! keys, so each entry has the key of the row to which it points. Nobody can choose keys with equal sums beforehand, because the seed
//! of the hashes is random.

use std::panic::resume_unwind;

use mesh_db::pool::{Access, Pool, Transaction};
use mesh_db::sql::{Row, Sql};
use tokio::task::JoinSet;

use super::database::Integrity;

/// Index scans of the planner that has no other choice.
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_indexscan = on; SET LOCAL enable_indexonlyscan = on";
/// A sequential scan.
const BY_TABLE: &str = "SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off";
/// For both. A bitmap scan checks keys again, and loses the order. Pages cost nothing and conditions much, so that a partial
/// index is cheaper than another one with the same order, whatever their sizes.
const ALWAYS: &str = "SET LOCAL enable_bitmapscan = off; SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL seq_page_cost = 0; SET LOCAL random_page_cost = 0; SET LOCAL cpu_operator_cost = 1";

/// Indexes that are compared with one read of their table. A table of many is read by several connections.
const INDEXES_PER_READ: usize = 3;
/// Connections that compare at a time.
pub(super) const AT_ONCE: usize = 3;

const INDEXES: &str = "SELECT i.indexrelid::regclass::text AS name, i.indrelid::regclass::text AS relation,
     COALESCE(pg_get_expr(i.indpred, i.indrelid), 'TRUE') AS condition,
     (SELECT string_agg(pg_get_indexdef(i.indexrelid, k, true), ', ' ORDER BY k) FROM generate_series(1, i.indnkeyatts) k) AS keys
 FROM pg_index i
 JOIN pg_class x ON x.oid = i.indexrelid AND x.relkind = 'i' AND x.relam = (SELECT oid FROM pg_am WHERE amname = 'btree')
 WHERE x.relnamespace = current_schema()::regnamespace AND i.indisvalid AND i.indisready ORDER BY relation, name";

#[derive(Clone)]
struct Index {
    name: String,
    relation: String,
    condition: String,
    keys: String,
}

/// What a read in the order of an index has found.
struct Found {
    rows: i64,
    /// Number of keys that are smaller than the one before.
    late: i64,
    digest: String,
}

/// What a table has for an index.
struct Expected {
    rows: i64,
    keys: String,
    /// Of keys and places of the rows.
    places: String,
}

/// Compares all indexes.
///
/// # Errors
/// If the database cannot be read.
pub async fn compare(pool: &Pool) -> Result<Integrity, sqlx::Error> {
    let rows = pool.rows(&Sql::new(INDEXES)).await?;
    let index = |row: &Row| {
        Ok(Index {
            name: row.get("name")?,
            relation: row.get("relation")?,
            condition: row.get("condition")?,
            keys: row.get("keys")?,
        })
    };
    let indexes: Result<Vec<Index>, sqlx::Error> = rows.iter().map(index).collect();
    // Written as a literal, of which PostgreSQL does not take the smallest.
    let seed = rand::random::<i64>() >> 1;
    let mut comparisons = Vec::new();
    for of_table in indexes?.chunk_by(|one, next| one.relation == next.relation) {
        for some in of_table.chunks(INDEXES_PER_READ) {
            let indexes = some.to_vec();
            comparisons.push(Comparison { indexes, seed });
        }
    }
    let mut waiting = comparisons.into_iter();
    let mut running = JoinSet::new();
    for comparison in waiting.by_ref().take(AT_ONCE) {
        running.spawn(comparison.run(pool.clone()));
    }
    while let Some(ended) = running.join_next().await {
        let result = ended.unwrap_or_else(|error| resume_unwind(error.into_panic()));
        if let Some(comparison) = waiting.next() {
            running.spawn(comparison.run(pool.clone()));
        }
        match result {
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

/// Some indexes of one table.
struct Comparison {
    indexes: Vec<Index>,
    seed: i64,
}

impl Comparison {
    async fn run(self, pool: Pool) -> Result<Integrity, sqlx::Error> {
        let mut connection = pool.acquire().await?;
        // A comparison that is cancelled ends in the database, too.
        connection.close_on_drop();
        let mut snapshot = connection.begin(Access::Snapshot).await?;
        set(&mut snapshot, ALWAYS).await?;
        set(&mut snapshot, BY_TABLE).await?;
        let Some(table) = self.table(&mut snapshot).await? else {
            return Ok(not_read(&self.indexes[0].relation));
        };
        set(&mut snapshot, BY_INDEX).await?;
        for (index, expected) in self.indexes.iter().zip(table) {
            let name = &index.name;
            // The place is in no index, so with it the rows are read.
            let scan = format!("Index Scan using {name} ");
            let rows = self.read(&mut snapshot, index, ", ctid", &scan).await?;
            let scan = format!("Index Only Scan using {name} ");
            let keys = self.read(&mut snapshot, index, "", &scan).await?;
            let (Some(rows), Some(keys)) = (rows, keys) else {
                return Ok(not_read(name));
            };
            let is_same = (rows.rows, &rows.digest) == (expected.rows, &expected.places)
                && (keys.rows, &keys.digest) == (expected.rows, &expected.keys);
            if !is_same || rows.late > 0 || keys.late > 0 {
                return Ok(Integrity::Damaged(format!(
                    "the index {name} has {} entries for {} rows of {}, or others than they are",
                    keys.rows, expected.rows, index.relation
                )));
            }
        }
        snapshot.commit().await?;
        Ok(Integrity::Whole)
    }

    /// Reads the table once. `None` if PostgreSQL plans to read an index instead.
    async fn table(
        &self,
        snapshot: &mut Transaction<'_>,
    ) -> Result<Option<Vec<Expected>>, sqlx::Error> {
        let seed = self.seed;
        let columns = self.indexes.iter().map(|index| {
            let Index { condition, keys, .. } = index;
            format!(
                "COUNT(*) FILTER (WHERE {condition}),
                 COALESCE(SUM(hash_record_extended(ROW({keys}), {seed})) FILTER (WHERE {condition}), 0)::text,
                 COALESCE(SUM(hash_record_extended(ROW({keys}, ctid), {seed})) FILTER (WHERE {condition}), 0)::text"
            )
        });
        let columns: Vec<String> = columns.collect();
        let (columns, relation) = (columns.join(", "), &self.indexes[0].relation);
        let sql = format!("SELECT {columns} FROM {relation}");
        let Some(row) = planned(snapshot, sql, "Seq Scan on ").await? else {
            return Ok(None);
        };
        let expected = (0..self.indexes.len()).map(|index| {
            let first = 3 * index;
            Ok(Expected {
                rows: row.at(first)?,
                keys: row.at(first + 1)?,
                places: row.at(first + 2)?,
            })
        });
        expected.collect::<Result<_, sqlx::Error>>().map(Some)
    }

    /// Reads keys, and their places unless that is empty, in the order of an index. `None` if PostgreSQL plans another scan.
    async fn read(
        &self,
        snapshot: &mut Transaction<'_>,
        index: &Index,
        place: &str,
        scan: &str,
    ) -> Result<Option<Found>, sqlx::Error> {
        let Index {
            relation,
            condition,
            keys,
            ..
        } = index;
        let seed = self.seed;
        let sql = format!(
            "SELECT COUNT(*), COUNT(*) FILTER (WHERE before > key), COALESCE(SUM(hash), 0)::text
             FROM (SELECT ROW({keys}) AS key, lag(ROW({keys})) OVER () AS before, hash_record_extended(ROW({keys}{place}), {seed}) AS hash
                   FROM (SELECT {keys}{place} FROM {relation} WHERE {condition} ORDER BY {keys}) AS ordered) AS hashed"
        );
        let row = planned(snapshot, sql, scan).await?;
        row.map(|row| {
            Ok(Found {
                rows: row.at(0)?,
                late: row.at(1)?,
                digest: row.at(2)?,
            })
        })
        .transpose()
    }
}

fn not_read(name: &str) -> Integrity {
    Integrity::Unasked(format!("PostgreSQL does not read {name} alone"))
}

/// Executes a query that is planned with this scan, and without a sort of its own. `None` if it is not.
async fn planned(
    snapshot: &mut Transaction<'_>,
    sql: String,
    scan: &str,
) -> Result<Option<Row>, sqlx::Error> {
    let plan = Sql::new(format!("EXPLAIN {sql}"));
    let plan = snapshot.conn().rows(&plan).await?;
    let lines: Result<Vec<String>, _> = plan.iter().map(|row| row.at(0)).collect();
    let lines = lines?;
    let has = |part: &str| lines.iter().any(|line| line.contains(part));
    if !has(scan) || has("Sort Key") {
        return Ok(None);
    }
    snapshot.conn().first(&Sql::new(sql)).await
}

async fn set(snapshot: &mut Transaction<'_>, settings: &'static str) -> Result<(), sqlx::Error> {
    for setting in settings.split("; ") {
        snapshot.conn().execute(&Sql::new(setting)).await?;
    }
    Ok(())
}
