//! The raw limit: the very rows that the ledger made, inserted into the same tables of an empty database, with the same settings and in
//! transactions of the same size, by the statement that is fastest in each database.

use std::ops::Range;
use std::time::{Duration, Instant};

use ledger::{Location, Store};
use sqlx::{
    AssertSqlSafe, Column as _, ColumnIndex, ConnectOptions as _, Connection as _, Database,
    Decode, PgConnection, Postgres, QueryBuilder, Row, Sqlite, SqliteConnection, Type,
    TypeInfo as _,
};

use super::BATCH;
use super::database::{postgres, sqlite};

const TABLES: [&str; 4] = ["entries", "payloads", "event_index", "event_nodes"];

/// Inserts the rows of a ledger.
pub async fn insert(from: &Location, to: &Location) -> anyhow::Result<Duration> {
    // The ledger makes tables, triggers and indexes.
    Store::open(to, 1).await?.close().await;
    match to {
        Location::Sqlite(_) => {
            let mut source = sqlite(from)?.connect().await?;
            let mut tables = Vec::new();
            for name in TABLES {
                let rows = sqlx::query(AssertSqlSafe(select(name))).fetch_all(&mut source);
                tables.push(Table::read(name, &rows.await?)?);
            }
            source.close().await?;
            into_sqlite(sqlite(to)?.connect().await?, &tables).await
        }
        Location::Postgres(_) => {
            let mut source = postgres(from)?.connect().await?;
            let mut tables = Vec::new();
            for name in TABLES {
                let rows = sqlx::query(AssertSqlSafe(select(name))).fetch_all(&mut source);
                tables.push(Table::read(name, &rows.await?)?);
            }
            source.close().await?;
            into_postgres(postgres(to)?.connect().await?, &tables).await
        }
    }
}

fn select(table: &str) -> String {
    format!("SELECT * FROM {table} ORDER BY seq")
}

async fn into_sqlite(mut target: SqliteConnection, tables: &[Table]) -> anyhow::Result<Duration> {
    let start = Instant::now();
    for seqs in batches(tables) {
        let mut transaction = target.begin_with("BEGIN IMMEDIATE").await?;
        for table in tables {
            let rows = table.rows_of(&seqs);
            if rows.is_empty() {
                continue;
            }
            let mut query = QueryBuilder::<Sqlite>::new(table.insert_into());
            query.push_values(rows, |mut values, row| {
                for (_, column) in &table.columns {
                    match column {
                        Column::Ints(ints) => values.push_bind(ints[row]),
                        Column::Texts(texts) => values.push_bind(texts[row].as_deref()),
                        Column::Bytes(bytes) => values.push_bind(bytes[row].as_deref()),
                    };
                }
            });
            query.build().execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
    }
    let took = start.elapsed();
    target.close().await?;
    Ok(took)
}

async fn into_postgres(mut target: PgConnection, tables: &[Table]) -> anyhow::Result<Duration> {
    let start = Instant::now();
    for seqs in batches(tables) {
        let mut transaction = target.begin().await?;
        for table in tables {
            let rows = table.rows_of(&seqs);
            let mut query = QueryBuilder::<Postgres>::new(table.insert_into());
            query.push("SELECT * FROM UNNEST(");
            let mut arrays = query.separated(", ");
            for (_, column) in &table.columns {
                match column {
                    Column::Ints(ints) => arrays.push_bind(&ints[rows.clone()]),
                    Column::Texts(texts) => arrays.push_bind(&texts[rows.clone()]),
                    Column::Bytes(bytes) => arrays.push_bind(&bytes[rows.clone()]),
                };
            }
            query.push(")").build().execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
    }
    let took = start.elapsed();
    target.close().await?;
    Ok(took)
}

/// The sequences of each transaction: the first table has one row for each.
fn batches(tables: &[Table]) -> impl Iterator<Item = Range<i64>> {
    let count = tables.first().map_or(0, |table| table.seqs.len());
    let batch = BATCH as i64;
    (0..count as i64)
        .step_by(BATCH)
        .map(move |before| before + 1..before + 1 + batch)
}

/// The rows of a table, by column.
struct Table {
    name: &'static str,
    columns: Vec<(String, Column)>,
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
                Ok((column.name().to_owned(), values))
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

    /// Places of the rows with these sequences.
    fn rows_of(&self, seqs: &Range<i64>) -> Range<usize> {
        let place = |seq| self.seqs.partition_point(|other| *other < seq);
        place(seqs.start)..place(seqs.end)
    }

    fn insert_into(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        format!("INSERT INTO {} ({}) ", self.name, names.join(", "))
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
