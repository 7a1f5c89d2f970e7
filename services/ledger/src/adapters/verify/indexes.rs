//! Compares every index of the ledger's tables on PostgreSQL with its table.
//!
//! Three reads in one snapshot: the tuple ids (`ctid`) of the table's rows without an order, and for each of its indexes the rows to which its
//! entries point and the keys as the index has them, both in the order of the index. The tuple ids of both reads of rows have the same
//! number and sum of hashes, so each row has one entry. The keys of the rows and of the entries have the same sum of hashes that
//! include their position, so each entry has the key of the row to which it points. That these keys are in order is checked by
//! amcheck, or else here. Nobody can choose values with equal sums beforehand, because the seed of the hashes is random.

use std::panic::resume_unwind;

use mesh_db::pool::{Access, Pool, Transaction};
use mesh_db::sql::{Row, Sql};
use tokio::task::JoinSet;

use super::outcome::Integrity;

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

/// Tuple ids of the rows of a table, or of those to which an index points.
#[derive(PartialEq, Eq)]
struct TupleIds {
    rows: i64,
    /// Sum of their hashes.
    digest: String,
}

/// The keys of the entries of an index.
struct Entries {
    number: i64,
    /// Number of keys that are smaller than the one before.
    late: i64,
    /// Sum of the hashes of keys and positions.
    digest: String,
}

/// Who checks that the keys of an index are in order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OrderCheck {
    /// amcheck has checked all indexes.
    Done,
    /// The comparison does, which takes longer.
    Here,
}

/// Compares all indexes.
///
/// # Errors
/// If the database cannot be read.
pub async fn compare(pool: &Pool, order: OrderCheck) -> Result<Integrity, sqlx::Error> {
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
            comparisons.push(Comparison {
                indexes,
                seed,
                order,
            });
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
    order: OrderCheck,
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
            let rows = self.rows(&mut snapshot, index).await?;
            let entries = self.entries(&mut snapshot, index).await?;
            let (Some((tuples, keys)), Some(entries)) = (rows, entries) else {
                return Ok(not_read(name));
            };
            let is_same = tuples == expected
                && (entries.number, &entries.digest) == (expected.rows, &keys)
                && entries.late == 0;
            if !is_same {
                return Ok(Integrity::Damaged(format!(
                    "the index {name} has {} entries for {} rows of {}, or others than they are",
                    entries.number, expected.rows, index.relation
                )));
            }
        }
        snapshot.commit().await?;
        Ok(Integrity::Whole)
    }

    /// Reads the table once, for each index the rows that it should have. `None` if PostgreSQL plans to read an index instead.
    async fn table(
        &self,
        snapshot: &mut Transaction<'_>,
    ) -> Result<Option<Vec<TupleIds>>, sqlx::Error> {
        let seed = self.seed;
        let columns = self.indexes.iter().map(|index| {
            let condition = &index.condition;
            format!(
                "COUNT(*) FILTER (WHERE {condition}),
                 COALESCE(SUM(hashtidextended(ctid, {seed})) FILTER (WHERE {condition}), 0)::text"
            )
        });
        let columns: Vec<String> = columns.collect();
        let (columns, relation) = (columns.join(", "), &self.indexes[0].relation);
        let sql = format!("SELECT {columns} FROM {relation}");
        let Some(row) = planned(snapshot, sql, "Seq Scan on ").await? else {
            return Ok(None);
        };
        let tuples = (0..self.indexes.len()).map(|index| {
            Ok(TupleIds {
                rows: row.at(2 * index)?,
                digest: row.at(2 * index + 1)?,
            })
        });
        tuples.collect::<Result<_, sqlx::Error>>().map(Some)
    }

    /// Reads the rows to which an index points, in its order: their tuple ids, and the digest of their keys and positions. `None` if
    /// PostgreSQL plans another scan.
    async fn rows(
        &self,
        snapshot: &mut Transaction<'_>,
        index: &Index,
    ) -> Result<Option<(TupleIds, String)>, sqlx::Error> {
        let seed = self.seed;
        let ordered = index.ordered(&format!(
            "{}, hashtidextended(ctid, {seed}) AS tuple_hash",
            index.hash(seed)
        ));
        let sql = format!(
            "SELECT COUNT(*), COALESCE(SUM(tuple_hash), 0)::text, {DIGEST}
             FROM (SELECT key_hash, tuple_hash, row_number() OVER () AS position FROM {ordered}) AS numbered"
        );
        // The tuple id is in no index, so the rows are read.
        let scan = format!("Index Scan using {} ", index.name);
        let row = planned(snapshot, sql, &scan).await?;
        row.map(|row| {
            let tuples = TupleIds {
                rows: row.at(0)?,
                digest: row.at(1)?,
            };
            Ok((tuples, row.at(2)?))
        })
        .transpose()
    }

    /// Reads the entries of an index alone, in its order. `None` if PostgreSQL plans another scan.
    async fn entries(
        &self,
        snapshot: &mut Transaction<'_>,
        index: &Index,
    ) -> Result<Option<Entries>, sqlx::Error> {
        let (keys, hash) = (&index.keys, index.hash(self.seed));
        let (ordered, late) = match self.order {
            OrderCheck::Done => (index.ordered(&hash), "FALSE".to_owned()),
            OrderCheck::Here => (
                index.ordered(&format!("{hash}, {keys}")),
                format!("lag(ROW({keys})) OVER () > ROW({keys})"),
            ),
        };
        let sql = format!(
            "SELECT COUNT(*), COUNT(*) FILTER (WHERE late), {DIGEST}
             FROM (SELECT key_hash, {late} AS late, row_number() OVER () AS position FROM {ordered}) AS numbered"
        );
        let scan = format!("Index Only Scan using {} ", index.name);
        let row = planned(snapshot, sql, &scan).await?;
        row.map(|row| {
            Ok(Entries {
                number: row.at(0)?,
                late: row.at(1)?,
                digest: row.at(2)?,
            })
        })
        .transpose()
    }
}

/// The digest of keys and their positions.
const DIGEST: &str = "COALESCE(SUM(hashint8extended(position, key_hash)), 0)::text";

impl Index {
    /// The hash of the keys of a row.
    fn hash(&self, seed: i64) -> String {
        format!(
            "hash_record_extended(ROW({}), {seed}) AS key_hash",
            self.keys
        )
    }

    /// A query in the order of the index.
    fn ordered(&self, columns: &str) -> String {
        let Self {
            relation,
            condition,
            keys,
            ..
        } = self;
        format!("(SELECT {columns} FROM {relation} WHERE {condition} ORDER BY {keys}) AS ordered")
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
