//! A ledger that holds a year: how fast it is verified, how long queries take, what an export needs.

use std::time::Instant;

use anyhow::Context as _;
use ledger::domain::fact::Fact;
use ledger::{Location, Store, verify_database};
use mesh_events::catalogue::SLURM_EVENTS;
use sqlx::{ConnectOptions as _, Connection as _};

use super::append::message;
use super::database::{Databases, Kind, location, postgres};
use super::history::{self, History};
use super::{BATCH, export, queries};
use crate::Arguments;
use crate::process::cpu_time;
use crate::report::{Line, Section};

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Section>> {
    let count = arguments.history;
    let mut lines = Vec::new();
    let mut asked = Vec::new();
    for kind in Kind::BOTH {
        let name = kind.name();
        let mut databases = Databases::of(kind).await?;
        let url = databases.create();
        let location = location(&url)?;
        lines.push(fill(name, &location, count).await?);
        lines.extend(verify(name, &location).await?);
        asked.push(queries::measure(kind, &location, History::of(count)).await?);
        lines.extend(export::measure(name, &url, count).await?);
    }
    let mut sections = vec![Section {
        title: "a year in the ledger",
        lines,
        notes: vec![format!(
            "{count} events; verifying on one core, without PostgreSQL's own; the export is read over the socket of a ledger of its own"
        )],
    }];
    sections.extend(asked);
    Ok(sections)
}

/// Appends a history as the service does.
async fn fill(name: &str, location: &Location, count: u32) -> anyhow::Result<Line> {
    let store = Store::open(location, 1).await?;
    let start = Instant::now();
    let (mut facts, mut sequence) = (Vec::with_capacity(BATCH), 0);
    for event in history::events(count) {
        let (subject, body) = message(&event)?;
        facts.push(Fact::event(&subject, body)?);
        sequence += 1;
        if facts.len() == BATCH {
            let batch = std::mem::take(&mut facts);
            store.append(SLURM_EVENTS, sequence, batch).await?;
        }
    }
    store.append(SLURM_EVENTS, sequence, facts).await?;
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    store.close().await;
    if let Location::Postgres(_) = location {
        // As autovacuum would by and by: tables without statistics are looked into in any way.
        let mut connection = postgres(location)?.connect().await?;
        sqlx::query("ANALYZE").execute(&mut connection).await?;
        connection.close().await?;
    }
    Ok(Line::value(
        format!("{name}: made and appended"),
        "facts/s",
        rate,
    ))
}

async fn verify(name: &str, location: &Location) -> anyhow::Result<[Line; 2]> {
    let (start, cpu) = (Instant::now(), cpu_time(std::process::id())?);
    let verified = verify_database(location, |_| ())
        .await
        .context("what was appended verifies")?;
    let count = verified.count as f64;
    let took = start.elapsed().as_secs_f64();
    let cpu = cpu_time(std::process::id())?.saturating_sub(cpu);
    Ok([
        Line::value(format!("{name}: verified"), "facts/s", count / took),
        Line::value(
            format!("{name}: verified, by CPU time"),
            "facts/s/core",
            count / cpu.as_secs_f64(),
        ),
    ])
}
