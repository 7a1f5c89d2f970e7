//! Publishing and storing, in the order that survives a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, RunKey, Slot};
use prost::Message as _;
use tracing::Span;

use super::{Collector, Core, capture};
use crate::adapters::store::Store;
use crate::domain::{Fact, FactId, RunState};
use crate::{Error, metrics};

/// How long a write is tried that everybody else waits for.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// What was remembered of runs before something was decided about them.
pub(super) type PreviousRunStates = BTreeMap<RunKey, Option<RunState>>;

impl Collector {
    /// Publishes what was decided. What must be stored first and cannot be is taken back, so that nobody else waits for it: a later sweep
    /// decides the same again.
    pub(super) async fn publish(
        &self,
        core: &mut Core,
        told: Vec<OutboxEvent>,
        before: PreviousRunStates,
    ) -> Result<(), Error> {
        core.must_not_be_ahead()?;
        if told.is_empty() {
            return Ok(());
        }
        // Of a run with such a fact everything goes through the outbox, so that its events stay in order.
        let counted: BTreeSet<RunKey> = told
            .iter()
            .filter(|told| told.stored_first)
            .map(|told| told.run.clone())
            .collect();
        let (counted, plain): (Vec<OutboxEvent>, Vec<OutboxEvent>) = told
            .into_iter()
            .partition(|told| counted.contains(&told.run));
        core.ahead = true;
        for told in &plain {
            told.count();
        }
        self.bus
            .publish_all_traced(
                plain.into_iter().map(OutboxEvent::into_parts).collect(),
                &self.shutdown,
            )
            .await?;
        if !counted.is_empty() {
            let shards: BTreeSet<u32> = counted
                .iter()
                .filter_map(|told| core.book.get(&told.run))
                .map(Store::shard_of)
                .collect();
            let outbox: Vec<(u32, Event)> = counted
                .iter()
                .filter_map(|told| {
                    Some((
                        Store::shard_of(core.book.get(&told.run)?),
                        told.event.clone(),
                    ))
                })
                .collect();
            let Core {
                store, book, meta, ..
            } = core;
            let mut stored = store.write(book, &shards, &outbox, PATIENCE).await?;
            if stored && counted.iter().any(OutboxEvent::is_capture) {
                stored = store.write_meta(meta, &[], PATIENCE).await?;
            }
            // Their outboxes are emptied with the next write.
            core.dirty.extend(shards);
            if !stored {
                let runs = counted.iter().map(|told| &told.run);
                core.take_back(&runs.collect(), before);
                core.ahead = false;
                return Ok(());
            }
            for told in &counted {
                told.count();
            }
            // A gap is open before anything is published of the runs in it.
            let (gaps, facts): (Vec<OutboxEvent>, Vec<OutboxEvent>) =
                counted.into_iter().partition(OutboxEvent::is_capture);
            for told in [gaps, facts] {
                let events = told.into_iter().map(OutboxEvent::into_parts).collect();
                self.bus.publish_all_traced(events, &self.shutdown).await?;
            }
        }
        core.ahead = false;
        Ok(())
    }

    /// Whether what is remembered could not be written the last time, nor now.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn is_stuck(&self) -> Result<bool, Error> {
        if self.core.lock().await.store.is_failing() {
            self.flush().await?;
        }
        Ok(self.core.lock().await.store.is_failing())
    }

    /// Looks now and then whether the bucket has what was written, and puts it back.
    ///
    /// # Errors
    /// If another ingest took over.
    pub async fn check_state(&self) -> Result<(), Error> {
        self.core.lock().await.store.check().await
    }

    /// Stores what has changed. What cannot be stored now is stored with a later flush.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn flush(&self) -> Result<(), Error> {
        let mut core = self.core.lock().await;
        let Core {
            store,
            book,
            meta,
            dirty,
            ahead,
            ..
        } = &mut *core;
        if *ahead {
            return Ok(());
        }
        if store.write(book, dirty, &[], PATIENCE).await? {
            dirty.clear();
            store.write_meta(meta, &[], PATIENCE).await?;
        }
        Ok(())
    }
}

impl Core {
    /// Remembers of these runs what was remembered before.
    pub(super) fn take_back(&mut self, runs: &BTreeSet<&RunKey>, before: PreviousRunStates) {
        for (run, tracked) in before {
            if !runs.contains(&run) {
                continue;
            }
            self.book.remove(&run);
            if let Some(tracked) = tracked {
                self.book.put(run, tracked);
            }
        }
    }

    /// Refuses when something was decided and its publishing was given up. What is stored from here on would say that it was told;
    /// after a restart it is told again.
    pub(super) const fn must_not_be_ahead(&self) -> Result<(), Error> {
        if self.ahead {
            return Err(Error::Stopped);
        }
        Ok(())
    }
}

/// Whether a record of Slurm shows the fact as long as it shows the run, so that after a crash it is told again with the same id and
/// count. Not so for what is sampled, for cancelled tasks (the time in the id is ours), and for what Slurm keeps only the last of: after
/// a crash it may be another one.
pub(super) const fn is_found_again(id: FactId) -> bool {
    match id {
        FactId::Sampled(_) => false,
        FactId::Correction(..) => true,
        FactId::Recorded(slot) => !matches!(
            slot,
            Slot::TasksCancelled(_) | Slot::Suspended(_) | Slot::Resumed(_) | Slot::Resized(_)
        ),
    }
}

/// An event with its span, before it is published.
pub(super) struct OutboxEvent {
    run: RunKey,
    stored_first: bool,
    event: Event,
    span: Span,
}

impl OutboxEvent {
    pub(super) fn new(fact: &Fact, event: Event, raw_id: u32, links: &[Span]) -> Self {
        // The trace of a fact begins here; what led to it is linked.
        let span = tracing::info_span!(
            parent: None,
            "ingest.fact",
            event.id = event.id,
            event.r#type = event.r#type,
            cluster = event.cluster,
            job.id = raw_id,
        );
        for link in links {
            span.follows_from(link);
        }
        tracing::debug!(parent: &span, run = fact.run.entity_key(), "fact");
        Self {
            run: fact.run.clone(),
            stored_first: !is_found_again(fact.id),
            event,
            span,
        }
    }

    /// Something about capture that is told of a run, stored in one write with it.
    pub(super) fn capture(run: RunKey, event: Event) -> Self {
        let span = capture::span(&event);
        Self {
            run,
            stored_first: true,
            event,
            span,
        }
    }

    fn count(&self) {
        if let Ok(kind) = self.event.kind() {
            metrics::fact(kind);
        }
    }

    const fn is_capture(&self) -> bool {
        matches!(self.event.payload, Some(Payload::Capture(_)))
    }

    /// Whether it must be stored before it is published.
    pub(super) const fn is_stored_first(&self) -> bool {
        self.stored_first
    }

    /// What it takes in an outbox.
    pub(super) fn outbox_bytes(&self) -> usize {
        // Base64 makes 4 of 3.
        self.event.encoded_len() * 4 / 3
    }

    fn into_parts(self) -> (Event, Span) {
        (self.event, self.span)
    }
}
