//! A ledger with a year of events: speed of verifying, of queries and of an export.

use super::database::{Databases, Kind, location};
use super::fill::{NOTE, fill};
use super::history::History;
use super::{export, queries, verify};
use crate::Arguments;
use crate::report::{Section, progress};

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Section>> {
    let count = arguments.history;
    let mut lines = Vec::new();
    let mut asked = Vec::new();
    let selected = |kind: &Kind| arguments.database.is_none_or(|only| only == *kind);
    for kind in Kind::BOTH.into_iter().filter(selected) {
        let name = kind.name();
        let mut databases = Databases::of(kind).await?;
        let url = databases.create();
        let location = location(&url)?;
        lines.extend(fill(name, &location, count).await?.map(progress));
        lines.extend(
            verify::measure(name, &location)
                .await?
                .into_iter()
                .map(progress),
        );
        asked.push(queries::measure(kind, &location, History::of(count)).await?);
        lines.extend(export::measure(name, &url, count).await?.map(progress));
    }
    let mut sections = vec![Section {
        title: "a year in the ledger",
        lines,
        notes: vec![format!(
            "{count} events, {NOTE}; leaves, chain and tree of the first 100,000 in memory; verifying a database on all cores, by CPU time without PostgreSQL's own; the export is read over the socket of a ledger of its own"
        )],
    }];
    sections.extend(asked);
    Ok(sections)
}
