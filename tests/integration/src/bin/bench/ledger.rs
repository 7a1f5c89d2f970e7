//! How fast the ledger makes facts durable: decode, hash, chain and insert in its transactions, beside the bare inserts of the very rows
//! it made, into a database of the same tables and settings, in transactions of the same size.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledger::domain::fact::Fact;
use ledger::{Location, Store};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::subject;
use prost::Message as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, Connection as _, QueryBuilder, Row as _,
    Sqlite, SqliteConnection, TypeInfo as _, ValueRef as _,
};

use crate::Arguments;
use crate::load::event;
use crate::report::{Line, Section};
use crate::stats::Sorted;

/// The ledger's own default of `batch_size`.
const BATCH: usize = 500;
const TABLES: [&str; 3] = ["entries", "payloads", "event_index"];

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let folder = tempfile::tempdir()?;
    let count = arguments.events;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    // One round more than asked for: the first only warms up.
    for round in 0..=arguments.rounds {
        let path = folder.path().join(format!("{round}.db"));
        let took = append(&path, count).await?;
        let bare = insert(&path, &folder.path().join(format!("{round}-raw.db"))).await?;
        if round > 0 {
            ours.push(f64::from(count) / took.as_secs_f64());
            raw.push(f64::from(count) / bare.as_secs_f64());
        }
    }
    let ratio = Sorted::new(ours.iter().zip(&raw).map(|(ours, raw)| ours / raw)).median();
    let (ours, raw) = (Sorted::new(ours).median(), Sorted::new(raw).median());
    Ok(Section {
        title: "facts into the ledger",
        lines: vec![
            Line::value("raw insert of the same rows", "facts/s", raw),
            Line::value("decode, chain and append", "facts/s", ours)
                .against(raw, "raw insert")
                .budget("≥ 0.5", ratio >= 0.5),
        ],
        notes: vec![format!(
            "{} rounds of {count} facts, taken in turn; {BATCH} a transaction; SQLite, WAL, synchronous = FULL",
            arguments.rounds
        )],
    })
}

/// From received bytes to durable entries, as the service does it.
async fn append(path: &Path, count: u32) -> anyhow::Result<Duration> {
    let messages = (0..count)
        .map(|n| {
            let event = event(n);
            Ok((subject::of(&event)?, Bytes::from(event.encode_to_vec())))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let store = Store::open(&Location::Sqlite(path.to_owned()), 1).await?;
    let start = Instant::now();
    let mut sequence = 0;
    for batch in messages.chunks(BATCH) {
        sequence += batch.len() as u64;
        let facts = batch
            .iter()
            .map(|(subject, body)| Fact::event(subject, body.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        store.append(SLURM_EVENTS, sequence, facts).await?;
    }
    let took = start.elapsed();
    store.close().await;
    Ok(took)
}

/// The rows of a ledger into the tables of an empty one.
async fn insert(from: &Path, to: &Path) -> anyhow::Result<Duration> {
    // The ledger makes the tables, triggers and indexes.
    Store::open(&Location::Sqlite(to.to_owned()), 1)
        .await?
        .close()
        .await;
    let mut source = connect(from).await?;
    let mut tables = Vec::new();
    for table in TABLES {
        let rows = sqlx::query(AssertSqlSafe(format!("SELECT * FROM {table} ORDER BY seq")))
            .fetch_all(&mut source)
            .await?;
        tables.push((
            table,
            rows.iter()
                .map(values)
                .collect::<anyhow::Result<Vec<_>>>()?,
        ));
    }
    source.close().await?;
    let batches = tables
        .first()
        .map_or(0, |(_, rows)| rows.len().div_ceil(BATCH));
    let mut target = connect(to).await?;
    let start = Instant::now();
    for batch in 0..batches {
        let mut transaction = target.begin_with("BEGIN IMMEDIATE").await?;
        for (table, rows) in &tables {
            let rows = rows.iter().skip(batch * BATCH).take(BATCH);
            let mut query = QueryBuilder::<Sqlite>::new(format!("INSERT INTO {table} "));
            query.push_values(rows, |mut row, values| {
                for value in values {
                    match value {
                        Value::Null => row.push_bind(None::<i64>),
                        Value::Integer(value) => row.push_bind(*value),
                        Value::Text(value) => row.push_bind(value),
                        Value::Blob(value) => row.push_bind(value),
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

/// The settings of the ledger's own connection.
async fn connect(path: &Path) -> Result<SqliteConnection, sqlx::Error> {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .connect()
        .await
}

enum Value {
    Null,
    Integer(i64),
    Text(String),
    Blob(Vec<u8>),
}

fn values(row: &SqliteRow) -> anyhow::Result<Vec<Value>> {
    row.columns()
        .iter()
        .map(|column| {
            let at = column.ordinal();
            let raw = row.try_get_raw(at)?;
            Ok(match raw.type_info().name() {
                _ if raw.is_null() => Value::Null,
                "INTEGER" => Value::Integer(row.try_get(at)?),
                "BLOB" => Value::Blob(row.try_get(at)?),
                _ => Value::Text(row.try_get(at)?),
            })
        })
        .collect()
}
