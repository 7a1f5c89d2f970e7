//! The events of one endpoint that are read and not settled.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use crate::stream::cursor::{Cursor, Tracker};
use crate::stream::event::StreamEvent;
use crate::stream::subscription::Subscription;

/// Handles the events of a queue.
pub trait EventHandler: Send + Sync {
    /// Called when the reader has changed the queue.
    fn handle_events(&self);
}

/// The bounded queue of an endpoint, for the events of one stream.
pub struct EventQueue {
    /// Name of the endpoint.
    pub endpoint: String,
    /// The stream.
    pub stream: &'static str,
    pub(crate) key: u64,
    pub(crate) subscription: Subscription,
    pub(crate) capacity: usize,
    state: Mutex<QueueState>,
    changed: Notify,
    handler: Weak<dyn EventHandler>,
}

#[derive(Default)]
pub(crate) struct QueueState {
    tracker: Tracker,
    events: VecDeque<Arc<StreamEvent>>,
    /// Events that were taken and are not settled.
    under_way: usize,
    /// True if an event that was taken has to be read again.
    returned: bool,
    /// True while the reader puts every event into the queue.
    pub attached: bool,
    /// The start of the reader that the sequences belong to.
    pub generation: u64,
    stream_created: DateTime<Utc>,
    /// The position that was stored last.
    pub stored: u64,
}

/// An event that came from a queue, and is settled by the first write of its delivery.
#[derive(Clone)]
pub struct Arrival {
    /// The queue.
    pub queue: Arc<EventQueue>,
    /// The event's sequence.
    pub sequence: u64,
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.queue.stream, self.sequence)
    }
}

impl QueueState {
    pub(crate) fn read_to(&self) -> u64 {
        self.tracker.read_to()
    }

    /// Nothing up to this position concerns the endpoint, except what has begun.
    pub(crate) fn advance(&mut self, position: u64) {
        self.tracker.advance(position);
    }

    /// True if no event is queued or under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.tracker.is_idle()
    }

    /// Queues an event, unless it has begun before. False if the queue is full.
    pub(crate) fn push(&mut self, event: &Arc<StreamEvent>, capacity: usize) -> bool {
        if self.events.len() >= capacity {
            return false;
        }
        if self.tracker.begin(event.sequence) {
            self.events.push_back(Arc::clone(event));
        }
        true
    }
}

impl EventQueue {
    /// A queue without a position.
    pub fn new(
        endpoint: &str,
        stream: &'static str,
        key: u64,
        subscription: Subscription,
        capacity: usize,
        handler: Weak<dyn EventHandler>,
    ) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            stream,
            key,
            subscription,
            capacity,
            state: Mutex::default(),
            changed: Notify::new(),
            handler,
        }
    }

    /// Begins at a stored position.
    pub fn restart(&self, cursor: Cursor, generation: u64, stream_created: DateTime<Utc>) {
        let mut state = self.lock();
        *state = QueueState {
            stored: cursor.settled,
            tracker: Tracker::new(cursor),
            generation,
            stream_created,
            ..QueueState::default()
        };
    }

    /// True if the endpoint needs the event.
    pub(crate) fn takes(&self, event: &StreamEvent) -> bool {
        self.subscription
            .takes(event.kind, &event.event, event.stored)
    }

    /// Queues an event of the reader. If the queue is full, the endpoint is detached.
    pub(crate) fn offer(&self, event: &Arc<StreamEvent>) -> bool {
        let mut state = self.lock();
        let queued = state.push(event, self.capacity);
        if !queued {
            // Everything before it was offered.
            state.tracker.advance(event.sequence - 1);
            state.attached = false;
        }
        drop(state);
        self.has_changed();
        queued
    }

    fn has_changed(&self) {
        self.changed.notify_one();
        if let Some(handler) = self.handler.upgrade() {
            handler.handle_events();
        }
    }

    /// Queues events that the endpoint read itself, up to the last one.
    pub(crate) fn push_page(&self, events: &[Arc<StreamEvent>], last: u64) {
        let mut state = self.lock();
        for event in events {
            state.push(event, usize::MAX);
        }
        state.tracker.advance(last);
    }

    /// Drops what has not been taken: it belongs to a stream that is no more.
    pub(crate) fn detach(&self) {
        let mut state = self.lock();
        state.attached = false;
        // They stay outstanding: no cursor passes them.
        state.events = VecDeque::new();
        drop(state);
        self.has_changed();
    }

    /// Takes up to this many events.
    pub(crate) fn take(&self, max: usize) -> Vec<Arc<StreamEvent>> {
        let mut state = self.lock();
        let count = max.min(state.events.len());
        state.under_way += count;
        state.events.drain(..count).collect()
    }

    /// An event is settled.
    pub fn settle(&self, sequence: u64) {
        let mut state = self.lock();
        state.tracker.settle(sequence);
        state.under_way -= 1;
        let is_last = state.under_way == 0;
        drop(state);
        if is_last {
            self.changed.notify_one();
        }
    }

    /// An event that was taken cannot be sent now. It is read again after [`rewind`](Self::rewind).
    pub fn give_back(&self) {
        let mut state = self.lock();
        state.returned = true;
        state.under_way -= 1;
        drop(state);
        self.changed.notify_one();
    }

    /// True if an event was given back.
    pub fn has_returned(&self) -> bool {
        self.lock().returned
    }

    /// Goes back to the cursor of a queue that has nothing under way: what is not settled is read again.
    pub(crate) fn rewind(&self) {
        let mut state = self.lock();
        state.events = VecDeque::new();
        state.attached = false;
        state.returned = false;
        state.tracker = Tracker::new(state.tracker.cursor());
    }

    /// Waits until the queue may have changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// True if the reader supplies it, and there is nothing in it.
    pub(crate) fn is_waiting(&self) -> bool {
        let state = self.lock();
        state.attached && state.events.is_empty() && !state.returned
    }

    /// True if an event was taken and is not settled.
    pub(crate) fn has_taken(&self) -> bool {
        self.lock().under_way > 0
    }

    /// True if the endpoint has handled every event that the reader has read.
    pub fn is_up_to_date(&self) -> bool {
        let state = self.lock();
        state.attached && state.is_idle()
    }

    /// The cursor to store in the transaction that settles these events, and when the stream was created.
    pub fn cursor_with(&self, settled: impl IntoIterator<Item = u64>) -> (Cursor, DateTime<Utc>) {
        let state = self.lock();
        (state.tracker.cursor_with(settled), state.stream_created)
    }

    /// The cursor to store, if it differs from the stored one.
    pub fn unstored(&self) -> Option<(Cursor, DateTime<Utc>)> {
        let state = self.lock();
        let cursor = state.tracker.cursor();
        (state.generation > 0 && cursor != Cursor::at(state.stored))
            .then_some((cursor, state.stream_created))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
