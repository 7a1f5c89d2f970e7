//! Appends a history as the service does, but faster: indexes used only by queries are created at the end, and further events are
//! generated during appends.

use std::time::Instant;

use ledger::domain::record::Record;
use ledger::{Location, Store};
use mesh_events::catalogue::SLURM_EVENTS;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, SqliteConnection};
use tokio::sync::mpsc;

use super::append::message;
use super::database::{postgres, sqlite};
use super::history;
use crate::report::Line;

/// Larger than the ledger's default. SQLite inserts this many rows of the query columns with one statement.
const BATCH: usize = 1_000;
/// Number of batches generated ahead.
const AHEAD: usize = 4;

/// Note for readers of the report.
pub const NOTE: &str = "filled in batches of 1,000, the indexes for queries made afterwards";

/// Fills a ledger that has no entries.
pub async fn fill(name: &str, location: &Location, count: u32) -> anyhow::Result<Vec<Line>> {
    let store = Store::open(location, 1).await?;
    if store.head().await?.seq > 0 {
        store.close().await;
        return Ok(Vec::new());
    }
    let mut tables = Tables::open(location).await?;
    let indexes = tables.drop_indexes().await?;
    let start = Instant::now();
    let (made, mut batches) = mpsc::channel(AHEAD);
    let making = std::thread::spawn(move || make(count, &made));
    let mut sequence = 0;
    while let Some(facts) = batches.recv().await {
        sequence += facts.len() as u64;
        store.append(SLURM_EVENTS, sequence, facts).await?;
    }
    making.join().expect("facts are made")?;
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    store.close().await;
    let start = Instant::now();
    tables.create(indexes).await?;
    tables.close().await?;
    Ok(vec![
        Line::value(format!("{name}: made and appended"), "facts/s", rate),
        Line::value(
            format!("{name}: indexes for queries made"),
            "s",
            start.elapsed().as_secs_f64(),
        ),
    ])
}

fn make(count: u32, made: &mpsc::Sender<Vec<Record>>) -> anyhow::Result<()> {
    let mut facts = Vec::with_capacity(BATCH);
    for event in history::events(count) {
        let (subject, body) = message(&event)?;
        facts.push(Record::event(&subject, body)?);
        if facts.len() == BATCH && made.blocking_send(std::mem::take(&mut facts)).is_err() {
            // The appending side has failed and reports the error.
            return Ok(());
        }
    }
    made.blocking_send(facts).ok();
    Ok(())
}

/// The ledger's tables, with write access.
enum Tables {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

/// Name and definition of each index, as in the database.
type Indexes = Vec<(String, String)>;

impl Tables {
    async fn open(location: &Location) -> anyhow::Result<Self> {
        Ok(match location {
            Location::Sqlite(_) => Self::Sqlite(sqlite(location)?.connect().await?),
            Location::Postgres(_) => Self::Postgres(postgres(location)?.connect().await?),
        })
    }

    /// Drops all indexes that are neither keys nor unique.
    async fn drop_indexes(&mut self) -> anyhow::Result<Indexes> {
        let indexes: Indexes = match self {
            Self::Sqlite(connection) => {
                sqlx::query_as(
                    "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE 'CREATE INDEX %'
                         AND tbl_name IN ('event_index', 'event_nodes')",
                )
                .fetch_all(connection)
                .await?
            }
            Self::Postgres(connection) => {
                sqlx::query_as(
                    "SELECT indexname::TEXT, indexdef FROM pg_indexes WHERE schemaname = current_schema() AND indexdef LIKE 'CREATE INDEX %'
                         AND tablename IN ('event_index', 'event_nodes')",
                )
                .fetch_all(connection)
                .await?
            }
        };
        for (name, _) in &indexes {
            self.run(format!("DROP INDEX {name}")).await?;
        }
        Ok(indexes)
    }

    async fn create(&mut self, indexes: Indexes) -> anyhow::Result<()> {
        self.run(match self {
            // In KiB, for this connection.
            Self::Sqlite(_) => "PRAGMA cache_size = -500000".into(),
            Self::Postgres(_) => "SET maintenance_work_mem = '500MB'".into(),
        })
        .await?;
        for (_, definition) in indexes {
            self.run(definition).await?;
        }
        if let Self::Postgres(_) = self {
            // As autovacuum would do eventually. Without statistics, query plans are arbitrary.
            self.run("VACUUM ANALYZE".into()).await?;
        }
        Ok(())
    }

    async fn run(&mut self, statement: String) -> anyhow::Result<()> {
        let query = AssertSqlSafe(statement);
        match self {
            Self::Sqlite(connection) => sqlx::query(query).execute(connection).await.map(drop),
            Self::Postgres(connection) => sqlx::query(query).execute(connection).await.map(drop),
        }?;
        Ok(())
    }

    async fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Sqlite(connection) => connection.close().await?,
            Self::Postgres(connection) => connection.close().await?,
        }
        Ok(())
    }
}
