//! Time until a single fact is durable, compared with a bare commit of one row of the same size.

use std::time::{Duration, Instant};

use ledger::domain::record::Record;
use ledger::{Location, Store};
use mesh_events::catalogue::SLURM_EVENTS;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, SqliteConnection};

use super::append::message;
use super::database::{Databases, Kind, location, postgres, sqlite};
use super::history;
use crate::Arguments;
use crate::report::{Line, Section};
use crate::stats::Sorted;

/// Facts before the measurement.
const WARM_UP: u32 = 50;

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let count = arguments.commits;
    let mut lines = Vec::new();
    for kind in Kind::BOTH {
        let mut databases = Databases::of(kind).await?;
        let store = Store::open(&location(&databases.create())?, 1).await?;
        let mut bare = BodyTable::open(&location(&databases.create())?).await?;
        let (mut raw, mut ours) = (Vec::new(), Vec::new());
        for (n, event) in history::events(count + WARM_UP).enumerate() {
            let (subject, body) = message(&event)?;
            let raw_took = bare.commit(&body).await?;
            let start = Instant::now();
            let fact = Record::event(&subject, body)?;
            store.append(SLURM_EVENTS, n as u64 + 1, vec![fact]).await?;
            if n >= WARM_UP as usize {
                ours.push(start.elapsed());
                raw.push(raw_took);
            }
        }
        store.close().await;
        let (raw, ours) = (Sorted::milliseconds(raw), Sorted::milliseconds(ours));
        let name = kind.name();
        lines.extend([
            Line::times(format!("{name}: commit of one row"), &raw),
            Line::times(format!("{name}: append of one fact"), &ours)
                .against(raw.median(), "one row"),
        ]);
    }
    Ok(Section {
        title: "one fact, durable",
        lines,
        notes: vec![format!(
            "{count} of each, one after the other; a fact is a row in each of three tables, all indexes, the head and the stream's place"
        )],
    })
}

/// A table of bodies.
enum BodyTable {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl BodyTable {
    async fn open(location: &Location) -> anyhow::Result<Self> {
        Ok(match location {
            Location::Sqlite(_) => {
                let mut connection = sqlite(location)?.connect().await?;
                sqlx::query("CREATE TABLE bodies (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)")
                    .execute(&mut connection)
                    .await?;
                Self::Sqlite(connection)
            }
            Location::Postgres(_) => {
                let mut connection = postgres(location)?.connect().await?;
                sqlx::query("CREATE TABLE bodies (seq BIGSERIAL PRIMARY KEY, body BYTEA NOT NULL)")
                    .execute(&mut connection)
                    .await?;
                Self::Postgres(connection)
            }
        })
    }

    async fn commit(&mut self, body: &[u8]) -> anyhow::Result<Duration> {
        const INSERT: &str = "INSERT INTO bodies (body) VALUES ($1)";
        let start = Instant::now();
        match self {
            Self::Sqlite(connection) => {
                let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
                let insert = sqlx::query(INSERT).bind(body);
                insert.execute(&mut *transaction).await?;
                transaction.commit().await?;
            }
            Self::Postgres(connection) => {
                let mut transaction = connection.begin().await?;
                let insert = sqlx::query(INSERT).bind(body);
                insert.execute(&mut *transaction).await?;
                transaction.commit().await?;
            }
        }
        Ok(start.elapsed())
    }
}
