//! Publishes and stores, in the order that survives a crash.

use std::collections::{BTreeMap, BTreeSet};

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, RunKey, Slot};
use prost::Message as _;
use tracing::Span;

use super::deferred::DeferredObservation;
use super::{BLOCKING_WRITE_TIMEOUT, Collector, CollectorState, capture};
use crate::adapters::capture_state::CaptureState;
use crate::adapters::shards::shard_of;
use crate::config::Config;
use crate::domain::{Fact, FactId, RunState, run_of};
use crate::{Error, metrics};

/// Stored states of runs before a decision.
pub(super) type PreviousRunStates = BTreeMap<RunKey, Option<RunState>>;

/// How far everything is published and read, as stored. It must not be stored before the runs that it is about: a restart would not look for
/// them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoredProgress {
    published: u64,
    backlog_from: Option<i64>,
    removed_until: i64,
}

impl StoredProgress {
    pub(super) const fn of(capture: &CaptureState) -> Self {
        Self {
            published: capture.published,
            backlog_from: capture.backlog_from,
            removed_until: capture.removed_until,
        }
    }

    /// Whether a run that ended then may be removed. Before it is stored that such runs were published, a restart would publish it again.
    pub(super) const fn may_remove(&self, end: i64) -> bool {
        end <= self.removed_until
    }

    /// Records a backlog that has grown: no write may take it for worked off before the runs that were found in it are stored.
    pub(super) fn note_backlog(&mut self, capture: &CaptureState) {
        let backlogs = [self.backlog_from, capture.backlog_from];
        self.backlog_from = backlogs.into_iter().flatten().min();
    }
}

/// What is given back if a decision cannot be stored.
#[derive(Default)]
pub(super) struct PreviousState {
    pub runs: PreviousRunStates,
    /// Deferred observations that the decision has taken.
    pub deferred: Vec<DeferredObservation>,
}

impl From<PreviousRunStates> for PreviousState {
    fn from(runs: PreviousRunStates) -> Self {
        Self {
            runs,
            deferred: Vec::new(),
        }
    }
}

impl Collector {
    /// Publishes events. Events that must be stored first, but cannot be, are rolled back so that nothing else waits for them: a later poll
    /// decides the same again. Returns the jobs of these, by Slurm's job ids.
    pub(super) async fn publish(
        &self,
        state: &mut CollectorState,
        events: Vec<OutboxEvent>,
        before: PreviousState,
    ) -> Result<BTreeSet<u32>, Error> {
        state.must_not_be_ahead()?;
        if events.is_empty() {
            return Ok(BTreeSet::new());
        }
        // If one fact of a run goes through the outbox, all facts of that run do, so that its events stay in order.
        let counted: BTreeSet<RunKey> = events
            .iter()
            .filter(|event| event.stored_first)
            .map(|event| event.run.clone())
            .collect();
        let (counted, plain): (Vec<OutboxEvent>, Vec<OutboxEvent>) = events
            .into_iter()
            .partition(|event| counted.contains(&event.run));
        state.ahead = true;
        for event in &plain {
            event.count();
        }
        let last = self
            .bus
            .publish_all_traced(
                plain.into_iter().map(OutboxEvent::into_parts).collect(),
                &self.shutdown,
            )
            .await?;
        if last > 0 {
            state.published = last;
        }
        if !counted.is_empty() {
            let shards: BTreeSet<u32> = counted
                .iter()
                .filter_map(|event| state.run_store.get(&event.run))
                .map(shard_of)
                .collect();
            let outbox: Vec<(u32, Event)> = counted
                .iter()
                .filter_map(|outgoing| {
                    Some((
                        shard_of(state.run_store.get(&outgoing.run)?),
                        outgoing.event.clone(),
                    ))
                })
                .collect();
            let capture = state.capture_to_store();
            let CollectorState {
                store,
                run_store,
                waiting,
                ..
            } = state;
            let waiting = |shard| waiting.of_shard(shard);
            let mut stored = store
                .write(run_store, waiting, &shards, &outbox, BLOCKING_WRITE_TIMEOUT)
                .await?;
            if stored && counted.iter().any(OutboxEvent::is_capture) {
                stored = store
                    .write_capture_state(&capture, &[], BLOCKING_WRITE_TIMEOUT)
                    .await?;
            }
            // The next write empties their outboxes.
            state.dirty.extend(shards);
            if !stored {
                let runs: BTreeSet<&RunKey> = counted.iter().map(|event| &event.run).collect();
                let states = runs.iter().filter_map(|run| state.run_store.get(run));
                let jobs: BTreeSet<u32> = states.map(|tracked| tracked.raw_id).collect();
                state.roll_back(&runs, &jobs, before, &self.config);
                let now = chrono::Utc::now().timestamp();
                for run in runs {
                    if let Some(tracked) = state.run_store.get(run).cloned() {
                        state.usage_backlog.note(run, &tracked, now, &self.config);
                        state.array_submission_backlog.note(run, &tracked);
                    }
                }
                state.ahead = false;
                return Ok(jobs);
            }
            for event in &counted {
                event.count();
            }
            // Opens the gap before any event of the runs in it.
            let (gaps, facts): (Vec<OutboxEvent>, Vec<OutboxEvent>) =
                counted.into_iter().partition(OutboxEvent::is_capture);
            for events in [gaps, facts] {
                let events = events.into_iter().map(OutboxEvent::into_parts).collect();
                self.bus.publish_all_traced(events, &self.shutdown).await?;
            }
        }
        state.ahead = false;
        Ok(BTreeSet::new())
    }

    /// Whether the state could not be written the last time, nor now.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn is_stuck(&self) -> Result<bool, Error> {
        if self.state.lock().await.store.is_failing() {
            self.flush().await?;
        }
        Ok(self.state.lock().await.store.is_failing())
    }

    /// Checks from time to time that the bucket still has what was written, and restores it if not.
    ///
    /// # Errors
    /// If another ingest has taken over.
    pub async fn check_state(&self) -> Result<(), Error> {
        self.state.lock().await.store.check().await
    }

    /// Stores changed state. State that cannot be stored now is stored by a later flush.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn flush(&self) -> Result<(), Error> {
        self.state.lock().await.flush().await
    }
}

impl CollectorState {
    /// As [`Collector::flush`].
    pub(super) async fn flush(&mut self) -> Result<(), Error> {
        let Self {
            store,
            run_store,
            waiting,
            capture,
            dirty,
            ahead,
            stored,
            stored_at,
            ..
        } = self;
        if *ahead {
            return Ok(());
        }
        if store
            .write(
                run_store,
                |shard| waiting.of_shard(shard),
                dirty,
                &[],
                BLOCKING_WRITE_TIMEOUT,
            )
            .await?
        {
            dirty.clear();
            waiting.unstored.clear();
            *stored_at = tokio::time::Instant::now();
            if store
                .write_capture_state(capture, &[], BLOCKING_WRITE_TIMEOUT)
                .await?
            {
                *stored = StoredProgress::of(capture);
            }
        }
        Ok(())
    }

    /// Returns the cluster's state for a write that does not store every changed run.
    pub(super) fn capture_to_store(&self) -> CaptureState {
        let mut capture = self.capture.clone();
        if !self.dirty.is_empty() {
            let backlogs = [capture.backlog_from, self.stored.backlog_from];
            capture.backlog_from = backlogs.into_iter().flatten().min();
            capture.published = capture.published.min(self.stored.published);
        }
        capture
    }

    /// Restores the previous states of these runs, and what was deferred of their jobs.
    pub(super) fn roll_back(
        &mut self,
        runs: &BTreeSet<&RunKey>,
        jobs: &BTreeSet<u32>,
        before: PreviousState,
        config: &Config,
    ) {
        for (run, tracked) in before.runs {
            if !runs.contains(&run) {
                continue;
            }
            self.run_store.remove(&run);
            if let Some(tracked) = tracked {
                self.run_store.put(run, tracked);
            }
        }
        for deferred in before.deferred {
            if jobs.contains(&deferred.reading.observation.raw_id) {
                let run = run_of(&self.run_store, &deferred.reading.observation);
                let known = self.waiting.deferred.keys_of_job(&run);
                self.defer(&run, deferred, config);
                self.store_deferred(&run, &known);
            }
        }
    }

    /// Fails if something was decided whose publication was abandoned. State stored from here on would claim that it was published; a
    /// restart republishes it instead.
    pub(super) const fn must_not_be_ahead(&self) -> Result<(), Error> {
        if self.ahead {
            return Err(Error::Stopped);
        }
        Ok(())
    }
}

/// Whether a record of Slurm shows the fact as long as it shows the run, so that after a crash it is republished with the same id and
/// count.
///
/// Not so for sampled facts, and for cancelled tasks, whose id contains a time of ingest. Slurm keeps only the last suspend, resume and
/// resize, which may be another one after a crash.
pub(super) const fn is_rediscoverable(id: FactId) -> bool {
    match id {
        FactId::Sampled(_) => false,
        FactId::Correction(..) => true,
        FactId::Recorded(slot) => !matches!(
            slot,
            Slot::TasksCancelled(_) | Slot::Suspended(_) | Slot::Resumed(_) | Slot::Resized(_)
        ),
    }
}

/// An event with its span, before publication.
pub(super) struct OutboxEvent {
    run: RunKey,
    stored_first: bool,
    event: Event,
    span: Span,
}

impl OutboxEvent {
    pub(super) fn new(fact: &Fact, event: Event, raw_id: u32, links: &[Span]) -> Self {
        // The trace of a fact starts here, with links to its causes.
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
            stored_first: !is_rediscoverable(fact.id),
            event,
            span,
        }
    }

    /// Creates a capture event about a run, stored in one write with it.
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

    pub(super) const fn is_stored_first(&self) -> bool {
        self.stored_first
    }

    /// Size of the event in an outbox.
    pub(super) fn outbox_bytes(&self) -> usize {
        // Base64 turns 3 bytes into 4.
        self.event.encoded_len() * 4 / 3
    }

    fn into_parts(self) -> (Event, Span) {
        (self.event, self.span)
    }
}
