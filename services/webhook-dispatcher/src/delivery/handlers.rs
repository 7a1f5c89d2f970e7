//! Handles the events of an endpoint: filter, deduplicate, check the age, send, store the outcome.
//!
//! An event is settled once its outcome, or its place in the retry queue, is on disk. Waiting deliveries therefore hold
//! up nothing.

use std::sync::Arc;

use bytes::Bytes;
use event_message::{cancellation, pairing};
use mesh_events::{Event, EventType, from_timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::delivery::EndpointWorker;
use crate::error::Error;
use crate::names;
use crate::repeat::RETRY_INTERVAL;
use crate::store::{Delivery, State};
use crate::stream::event::StreamEvent;
use crate::stream::queue::EventQueue;

/// Events per batch for endpoints that count array events in one write.
const BATCH_SIZE: usize = 128;

/// Handles events from a queue until there are none or it is stopped, then finishes the requests in flight.
pub async fn consume(worker: &Arc<EndpointWorker>, queue: &Arc<EventQueue>) {
    let tasks = TaskTracker::new();
    let handled = handle_all(worker, queue, &tasks);
    worker.stop.run_until_cancelled(handled).await;
    tasks.close();
    tasks.wait().await;
}

async fn handle_all(worker: &Arc<EndpointWorker>, queue: &Arc<EventQueue>, tasks: &TaskTracker) {
    let permits = Arc::new(Semaphore::new(worker.endpoint.concurrency));
    let permit = || async {
        let permit = Arc::clone(&permits).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    };
    let batch_size = if worker.makes_digests() {
        BATCH_SIZE
    } else {
        1
    };
    loop {
        // Taken before the event, so that events which wait are in the bounded queue.
        let mut first = Some(permit().await);
        if let Err(error) = worker.until_open(queue).await {
            worker.wait_after(&error, "read state of circuit").await;
            continue;
        }
        let events = worker.next_events(queue, batch_size).await;
        if events.is_empty() && !queue.has_returned() {
            return;
        }
        let in_digests = worker.note(&events).await;
        for (event, in_digest) in events.into_iter().zip(in_digests) {
            if in_digest {
                queue.settle(event.sequence);
                continue;
            }
            let permit = match first.take() {
                Some(permit) => permit,
                None => permit().await,
            };
            let (worker, queue) = (Arc::clone(worker), Arc::clone(queue));
            tasks.spawn(handle(worker, queue, event, permit));
        }
    }
}

/// Handles an event, and again after errors, until it is settled, cannot be sent now, or must be left to the next owner.
async fn handle(
    worker: Arc<EndpointWorker>,
    queue: Arc<EventQueue>,
    event: Arc<StreamEvent>,
    permit: OwnedSemaphorePermit,
) {
    loop {
        match worker.dispatch(&queue, &event).await {
            Ok(true) => break queue.settle(event.sequence),
            Err(Error::NotAdmitted(_)) => break queue.give_back(),
            Ok(false) | Err(Error::NotOurs(_) | Error::Halted(_)) => {}
            Err(error) => tracing::error!(
                error = &error as &dyn std::error::Error,
                endpoint = worker.endpoint.name,
                event.id = event.event.id,
                "event handling failed, retrying"
            ),
        }
        let retry = async {
            tokio::time::sleep(RETRY_INTERVAL).await;
            worker.until_it_may_send().await;
        };
        if worker.stop.run_until_cancelled(retry).await.is_none() {
            break;
        }
    }
    drop(permit);
}

impl EndpointWorker {
    /// Waits until the endpoint may send.
    async fn until_it_may_send(&self) {
        // Readiness reports the reason.
        while self.may_send().is_err() {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Notes what concerns several deliveries: ends of waits, and arrays in digests. Returns which events are in digests.
    async fn note(&self, events: &[Arc<StreamEvent>]) -> Vec<bool> {
        loop {
            self.until_it_may_send().await;
            let noted = async {
                self.end_waits(events).await?;
                self.digest(events).await
            };
            match noted.await {
                Ok(in_digests) => return in_digests,
                Err(Error::NotOurs(_) | Error::Halted(_)) => {}
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    endpoint = self.endpoint.name,
                    "counting events in digests failed, retrying"
                ),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Delivers a single event. False if it is being handled already.
    async fn dispatch(&self, queue: &Arc<EventQueue>, event: &StreamEvent) -> Result<bool, Error> {
        self.may_send()?;
        let id = match &event.replay {
            Some(replay) => names::replayed(replay, &event.event.id),
            None => event.event.id.clone(),
        };
        let Some(_under_way) = self.begin(&id) else {
            return Ok(false);
        };
        self.deliver_event(queue, event, id).await?;
        Ok(true)
    }

    /// Delivers an event, stored under this id. For a replayed one the endpoint's filter applies, its maximum event age
    /// does not.
    async fn deliver_event(
        &self,
        queue: &Arc<EventQueue>,
        read: &StreamEvent,
        id: String,
    ) -> Result<(), Error> {
        let (kind, event, format) = (read.kind, &*read.event, &self.endpoint.format);
        let is_replayed = read.replay.is_some();
        if self.companions.contains(kind) {
            if !is_replayed {
                self.join(kind, event, &read.body).await?;
            }
            if format.is_chat() {
                return Ok(());
            }
        }
        let (store, name) = (&self.shared.store, &self.endpoint.name);
        if !self.endpoint.filter.matches(kind, event) || store.knows(name, &id).await? {
            return Ok(());
        }
        let now = clock::now();
        let mut delivery = Delivery::of(queue, id, read, now);
        if !is_replayed && self.is_too_old(event, now) {
            delivery.state = State::Expired;
            return self.store(delivery).await;
        }
        if !format.takes(kind, event) {
            tracing::debug!(event.id = event.id, "event type is not sent in this format");
            return Ok(());
        }
        if is_replayed {
            return self.deliver(delivery, None).await;
        }
        if let Some(notice) = self.notice(event) {
            return self.park_notice(delivery, notice).await;
        }
        if let Some(pair) = self.awaited_cost(event) {
            match self.taken_cost(&pair) {
                Some(cost) => delivery.cost = Some(cost.to_vec()),
                None => return self.park(delivery, pair).await,
            }
        }
        let observed = event.observed_at.as_ref().and_then(from_timestamp);
        self.deliver(delivery, observed).await
    }

    /// The key of the cost that the message about an event shows.
    pub(super) fn awaited_cost(&self, event: &Event) -> Option<String> {
        if !self.endpoint.format.shows_costs() || self.shared.cost_join_timeout.is_zero() {
            return None;
        }
        pairing::awaits(event.kind().ok()?, event)
    }

    /// Stores a message until its cost arrives.
    async fn park(&self, mut delivery: Delivery, pair: String) -> Result<(), Error> {
        delivery.next_at = Some(delivery.created_at + self.shared.cost_join_timeout);
        delivery.pair = Some(pair.clone());
        self.store(delivery).await?;
        // The cost may have arrived in the meantime.
        if let Some(cost) = self.taken_cost(&pair)
            && self
                .rows()
                .join_cost(&pair, None, &cost, clock::now())
                .await?
        {
            self.wake();
        }
        Ok(())
    }

    /// Adds a cost to the message that waits for it. If the message is not stored yet, it picks up the cost later. If
    /// there is none (already sent, or not the endpoint's), the cost expires.
    async fn join(&self, kind: EventType, event: &Event, cost: &Bytes) -> Result<(), Error> {
        let Some(pair) = pairing::completes(kind, event) else {
            return Ok(());
        };
        if !self.endpoint.filter.concerns(kind, event) {
            return Ok(());
        }
        let (costs, name) = (&self.shared.costs, &self.endpoint.name);
        costs.put(name, pair.clone(), cost.clone());
        let notice = cancellation::key_of_cost(kind, event);
        let joined = self.rows().join_cost(&pair, notice, cost, clock::now());
        if joined.await? {
            costs.take(name, &pair);
            self.wake();
        }
        Ok(())
    }
}
