//! A ledger that holds a year: how fast it is verified, how long queries take, what an export needs.

use std::time::Instant;

use anyhow::Context as _;
use ledger::{Location, verify_database};

use super::database::{Databases, Kind, location};
use super::fill::{NOTE, fill};
use super::history::History;
use super::{export, queries};
use crate::Arguments;
use crate::process::cpu_time;
use crate::report::{Line, Section, told};

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Section>> {
    let count = arguments.history;
    let mut lines = Vec::new();
    let mut asked = Vec::new();
    let wanted = |kind: &Kind| arguments.database.is_none_or(|only| only == *kind);
    for kind in Kind::BOTH.into_iter().filter(wanted) {
        let name = kind.name();
        let mut databases = Databases::of(kind).await?;
        let url = databases.create();
        let location = location(&url)?;
        lines.extend(fill(name, &location, count).await?.map(told));
        lines.extend(verify(name, &location).await?.map(told));
        asked.push(queries::measure(kind, &location, History::of(count)).await?);
        lines.extend(export::measure(name, &url, count).await?.map(told));
    }
    let mut sections = vec![Section {
        title: "a year in the ledger",
        lines,
        notes: vec![format!(
            "{count} events, {NOTE}; verifying on one core, without PostgreSQL's own; the export is read over the socket of a ledger of its own"
        )],
    }];
    sections.extend(asked);
    Ok(sections)
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
