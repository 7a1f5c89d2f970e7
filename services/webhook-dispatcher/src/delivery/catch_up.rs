//! How an endpoint gets its next events, live or replayed: from its queue, or, while it is behind, by reads of its own.
//!
//! The reads are direct gets of the subjects that its filter selects. They leave nothing on the server, and a page is read
//! only when the one before is under way, so an endpoint that is behind holds a page in memory and nothing on the bus.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS};
use mesh_events::subject;

use crate::attempt::gate::Closed;
use crate::clock;
use crate::delivery::EndpointWorker;
use crate::error::Error;
use crate::reader::Join;
use crate::repeat::RETRY_INTERVAL;
use crate::stream::cursor::Cursor;
use crate::stream::event::StreamEvent;
use crate::stream::queue::EventQueue;

/// Messages of each subject in a page.
const PAGE_SIZE: u32 = 64;
/// Poll interval of a closed gate: its times are by a clock that may be set.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

impl EndpointWorker {
    /// The next events, up to this many. None at all if one was given back, or if there is nothing to do until the stream
    /// has more. Cancelled, it loses none.
    pub async fn next_events(&self, queue: &Arc<EventQueue>, max: usize) -> Vec<Arc<StreamEvent>> {
        loop {
            let events = queue.take(max);
            if !events.is_empty() || queue.has_returned() {
                return events;
            }
            if queue.lock().attached {
                if !queue.has_taken() {
                    return events;
                }
                queue.changed().await;
                continue;
            }
            let supplied = match self.join_stream(queue) {
                Join::Supplied => continue,
                // Boxed: most endpoints are seldom behind.
                Join::Behind(position) => Box::pin(self.catch_up(queue, position)).await,
                Join::Stale(generation) => Box::pin(self.load_position(generation)).await,
            };
            if let Err(error) = supplied {
                self.wait_after(&error, "read missed part of the stream")
                    .await;
            }
        }
    }

    /// Finds out whether a queue is at the end of its stream.
    fn join_stream(&self, queue: &Arc<EventQueue>) -> Join {
        if queue.stream == SLURM_EVENTS {
            return self.shared.reader.join(queue);
        }
        let replayed = self.shared.replayed();
        match replayed.get(&self.endpoint.name) {
            Some(last) if *last > queue.lock().read_to() => Join::Behind(*last),
            _ => {
                // The end of what was replayed to the endpoint is reached.
                queue.lock().attached = true;
                Join::Supplied
            }
        }
    }

    /// Logs an error, then waits before the next try.
    pub async fn wait_after(&self, error: &Error, action: &'static str) {
        let error = mesh_runtime::error_chain(error);
        let endpoint = &self.endpoint.name;
        tracing::warn!(error, endpoint, "{action} failed, retrying");
        tokio::time::sleep(RETRY_INTERVAL).await;
    }

    /// Waits until events may be sent. While the circuit is open, or the receiver asked for a pause, the endpoint is
    /// detached, and its queue is empty. It may take an event as a probe, if no delivery is due for that.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn until_open(&self, queue: &EventQueue) -> Result<(), Error> {
        self.read_gate().await?;
        loop {
            let changed = self.admission.changed();
            let now = clock::now();
            let wait = match self.admission.available(now) {
                Err(Closed::Limited(_)) => break,
                Err(closed) => closed.wait(now),
                Ok(_) if !self.admission.is_suspended() => break,
                Ok(_) if self.is_nothing_due(now).await? => break,
                Ok(_) => RETRY_INTERVAL,
            };
            self.rewind(queue).await;
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(wait.min(POLL_INTERVAL)) => {}
            }
        }
        if queue.has_returned() {
            self.rewind(queue).await;
        }
        Ok(())
    }

    async fn is_nothing_due(&self, now: DateTime<Utc>) -> Result<bool, Error> {
        Ok(self.rows().due(now, 1).await?.is_empty())
    }

    /// Detaches the endpoint, and drops what is not settled. It is read again.
    async fn rewind(&self, queue: &EventQueue) {
        if queue.stream == SLURM_EVENTS {
            self.shared.reader.leave(queue);
        }
        while queue.has_taken() {
            queue.changed().await;
        }
        queue.rewind();
    }

    /// Begins at the stored position, once the reader has started after this start and all that is under way has ended.
    ///
    /// # Errors
    /// If NATS does not answer, or the database read or write fails.
    pub async fn load_position(&self, after: u64) -> Result<(), Error> {
        let shared = &self.shared;
        let (generation, created) = shared.reader.started_after(after).await;
        while self.events.has_taken() {
            self.events.changed().await;
        }
        let (store, endpoint) = (&shared.store, &self.endpoint.name);
        let cursor = match shared.reader.cursor(endpoint) {
            Some(cursor) => cursor,
            None => match store.cursor(endpoint, SLURM_EVENTS, created).await? {
                Some(cursor) => cursor,
                None => {
                    let time = self.created_at;
                    let settled = shared.bus.sequence_before(SLURM_EVENTS, time).await?;
                    let begin = vec![(endpoint.clone(), settled)];
                    store.begin_cursors(begin, SLURM_EVENTS, created).await?;
                    Cursor::at(settled)
                }
            },
        };
        self.events.restart(cursor, generation, created);
        self.declared.cancel();
        Ok(())
    }

    /// Reads a page into a queue. Without one, the endpoint is at this position.
    async fn catch_up(&self, queue: &EventQueue, position: u64) -> Result<(), Error> {
        let (shared, stream) = (&self.shared, queue.stream);
        let permit = shared.reader.catch_ups.acquire().await;
        let subjects = if stream == SLURM_EVENTS {
            let first = shared.bus.stream_state(stream).await?.first_sequence;
            let next = queue.lock().read_to() + 1;
            if next < first {
                self.report_gap(next, first - 1).await?;
                queue.lock().advance(first - 1);
            }
            queue.subscription.subjects()
        } else {
            vec![subject::replays_for(&self.endpoint.name)]
        };
        let next = queue.lock().read_to() + 1;
        let page = shared
            .bus
            .stored_page(stream, &subjects, next, position, PAGE_SIZE);
        let page = page.await?;
        drop(permit);
        let Some(last) = page.last() else {
            queue.lock().advance(position);
            return Ok(());
        };
        let mut events = StreamEvent::read_all(&page, &shared.event_cache, &shared.bus).await?;
        events.retain(|event| event.replay.is_some() || queue.takes(event));
        queue.push_page(&events, last.stream_sequence);
        Ok(())
    }

    /// Records events that the stream no longer has.
    async fn report_gap(&self, first: u64, last: u64) -> Result<(), Error> {
        let (shared, endpoint) = (&self.shared, &self.endpoint.name);
        tracing::warn!(
            endpoint,
            first,
            last,
            "events missed: the stream no longer has these sequences"
        );
        let reason = format!("{SLURM_EVENTS} no longer has the sequences {first} to {last}");
        let now = clock::now();
        let act = self.own_act("missed", &reason, now);
        let store = &shared.store;
        let reported = store.report_gap(endpoint, SLURM_EVENTS, first, last, now, act);
        reported.await
    }

    /// Begins at the stored position of the endpoint's replays.
    ///
    /// # Errors
    /// If NATS does not answer, or the database read fails.
    pub async fn load_replays(&self, queue: &EventQueue) -> Result<(), Error> {
        let (shared, endpoint) = (&self.shared, &self.endpoint.name);
        // At the first start it takes over the positions of a former version.
        shared.reader.started_after(0).await;
        let state = shared.bus.stream_state(MESH_REPLAY).await?;
        let cursor = shared.store.cursor(endpoint, MESH_REPLAY, state.created);
        let cursor = cursor.await?.unwrap_or_default();
        let is_valid = cursor.settled <= state.last_sequence;
        let cursor = if is_valid { cursor } else { Cursor::default() };
        queue.restart(cursor, 1, state.created);
        Ok(())
    }
}
