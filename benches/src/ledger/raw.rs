//! The raw limit: the ledger's rows are inserted into the same tables of an empty database, with the same settings and transaction
//! sizes, by the same statements. These are the fastest known for each database.

use std::ops::Range;
use std::time::Duration;

use ledger::{Location, Store};
use mesh_db::pool::Conn;
use mesh_db::sql;
use sqlx::{
    AssertSqlSafe, Column as _, ColumnIndex, ConnectOptions as _, Connection as _, Database,
    Decode, Row, Type, TypeInfo as _,
};

use super::database::{postgres, sqlite};
use crate::process::Stopwatch;

pub const TABLES: [&str; 4] = ["entries", "payloads", "event_index", "event_nodes"];

/// Inserts the rows of a ledger. Returns the elapsed time, and the CPU time of this process.
pub async fn insert(
    from: &Location,
    to: &Location,
    batch: usize,
) -> anyhow::Result<(Duration, Duration)> {
    // The ledger creates tables, triggers and indexes.
    Store::open(to, 1).await?.close().await;
    let mut tables = Vec::new();
    match to {
        Location::Sqlite(_) => {
            let mut source = sqlite(from)?.connect().await?;
            for name in TABLES {
                let rows = sqlx::query(AssertSqlSafe(select(name))).fetch_all(&mut source);
                tables.push(Table::read(name, &rows.await?)?);
            }
            source.close().await?;
            let mut target = sqlite(to)?.connect().await?;
            let watch = Stopwatch::start()?;
            for seqs in batches(&tables, batch) {
                let mut transaction = target.begin_with("BEGIN IMMEDIATE").await?;
                for table in &tables {
                    let conn = Conn::Sqlite(&mut transaction);
                    conn.insert(table.name, &table.rows(&seqs)).await?;
                }
                transaction.commit().await?;
            }
            let took = watch.stop();
            target.close().await?;
            took
        }
        Location::Postgres(_) => {
            let mut source = postgres(from)?.connect().await?;
            for name in TABLES {
                let rows = sqlx::query(AssertSqlSafe(select(name))).fetch_all(&mut source);
                tables.push(Table::read(name, &rows.await?)?);
            }
            source.close().await?;
            let mut target = postgres(to)?.connect().await?;
            let watch = Stopwatch::start()?;
            for seqs in batches(&tables, batch) {
                let mut transaction = target.begin().await?;
                for table in &tables {
                    let conn = Conn::Postgres(&mut transaction);
                    conn.insert(table.name, &table.rows(&seqs)).await?;
                }
                transaction.commit().await?;
            }
            let took = watch.stop();
            target.close().await?;
            took
        }
    }
}

fn select(table: &str) -> String {
    format!("SELECT * FROM {table} ORDER BY seq")
}

/// The sequences of each transaction. The first table has one row per sequence.
fn batches(tables: &[Table], batch: usize) -> impl Iterator<Item = Range<i64>> {
    let count = tables.first().map_or(0, |table| table.seqs.len());
    (0..count as i64)
        .step_by(batch)
        .map(move |before| before + 1..before + 1 + batch as i64)
}

/// The rows of a table, by column.
struct Table {
    name: &'static str,
    columns: Vec<(&'static str, Column)>,
    /// Sequence of each row, in order.
    seqs: Vec<i64>,
}

enum Column {
    Ints(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

impl Table {
    fn read<D, R>(name: &'static str, rows: &[R]) -> anyhow::Result<Self>
    where
        D: Database,
        R: Row<Database = D>,
        usize: ColumnIndex<R>,
        for<'c> &'c str: ColumnIndex<R>,
        for<'r> i64: Decode<'r, D> + Type<D>,
        for<'r> String: Decode<'r, D> + Type<D>,
        for<'r> Vec<u8>: Decode<'r, D> + Type<D>,
    {
        let first = rows.first().map_or(&[][..], |row| row.columns());
        let columns = first
            .iter()
            .map(|column| {
                let at = column.ordinal();
                let values = match column.type_info().name() {
                    "INTEGER" | "INT8" => Column::Ints(all(rows, at)?),
                    "BLOB" | "BYTEA" => Column::Bytes(all(rows, at)?),
                    _ => Column::Texts(all(rows, at)?),
                };
                // As many as the tables have columns, and the program ends soon.
                Ok((&*column.name().to_owned().leak(), values))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            name,
            columns,
            seqs: rows
                .iter()
                .map(|row| row.try_get("seq"))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The rows with these sequences.
    fn rows(&self, seqs: &Range<i64>) -> Vec<(&'static str, sql::Column<'_>)> {
        let place = |seq| self.seqs.partition_point(|other| *other < seq);
        let rows = place(seqs.start)..place(seqs.end);
        let columns = self.columns.iter().map(|(name, column)| {
            let values = match column {
                Column::Ints(ints) => sql::Column::Ints(ints[rows.clone()].to_vec()),
                Column::Texts(texts) => {
                    sql::Column::Texts(texts[rows.clone()].iter().map(Option::as_deref).collect())
                }
                Column::Bytes(bytes) => {
                    sql::Column::Blobs(bytes[rows.clone()].iter().map(Option::as_deref).collect())
                }
            };
            (*name, values)
        });
        columns.collect()
    }
}

fn all<'r, R, T>(rows: &'r [R], at: usize) -> Result<Vec<Option<T>>, sqlx::Error>
where
    R: Row,
    usize: ColumnIndex<R>,
    T: Decode<'r, R::Database> + Type<R::Database>,
{
    rows.iter().map(|row| row.try_get(at)).collect()
}
