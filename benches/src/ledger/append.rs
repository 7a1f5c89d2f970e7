//! Speed of durable appends: decode, hash, chain and insert in the ledger's transactions, compared with [`raw`] inserts.

use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use ledger::handlers::{Appender, Received, Source};
use ledger::{Location, Store};
use mesh_bus::{BatchHandler as _, Disposition};
use mesh_events::{Event, subject};
use mesh_runtime::Health;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::database::{Databases, Kind, location};
use super::size::Size;
use super::{history, raw};
use crate::Arguments;
use crate::process::Stopwatch;
use crate::report::{Line, Section};
use crate::stats::Sorted;

/// Events per transaction, including the ledger's default and its limit.
const BATCHES: [usize; 3] = [100, 500, 2_000];

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let count = arguments.events;
    let messages: Vec<_> = history::events(count)
        .map(|event| message(&event))
        .collect::<anyhow::Result<_>>()?;
    let mut lines = Vec::new();
    let is_selected = |kind: &Kind| arguments.database.is_none_or(|only| only == *kind);
    for kind in Kind::BOTH.into_iter().filter(is_selected) {
        let mut databases = Databases::of(kind).await?;
        let name = kind.name();
        let mut size = None;
        for batch in BATCHES {
            let (mut ours, mut bare) = (Vec::new(), Vec::new());
            let (mut our_cpu, mut bare_cpu) = (Duration::ZERO, Duration::ZERO);
            // One extra round: the first is a warm-up.
            for round in 0..=arguments.rounds {
                let filled = location(&databases.create())?;
                let (took, cpu) = append(&filled, &messages, batch).await?;
                let empty = location(&databases.create())?;
                let (raw, raw_cpu) = raw::insert(&filled, &empty, batch).await?;
                if round > 0 {
                    ours.push(f64::from(count) / took.as_secs_f64());
                    bare.push(f64::from(count) / raw.as_secs_f64());
                    our_cpu += cpu;
                    bare_cpu += raw_cpu;
                }
                if size.is_none() {
                    size = Some(Size::of(&filled).await?);
                }
            }
            let ratio = Sorted::new(ours.iter().zip(&bare).map(|(ours, raw)| ours / raw)).median();
            let (ours, bare) = (Sorted::new(ours).median(), Sorted::new(bare).median());
            let of_core =
                |cpu: Duration| f64::from(count) * f64::from(arguments.rounds) / cpu.as_secs_f64();
            lines.extend([
                Line::value(
                    format!("{name}, {batch} a transaction: raw insert of the same rows"),
                    "events/s",
                    bare,
                ),
                Line::value(
                    format!("{name}, {batch} a transaction: decode, chain and append"),
                    "events/s",
                    ours,
                )
                .against(ours / ratio, "raw insert, median of the rounds")
                .budget("≥ 0.8", ratio >= 0.8),
                Line::value(
                    format!("{name}, {batch} a transaction: the same, by CPU time"),
                    "events/s/core",
                    of_core(our_cpu),
                )
                .against(of_core(bare_cpu), "raw insert"),
            ]);
        }
        let size = size.unwrap_or_default();
        let each = |total: i64| total as f64 / f64::from(count);
        lines.extend([
            Line::value(format!("{name}: on disk"), "bytes/event", each(size.bytes)),
            Line::value(
                format!("{name}: index entries"),
                "entries/event",
                each(size.index_entries),
            ),
        ]);
    }
    Ok(Section {
        title: "events into the ledger",
        lines,
        notes: vec![format!(
            "{} rounds of {count} events, taken in turn; SQLite: WAL, synchronous = FULL; PostgreSQL: its defaults, synchronous_commit = on, over \
             its socket; CPU time without PostgreSQL's own",
            arguments.rounds
        )],
    })
}

/// From received bytes to durable entries, by the service's own handler.
async fn append(
    location: &Location,
    messages: &[(String, Bytes)],
    batch: usize,
) -> anyhow::Result<(Duration, Duration)> {
    let store = Store::open(location, 1).await?;
    let database = Health::default().condition("ledger.database");
    let appender = Appender::new(
        Source::Events,
        store.clone(),
        database,
        CancellationToken::new(),
    );
    let watch = Stopwatch::start()?;
    let received = (1..)
        .zip(messages)
        .map(|(sequence, (subject, body))| Received {
            subject,
            body: body.clone(),
            sequence,
            stored_at: 0,
        });
    let received: Vec<_> = received.collect();
    let outcomes: Vec<_> = stream::iter(received.chunks(batch))
        .map(|batch| appender.append_messages(batch))
        .buffered(Appender::CONCURRENT_BATCHES)
        .concat()
        .await;
    let took = watch.stop();
    store.close().await;
    ensure!(
        outcomes.iter().all(|one| *one == Disposition::Ack),
        "an event was not appended"
    );
    took
}

/// An event as it arrives from the bus.
pub fn message(event: &Event) -> anyhow::Result<(String, Bytes)> {
    Ok((subject::of(event)?, Bytes::from(event.encode_to_vec())))
}
