//! A ledger with a year of events: speed of verifying, of queries and of an export.

use super::database::{Databases, Kind, location};
use super::fill::{NOTE, fill};
use super::history::History;
use super::{export, queries, verify};
use crate::Arguments;
use crate::report::{Section, progress};

/// Verifies a ledger; if `whole`, also queries and exports it.
pub async fn measure(arguments: &Arguments, whole: bool) -> anyhow::Result<Vec<Section>> {
    let count = arguments.history;
    let mut lines = Vec::new();
    let mut asked = Vec::new();
    let selected = |kind: &Kind| arguments.database.is_none_or(|only| only == *kind);
    for kind in Kind::BOTH.into_iter().filter(selected) {
        let name = kind.name();
        let mut databases = Databases::of(kind).await?;
        let url = match &arguments.ledger {
            Some(url) => url.clone(),
            None => databases.create(),
        };
        let location = location(&url)?;
        lines.extend(
            fill(name, &location, count)
                .await?
                .into_iter()
                .map(progress),
        );
        lines.extend(
            verify::measure(kind, &url, arguments.rounds)
                .await?
                .into_iter()
                .map(progress),
        );
        if !whole {
            continue;
        }
        asked.push(queries::measure(kind, &location, History::of(count)).await?);
        lines.extend(export::measure(name, &url, count).await?.map(progress));
    }
    let mut sections = vec![Section {
        title: "a year in the ledger",
        lines,
        notes: vec![format!(
            "{count} events, {NOTE}; leaves, chain and tree of the first 100,000 in memory; verifying in a process of its own, by CPU time without PostgreSQL's own, which on one core has the other core for itself; the export is read over the socket of a ledger of its own"
        )],
    }];
    sections.extend(asked);
    Ok(sections)
}
