//! Nothing of a stream is missing without being noticed.
//!
//! Now and then what was taken in is compared with what the streams have, and with nothing that others can move, as the state of a consumer. A
//! message that is still there and does not come (it was answered before the ledger was set back, or somebody changed the consumer) is taken in
//! from the stream. One that is gone and was never taken in (expired, purged, deleted, or the
//! stream was made anew) is a hole: noted, told as `capture.gap_opened`, and ended by ingest, which tells again what Slurm has recorded,
//! with `capture.gap_closed`. Both have ids that follow from the hole, so they are told until the ledger has them.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::Utc;
use mesh_bus::{Bus, StreamState};
use mesh_runtime::Note;

use crate::adapters::{Batch, Position, Store};
use crate::domain::hole::Hole;
use crate::domain::taken::Taken;
use crate::handlers::Source;
use crate::metrics;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(10);
/// Messages that are taken in from the stream itself in one transaction.
const PAGE: usize = 200;

/// A message that is first in line for so long is not on its way: longer than a consumer waits for an answer before it delivers again.
const STALL: Duration = Duration::from_secs(20);

/// How long the first message that is not taken in has been that.
#[derive(Clone, Copy, Debug)]
struct Stalled {
    sequence: u64,
    since: tokio::time::Instant,
    /// Once it does not come, what was there by then is taken in without waiting for each.
    up_to: u64,
}

/// Looks after the holes of a ledger.
pub(crate) struct Holes {
    pub store: Store,
    pub bus: Bus,
    pub cluster: String,
    /// Says what is open. The ledger answers and takes in what comes nevertheless.
    pub note: Note,
}

impl Holes {
    /// Before anything is consumed: where it begins, so that what was missed before is seen.
    pub async fn begin(&self) {
        for source in [Source::Events, Source::Audit] {
            if let Err(error) = self.position(source).await {
                tracing::warn!(error, "look for holes, trying again");
            }
        }
    }

    /// Looks and tells. Never ends.
    pub async fn keep(&self) {
        let mut told = 0;
        let mut stalled = [None; 2];
        loop {
            let mut result = Ok(());
            let sources = [Source::Events, Source::Audit];
            for (source, stalled) in sources.into_iter().zip(&mut stalled) {
                result = result.and(self.look(source, stalled).await);
            }
            // That NATS or the database is away is said elsewhere.
            if let Err(error) = result.and(self.tell(&mut told).await) {
                tracing::debug!(error, "look for holes, trying again");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn position(&self, source: Source) -> Result<(StreamState, Position), String> {
        let stream = source.stream();
        let state = self.bus.stream_state(stream).await;
        let state = state.map_err(text)?;
        let created_at = state.created.timestamp_micros();
        let known = self.store.position(stream).await.map_err(text)?;
        let mut position = known.clone().unwrap_or_default();
        if position.created_at == Some(created_at) {
            return Ok((state, position));
        }
        let mut holes = Vec::new();
        match known {
            // Made anew: what the former one had and was not taken in is gone, however much it was.
            Some(Position {
                created_at: Some(before),
                taken,
                last_at,
            }) => {
                holes.push(Hole {
                    number: 0,
                    stream: stream.to_owned(),
                    created_at: before,
                    first_sequence: (taken.up_to + 1).cast_signed(),
                    last_sequence: taken.up_to.cast_signed(),
                    from_at: last_at.unwrap_or(before),
                    to_at: created_at,
                    found_at: Utc::now().timestamp_micros(),
                });
                position = Position::default();
                position.taken.up_to = state.first_sequence.saturating_sub(1);
            }
            // A ledger from before this was looked after.
            Some(_) => {}
            None => position.taken.up_to = state.first_sequence.saturating_sub(1),
        }
        position.created_at = Some(created_at);
        self.store
            .note_holes(stream, Some(&position), &holes)
            .await
            .map_err(text)?;
        for hole in &holes {
            found(hole);
        }
        Ok((state, position))
    }

    /// Compares a stream with what was taken in of it.
    async fn look(&self, source: Source, stalled: &mut Option<Stalled>) -> Result<(), String> {
        let stream = source.stream();
        loop {
            let (state, position) = self.position(source).await?;
            let next = position.taken.up_to + 1;
            if next > state.last_sequence {
                return Ok(());
            }
            let there = self.bus.stored_from(stream, next).await.map_err(text)?;
            let (end, to_at) = match &there {
                Some(message) => (message.sequence - 1, message.stored),
                None => (state.last_sequence, Utc::now()),
            };
            if end >= next {
                let to_at = to_at.timestamp_micros();
                self.note(stream, &position, position.taken.missing(end), to_at)
                    .await?;
            } else if let Some(up_to) = does_not_come(stalled, next, state.last_sequence) {
                self.take_in(source, &position.taken, up_to).await?;
            } else {
                // It will be delivered.
                return Ok(());
            }
        }
    }

    async fn note(
        &self,
        stream: &str,
        position: &Position,
        missing: Vec<(u64, u64)>,
        to_at: i64,
    ) -> Result<(), String> {
        let created_at = position.created_at.unwrap_or_default();
        let holes: Vec<Hole> = missing
            .into_iter()
            .map(|(first, last)| Hole {
                number: 0,
                stream: stream.to_owned(),
                created_at,
                first_sequence: first.cast_signed(),
                last_sequence: last.cast_signed(),
                from_at: position.last_at.unwrap_or(created_at),
                to_at,
                found_at: Utc::now().timestamp_micros(),
            })
            .collect();
        self.store
            .note_holes(stream, None, &holes)
            .await
            .map_err(text)?;
        for hole in &holes {
            found(hole);
        }
        Ok(())
    }

    /// Takes in messages that are not delivered.
    async fn take_in(&self, source: Source, taken: &Taken, up_to: u64) -> Result<(), String> {
        let stream = source.stream();
        let (mut sequences, mut facts) = (Vec::new(), Vec::new());
        let mut next = taken.up_to + 1;
        while sequences.len() < PAGE && next <= up_to {
            let message = self.bus.stored_from(stream, next).await.map_err(text)?;
            // What lies between is for the next look.
            let Some(message) = message.filter(|message| message.sequence == next) else {
                break;
            };
            // What is no fact was parked when it was delivered.
            facts.extend(source.decode(&message.subject, message.body).ok());
            sequences.push((next, message.stored.timestamp_micros()));
            next += 1;
        }
        let appended = self
            .store
            .take_in(stream, &Batch::Of(sequences), facts)
            .await;
        let appended = appended.map_err(text)?;
        metrics::restored(stream, appended.entries.len());
        if !appended.entries.is_empty() {
            tracing::warn!(
                stream,
                entries = appended.entries.len(),
                "messages that are in the stream and were not delivered are taken in"
            );
        }
        Ok(())
    }

    /// Publishes what the ledger does not have yet of what there is to tell. `told`: the hole up to which it has everything.
    async fn tell(&self, told: &mut i64) -> Result<(), String> {
        let holes = self.store.holes(*told).await.map_err(text)?;
        if holes.is_empty() {
            self.say(&[]);
            return Ok(());
        }
        let mut clusters = self.store.recent_clusters().await.map_err(text)?;
        clusters.insert(self.cluster.clone());
        let mut open = Vec::new();
        for hole in holes {
            let mut waits_for = BTreeSet::new();
            for cluster in &clusters {
                let [opened_id, closed_id] = hole.event_ids(cluster);
                let has = async |id: &str| self.store.seq_of(id).await.map(|seq| seq.is_some());
                if !has(&opened_id).await.map_err(text)? {
                    let sent = self.bus.publish(&hole.opened(cluster)).await;
                    sent.map_err(text)?;
                }
                if !has(&closed_id).await.map_err(text)? {
                    waits_for.insert(cluster.clone());
                    if !hole.can_be_filled() {
                        let sent = self.bus.publish(&hole.given_up(cluster)).await;
                        sent.map_err(text)?;
                    }
                }
            }
            if !waits_for.is_empty() {
                open.push((hole, waits_for));
            } else if open.is_empty() {
                *told = hole.number;
            }
        }
        self.say(&open);
        Ok(())
    }

    /// Says what is open in readiness and metrics.
    fn say(&self, open: &[(Hole, BTreeSet<String>)]) {
        let messages = open.iter().filter_map(|(hole, _)| hole.messages()).sum();
        let since = open.iter().map(|(hole, _)| hole.found_at).min();
        metrics::open_holes(open.len(), messages, since);
        match open {
            [] => self.note.clear(),
            [(hole, clusters)] => self.note.say(hole.still_open(clusters)),
            [(hole, clusters), others @ ..] => self.note.say(format!(
                "{}; and {} more",
                hole.still_open(clusters),
                others.len()
            )),
        }
    }
}

/// Up to which sequence messages are taken from the stream itself: those that were there when the first of them had not come for long.
fn does_not_come(stalled: &mut Option<Stalled>, next: u64, last: u64) -> Option<u64> {
    let now = tokio::time::Instant::now();
    match stalled {
        Some(one) if one.up_to >= next => Some(one.up_to),
        Some(one) if one.sequence == next => {
            let stalls = now.duration_since(one.since) >= STALL;
            stalls.then(|| {
                one.up_to = last;
                last
            })
        }
        _ => {
            *stalled = Some(Stalled {
                sequence: next,
                since: now,
                up_to: 0,
            });
            None
        }
    }
}

fn found(hole: &Hole) {
    metrics::hole(&hole.stream);
    tracing::error!(
        stream = hole.stream,
        first_sequence = hole.first_sequence,
        last_sequence = hole.last_sequence,
        "messages were gone from the stream before the ledger had them"
    );
}

fn text<E: std::error::Error + 'static>(error: E) -> String {
    mesh_runtime::chain(&error)
}
