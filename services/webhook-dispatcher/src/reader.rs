//! Reads the public bus once for all endpoints of this dispatcher.
//!
//! An endpoint that keeps up is *attached*: events that its filter selects are put into its bounded queue as they are
//! read. One that falls behind is detached. It works off its queue, and goes on with the recent events in memory, or,
//! if they begin later, with its own reads of the stream ([`catch_up`](crate::delivery::catch_up)). Once it is where the reader is, it is attached
//! again. No event is skipped in between: both positions are sequences of the stream.
//!
//! Positions of endpoints are stored as [cursors](crate::stream::cursor), with the outcomes of events or, for events
//! that have none, every few seconds.

pub mod recovery;
mod start;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use mesh_bus::{Backoff, Bus, StreamState};
use mesh_events::catalogue::SLURM_EVENTS;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use recovery::Recovery;

use crate::error::Error;
use crate::repeat::while_connected;
use crate::store::Store;
use crate::stream::cursor::Cursor;
use crate::stream::subscription::Index;

use crate::stream::event::StreamEvent;
use crate::stream::event_cache::EventCache;
use crate::stream::queue::EventQueue;

/// Recent events that endpoints which fall behind find in memory.
const MAX_RECENT_EVENTS: usize = 8_192;
/// Bytes of recent events.
const MAX_RECENT_BYTES: usize = 16 << 20;
/// Endpoints that read the stream at the same time.
const MAX_CATCH_UP_READS: usize = 16;
/// Interval of storing the positions of endpoints that had nothing to store with an outcome.
const STORE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between reads of the stream's end. One read serves all endpoints.
const END_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long the cursors that were read at the start are used for endpoints that begin.
const CURSORS_TTL: Duration = Duration::from_secs(10);

/// The reader of the public bus. Shared by all endpoints.
pub struct EventReader {
    inner: Mutex<Inner>,
    /// Number of the start: 0 before the first one. Reading starts again when the stream was recreated or truncated.
    generation: watch::Sender<u64>,
    next_key: AtomicU64,
    /// Permits of endpoints that read the stream.
    pub(crate) catch_ups: Semaphore,
    /// When the end of the stream was last compared with the position, and the result.
    end: tokio::sync::Mutex<Option<(Instant, bool)>>,
    /// Cursors that were read at the start.
    cursors: Mutex<Option<(Instant, HashMap<String, Cursor>)>>,
    recovery: Option<Recovery>,
}

#[derive(Default)]
struct Inner {
    /// Every event up to this sequence is with the endpoints.
    position: u64,
    /// When the stream was created.
    created: DateTime<Utc>,
    generation: u64,
    /// The events after `recent_from`.
    recent: VecDeque<Arc<StreamEvent>>,
    recent_from: u64,
    recent_bytes: usize,
    index: Index<EventQueue>,
}

/// Result of [`EventReader::join`].
pub enum Join {
    /// The endpoint is attached, or has events in its queue.
    Supplied,
    /// It has to catch up to this sequence first.
    Behind(u64),
    /// Its position is of an earlier start of the reader, or the reader has not started.
    Stale(u64),
}

impl EventReader {
    /// `recovery` is that of the database, if it is a file.
    pub fn new(recovery: Option<Recovery>) -> Self {
        Self {
            recovery,
            inner: Mutex::default(),
            generation: watch::Sender::default(),
            next_key: AtomicU64::new(0),
            catch_ups: Semaphore::new(MAX_CATCH_UP_READS),
            end: tokio::sync::Mutex::default(),
            cursors: Mutex::default(),
        }
    }

    /// A key for the queue of an endpoint.
    pub fn key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a start after this one. Returns its number, and when the stream was created.
    pub async fn started_after(&self, generation: u64) -> (u64, DateTime<Utc>) {
        let mut started = self.generation.subscribe();
        // The sender lives as long as this reader.
        drop(started.wait_for(|started| *started > generation).await);
        let inner = self.lock();
        (inner.generation, inner.created)
    }

    /// The cursor of an endpoint, if it was read recently with those of all endpoints.
    pub fn cursor(&self, endpoint: &str) -> Option<Cursor> {
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        if cursors
            .as_ref()
            .is_some_and(|(read, _)| read.elapsed() > CURSORS_TTL)
        {
            *cursors = None;
        }
        cursors.as_mut()?.1.remove(endpoint)
    }

    /// Attaches an endpoint, or supplies it with recent events, if they begin where it is.
    pub fn join(&self, queue: &Arc<EventQueue>) -> Join {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let mut state = queue.lock();
        if state.generation != inner.generation || inner.generation == 0 {
            return Join::Stale(state.generation);
        }
        let read_to = state.read_to();
        if read_to < inner.recent_from {
            return Join::Behind(inner.position);
        }
        let begin = inner
            .recent
            .partition_point(|event| event.sequence <= read_to);
        for event in inner.recent.range(begin..) {
            if queue.takes(event) && !state.push(event, queue.capacity) {
                return Join::Supplied;
            }
        }
        state.attached = true;
        drop(state);
        inner.index.insert(queue.key, &queue.subscription, queue);
        Join::Supplied
    }

    /// Attaches an endpoint that begins. False if it has something to handle or to catch up.
    pub fn attach(&self, queue: &Arc<EventQueue>) -> bool {
        matches!(self.join(queue), Join::Supplied) && queue.is_waiting()
    }

    /// Detaches an endpoint that stops.
    pub fn leave(&self, queue: &EventQueue) {
        let mut inner = self.lock();
        inner.index.remove(queue.key, &queue.subscription);
        let mut state = queue.lock();
        if std::mem::take(&mut state.attached) {
            state.advance(inner.position);
        }
    }

    /// Puts events into the queues of the endpoints that take them.
    fn distribute(&self, events: Vec<Arc<StreamEvent>>, last: u64) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        for event in events {
            let mut full = Vec::new();
            for queue in inner.index.candidates(event.kind, &event.event) {
                if queue.takes(&event) && !queue.offer(&event) {
                    full.push(Arc::clone(queue));
                }
            }
            for queue in full {
                inner.index.remove(queue.key, &queue.subscription);
            }
            inner.position = event.sequence;
            inner.recent_bytes += event.body.len();
            inner.recent.push_back(event);
            while inner.recent.len() > MAX_RECENT_EVENTS || inner.recent_bytes > MAX_RECENT_BYTES {
                let Some(oldest) = inner.recent.pop_front() else {
                    break;
                };
                inner.recent_bytes -= oldest.body.len();
                inner.recent_from = oldest.sequence;
            }
        }
        inner.position = inner.position.max(last);
    }

    fn is_at_start(&self, state: &StreamState) -> bool {
        let inner = self.lock();
        inner.generation == 0
            || inner.created != state.created
            || inner.position > state.last_sequence
    }

    /// Begins at this position. Endpoints that were attached read their cursors again.
    fn start(&self, position: u64, created: DateTime<Utc>, cursors: HashMap<String, Cursor>) {
        let mut known = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((Instant::now(), cursors));
        drop(known);
        let mut inner = self.lock();
        for queue in inner.index.all() {
            queue.detach();
        }
        let generation = inner.generation + 1;
        *inner = Inner {
            position,
            created,
            generation,
            recent_from: position,
            ..Inner::default()
        };
        drop(inner);
        self.generation.send_replace(generation);
    }

    /// True if the reader has every event that is on the bus now.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn is_at_end(&self, bus: &Bus) -> Result<bool, Error> {
        let mut end = self.end.lock().await;
        if let Some((_, result)) = end.filter(|(at, _)| at.elapsed() < END_POLL_INTERVAL) {
            return Ok(result);
        }
        let state = bus.stream_state(SLURM_EVENTS).await?;
        let result = self.lock().position >= state.last_sequence;
        *end = Some((Instant::now(), result));
        Ok(result)
    }

    /// Stores the position for attached endpoints that have nothing under way. Returns false if others have.
    async fn store_positions(&self, store: &Store) -> Result<bool, Error> {
        let (position, created, queues, all) = {
            let inner = self.lock();
            let mut queues = BTreeMap::new();
            let mut all = true;
            for queue in inner.index.all() {
                let state = queue.lock();
                if !state.is_idle() {
                    all = false;
                } else if state.stored < inner.position {
                    queues.insert(queue.key, Arc::clone(queue));
                }
            }
            (inner.position, inner.created, queues, all)
        };
        if !queues.is_empty() {
            let names = queues.values().map(|queue| queue.endpoint.clone());
            store
                .advance_cursors(names.collect(), SLURM_EVENTS, created, position)
                .await?;
            for queue in queues.values() {
                queue.lock().stored = position;
            }
        }
        Ok(all)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventReader {
    /// Reads the bus and stores positions until shutdown.
    pub async fn run(
        &self,
        bus: &Bus,
        store: &Store,
        events: &EventCache,
        shutdown: &CancellationToken,
    ) {
        let action = "reading SLURM_EVENTS";
        let reading = while_connected(bus, shutdown, action, || self.read(bus, store, events));
        tokio::join!(reading, self.store_positions_until(store, shutdown));
    }

    /// Reads the bus until the server is gone.
    async fn read(&self, bus: &Bus, store: &Store, cache: &EventCache) -> Result<(), Error> {
        let state = bus.stream_state(SLURM_EVENTS).await?;
        if self.is_at_start(&state) {
            if let Some(recovery) = &self.recovery {
                recovery.read_audit(bus, store).await?;
            }
            let (position, cursors) = start::prepare(bus, store, &state).await?;
            self.start(position, state.created, cursors);
            tracing::info!(position, last = state.last_sequence, "reading SLURM_EVENTS");
        }
        let next = self.lock().position + 1;
        let mut batches = pin!(bus.messages_from(SLURM_EVENTS, next).await?);
        while let Some(batch) = batches.next().await {
            let events = StreamEvent::read_all(&batch, cache, bus).await?;
            let last = batch.last().map_or(0, |message| message.stream_sequence);
            self.distribute(events, last);
        }
        Ok(())
    }

    /// Stores positions every few seconds until shutdown.
    async fn store_positions_until(&self, store: &Store, shutdown: &CancellationToken) {
        let mut stored = None;
        loop {
            let position = self.lock().position;
            if stored != Some(position) {
                match self.store_positions(store).await {
                    Ok(true) => stored = Some(position),
                    Ok(false) => {}
                    Err(error) => {
                        let error = mesh_runtime::error_chain(&error);
                        tracing::debug!(error, "cursors not stored, retrying");
                    }
                }
            }
            if !Backoff::fixed(STORE_INTERVAL).wait(shutdown).await {
                // Once more, so that nothing is read twice after an orderly stop.
                drop(self.store_positions(store).await);
                return;
            }
        }
    }
}
