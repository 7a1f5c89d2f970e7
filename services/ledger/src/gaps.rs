//! Detects gaps in the received streams.
//!
//! Received sequences are compared with the streams, not with the state of a consumer, which others
//! can change. A message may be in the stream, but is not delivered: it was acknowledged before a
//! restore, or the consumer was changed. Such a message is read from the stream.
//!
//! A lost message is a gap: it expired, was purged or deleted, or the stream was recreated. The gap
//! is stored and published as `capture.gap_opened`. Ingest republishes what Slurm has recorded and
//! publishes `capture.gap_closed`. Both ids are derived from the gap, so publishing is retried
//! until the ledger has them.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::Utc;
use mesh_bus::{Bus, StreamState};
use mesh_runtime::HealthNote;

use crate::adapters::{BatchSequences, Store, StreamPosition};
use crate::domain::gap::Gap;
use crate::domain::sequence_set::SequenceSet;
use crate::handlers::Source;
use crate::metrics;
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Messages recovered from the stream in one transaction.
const PAGE: usize = 200;

/// Longer than a consumer's ack wait: a message undelivered for this time is not in flight.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// The first undelivered message.
#[derive(Clone, Copy, Debug)]
struct Stalled {
    sequence: u64,
    since: tokio::time::Instant,
    /// Messages up to this sequence are recovered without waiting for each.
    up_to: u64,
}

/// Detects, records and publishes gaps.
pub(crate) struct GapMonitor {
    pub store: Store,
    pub bus: Bus,
    pub cluster: String,
    /// Reports open gaps; the ledger stays ready.
    pub note: HealthNote,
}

impl GapMonitor {
    /// Stores the starting positions before anything is consumed.
    pub async fn begin(&self) {
        for source in [Source::Events, Source::Audit] {
            if let Err(error) = self.position(source).await {
                tracing::warn!(error, "gap check failed, retrying");
            }
        }
    }

    /// Checks periodically. Never returns.
    pub async fn run(&self) {
        let mut published = 0;
        let mut stalled = [None; 2];
        loop {
            let mut result = Ok(());
            let sources = [Source::Events, Source::Audit];
            for (source, stalled) in sources.into_iter().zip(&mut stalled) {
                result = result.and(self.check(source, stalled).await);
            }
            // Other conditions report that NATS or the database is unavailable.
            if let Err(error) = result.and(self.publish_gaps(&mut published).await) {
                tracing::debug!(error, "gap check failed, retrying");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn position(&self, source: Source) -> Result<(StreamState, StreamPosition), String> {
        let stream = source.stream();
        let state = self.bus.stream_state(stream).await;
        let state = state.map_err(text)?;
        let created_at = state.created.timestamp_micros();
        let known = self.store.position(stream).await.map_err(text)?;
        let mut position = known.clone().unwrap_or_default();
        if position.created_at == Some(created_at) {
            return Ok((state, position));
        }
        let mut gaps = Vec::new();
        match known {
            // The stream was recreated: its unreceived messages are lost, however many.
            Some(StreamPosition {
                created_at: Some(before),
                received,
                last_at,
            }) => {
                gaps.push(Gap {
                    number: 0,
                    stream: stream.to_owned(),
                    created_at: before,
                    first_sequence: (received.up_to + 1).cast_signed(),
                    last_sequence: received.up_to.cast_signed(),
                    from_at: last_at.unwrap_or(before),
                    to_at: created_at,
                    found_at: Utc::now().timestamp_micros(),
                });
                position = StreamPosition::default();
                position.received.up_to = state.first_sequence.saturating_sub(1);
            }
            // A position stored by an earlier version.
            Some(_) => {}
            None => position.received.up_to = state.first_sequence.saturating_sub(1),
        }
        position.created_at = Some(created_at);
        self.store
            .record_gaps(stream, Some(&position), &gaps)
            .await
            .map_err(text)?;
        for gap in &gaps {
            found(gap);
        }
        Ok((state, position))
    }

    /// Compares a stream with its received sequences.
    async fn check(&self, source: Source, stalled: &mut Option<Stalled>) -> Result<(), String> {
        let stream = source.stream();
        loop {
            let (state, position) = self.position(source).await?;
            let next = position.received.up_to + 1;
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
                self.note(stream, &position, position.received.missing(end), to_at)
                    .await?;
            } else if let Some(up_to) = stalled_up_to(stalled, next, state.last_sequence) {
                self.append_batch(source, &position.received, up_to).await?;
            } else {
                // In flight.
                return Ok(());
            }
        }
    }

    async fn note(
        &self,
        stream: &str,
        position: &StreamPosition,
        missing: Vec<(u64, u64)>,
        to_at: i64,
    ) -> Result<(), String> {
        let created_at = position.created_at.unwrap_or_default();
        let gaps: Vec<Gap> = missing
            .into_iter()
            .map(|(first, last)| Gap {
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
            .record_gaps(stream, None, &gaps)
            .await
            .map_err(text)?;
        for gap in &gaps {
            found(gap);
        }
        Ok(())
    }

    /// Appends messages that are not delivered.
    async fn append_batch(
        &self,
        source: Source,
        received: &SequenceSet,
        up_to: u64,
    ) -> Result<(), String> {
        let stream = source.stream();
        let (mut sequences, mut records) = (Vec::new(), Vec::new());
        let mut next = received.up_to + 1;
        while sequences.len() < PAGE && next <= up_to {
            let message = self.bus.stored_from(stream, next).await.map_err(text)?;
            // A gap in between is handled by the next check.
            let Some(message) = message.filter(|message| message.sequence == next) else {
                break;
            };
            // Undecodable messages became dead letters on delivery.
            records.extend(source.decode(&message.subject, message.body).ok());
            sequences.push((next, message.stored.timestamp_micros()));
            next += 1;
        }
        let appended = self
            .store
            .append_batch(stream, &BatchSequences::Messages(sequences), &records)
            .await;
        let appended = appended.map_err(text)?;
        metrics::recovered(stream, appended.entries.len());
        if !appended.entries.is_empty() {
            tracing::warn!(
                stream,
                entries = appended.entries.len(),
                "undelivered messages recovered from the stream"
            );
        }
        Ok(())
    }

    /// Publishes gap events that the ledger lacks. `published` is the last gap whose events it has.
    async fn publish_gaps(&self, published: &mut i64) -> Result<(), String> {
        let gaps = self.store.gaps(*published).await.map_err(text)?;
        if gaps.is_empty() {
            self.report(&[]);
            return Ok(());
        }
        let mut clusters = self.store.recent_clusters().await.map_err(text)?;
        clusters.insert(self.cluster.clone());
        let mut open = Vec::new();
        for gap in gaps {
            let mut waits_for = BTreeSet::new();
            for cluster in &clusters {
                let [opened_id, closed_id] = gap.event_ids(cluster);
                let has = async |id: &str| self.store.seq_of(id).await.map(|seq| seq.is_some());
                if !has(&opened_id).await.map_err(text)? {
                    let sent = self.bus.publish(&gap.opened(cluster)).await;
                    sent.map_err(text)?;
                }
                if !has(&closed_id).await.map_err(text)? {
                    waits_for.insert(cluster.clone());
                    if !gap.is_recoverable() {
                        let sent = self.bus.publish(&gap.given_up(cluster)).await;
                        sent.map_err(text)?;
                    }
                }
            }
            if !waits_for.is_empty() {
                open.push((gap, waits_for));
            } else if open.is_empty() {
                *published = gap.number;
            }
        }
        self.report(&open);
        Ok(())
    }

    /// Reports open gaps in readiness and metrics.
    fn report(&self, open: &[(Gap, BTreeSet<String>)]) {
        let messages = open.iter().filter_map(|(gap, _)| gap.messages()).sum();
        let since = open.iter().map(|(gap, _)| gap.found_at).min();
        metrics::set_open_gaps(open.len(), messages, since);
        match open {
            [] => self.note.clear(),
            [(gap, clusters)] => self.note.say(gap.still_open(clusters)),
            [(gap, clusters), others @ ..] => self.note.say(format!(
                "{}; and {} more",
                gap.still_open(clusters),
                others.len()
            )),
        }
    }
}

/// Returns the last sequence to recover from the stream, once its first message has stalled.
fn stalled_up_to(stalled: &mut Option<Stalled>, next: u64, last: u64) -> Option<u64> {
    let now = tokio::time::Instant::now();
    match stalled {
        Some(one) if one.up_to >= next => Some(one.up_to),
        Some(one) if one.sequence == next => {
            let stalls = now.duration_since(one.since) >= STALL_TIMEOUT;
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

fn found(gap: &Gap) {
    metrics::gap(&gap.stream);
    tracing::error!(
        stream = gap.stream,
        first_sequence = gap.first_sequence,
        last_sequence = gap.last_sequence,
        "gap found: messages lost from the stream before the ledger received them"
    );
}

fn text<E: std::error::Error + 'static>(error: E) -> String {
    mesh_runtime::error_chain(&error)
}
