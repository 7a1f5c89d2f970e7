//! How fast the ledger makes facts durable: decode, hash, chain and insert in its transactions, beside [`raw`] inserts.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ledger::domain::record::Record;
use ledger::{Location, Store};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::{Event, subject};
use prost::Message as _;

use super::database::{Databases, Kind, location};
use super::{BATCH, history, raw};
use crate::Arguments;
use crate::report::{Line, Section};
use crate::stats::Sorted;

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let count = arguments.events;
    let mut lines = Vec::new();
    for kind in Kind::BOTH {
        let mut databases = Databases::of(kind).await?;
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        // One round more than asked for: the first only warms up.
        for round in 0..=arguments.rounds {
            let filled = location(&databases.create())?;
            let took = append(&filled, count).await?;
            let raw = raw::insert(&filled, &location(&databases.create())?).await?;
            if round > 0 {
                ours.push(f64::from(count) / took.as_secs_f64());
                bare.push(f64::from(count) / raw.as_secs_f64());
            }
        }
        let ratio = Sorted::new(ours.iter().zip(&bare).map(|(ours, raw)| ours / raw)).median();
        let (ours, bare) = (Sorted::new(ours).median(), Sorted::new(bare).median());
        let name = kind.name();
        lines.extend([
            Line::value(
                format!("{name}: raw insert of the same rows"),
                "facts/s",
                bare,
            ),
            Line::value(format!("{name}: decode, chain and append"), "facts/s", ours)
                .against(bare, "raw insert")
                .budget("≥ 0.8", ratio >= 0.8),
        ]);
    }
    Ok(Section {
        title: "facts into the ledger",
        lines,
        notes: vec![format!(
            "{} rounds of {count} facts, taken in turn; {BATCH} a transaction; SQLite: WAL, synchronous = FULL; PostgreSQL: its defaults, \
             synchronous_commit = on, over its socket",
            arguments.rounds
        )],
    })
}

/// From received bytes to durable entries, as the service does it.
async fn append(location: &Location, count: u32) -> anyhow::Result<Duration> {
    let messages: Vec<_> = history::events(count)
        .map(|event| message(&event))
        .collect::<anyhow::Result<_>>()?;
    let store = Store::open(location, 1).await?;
    let start = Instant::now();
    let mut sequence = 0;
    for batch in messages.chunks(BATCH) {
        sequence += batch.len() as u64;
        let facts = batch
            .iter()
            .map(|(subject, body)| Record::event(subject, body.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        store.append(SLURM_EVENTS, sequence, facts).await?;
    }
    let took = start.elapsed();
    store.close().await;
    Ok(took)
}

/// As it comes from the bus.
pub fn message(event: &Event) -> anyhow::Result<(String, Bytes)> {
    Ok((subject::of(event)?, Bytes::from(event.encode_to_vec())))
}
