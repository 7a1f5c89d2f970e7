//! Attempts of an endpoint: whether one may be made now, its request, and the state that it leaves in the store.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use event_message::pending;
use mesh_bus::trace;
use mesh_events::{Event, from_timestamp};
use tracing::{Instrument as _, Span};

use crate::attempt::retry::{Next, next_attempt};
use crate::attempt::signal::AttemptSignal;
use crate::delivery::post::DeliveryContent;
use crate::delivery::{EndpointWorker, post, spending};
use crate::error::Error;
use crate::store::endpoint_rows::EndpointRows;
use crate::store::{Attempt, Delivery, State};
use crate::stream::queue::EventQueue;
use crate::{clock, metrics};

/// Marks an event as being handled until it is dropped.
pub struct InFlightDelivery<'a> {
    worker: &'a EndpointWorker,
    event: String,
}

impl Drop for InFlightDelivery<'_> {
    fn drop(&mut self) {
        self.worker.events_under_way().remove(&self.event);
    }
}

impl EndpointWorker {
    /// True if an event exceeds `max_event_age`. A pending notice ages from the moment it is due.
    pub fn is_too_old(&self, event: &Event, now: DateTime<Utc>) -> bool {
        let Some(limit) = self
            .endpoint
            .max_event_age
            .and_then(|age| TimeDelta::from_std(age).ok())
        else {
            return false;
        };
        let due = self.notice(event).and_then(|notice| notice.due);
        event
            .occurred_at
            .as_ref()
            .and_then(from_timestamp)
            .is_some_and(|occurred| now - due.map_or(occurred, |due| due.max(occurred)) > limit)
    }

    /// Checks that a request may be sent. Called before each one.
    ///
    /// # Errors
    /// If the database is not writable, the lease is lost, or the endpoint was auto-disabled.
    pub fn may_send(&self) -> Result<(), Error> {
        if self.halted.load(Ordering::Acquire) {
            return Err(Error::Halted(self.endpoint.name.clone()));
        }
        self.shared.store.check_writes()?;
        self.lease.check()
    }

    /// Marks an event as being handled. `None` if it already is, for example because it is on the bus twice.
    pub fn begin(&self, event: &str) -> Option<InFlightDelivery<'_>> {
        let began = self.events_under_way().insert(event.to_owned());
        began.then(|| InFlightDelivery {
            worker: self,
            event: event.to_owned(),
        })
    }

    fn events_under_way(&self) -> MutexGuard<'_, HashSet<String>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one attempt and stores the result. A delivery that is due and not admitted stays due.
    ///
    /// The concurrency permit is held until the result is on disk. With a concurrency of 1, each attempt therefore
    /// sees the state stored by the one before.
    ///
    /// # Errors
    /// If a new event is not admitted, the database write fails, or a stored body is not an event.
    pub async fn deliver(
        &self,
        delivery: Delivery,
        observed: Option<DateTime<Utc>>,
    ) -> Result<(), Error> {
        self.read_failing().await?;
        self.read_gate().await?;
        let is_new = delivery.next_at.is_none();
        let turn = match is_new {
            true => Some(self.admission.turn.lock().await),
            false => None,
        };
        let (in_flight, permit) = loop {
            if is_new {
                self.until_admitted().await?;
            }
            let in_flight = self.in_flight_limit.take().await;
            self.may_send()?;
            match self.try_acquire() {
                Some(permit) => break (in_flight, permit),
                None if is_new => {}
                // It stays due.
                None => return Ok(()),
            }
        };
        drop(turn);
        let sent = self.sent_notice(&delivery).await?;
        let (mut delivery, signal) = self.attempt(delivery).await?;
        permit.record_result(&mut delivery, &signal);
        if let (State::Delivered, Some((key, sent))) = (delivery.state, sent) {
            delivery.keep.push((key, Some(sent)));
        }
        let auto_disable = self.auto_disable_after(&mut delivery).await;
        if let (State::Delivered, Some(observed)) = (delivery.state, observed) {
            let name = &self.endpoint.name;
            self.metrics.delivered(name, observed, delivery.updated_at);
        }
        self.store(delivery).await?;
        drop(in_flight);
        if let Some(auto_disable) = auto_disable {
            // Boxed: this rare future would otherwise enlarge every delivery's future.
            Box::pin(self.auto_disable(auto_disable)).await;
        }
        Ok(())
    }

    /// Makes one attempt and decides what follows.
    ///
    /// The first attempt is part of the event's trace. Later attempts are linked to it.
    ///
    /// # Errors
    /// If the database write fails, or a stored body is not an event.
    async fn attempt(&self, mut delivery: Delivery) -> Result<(Delivery, AttemptSignal), Error> {
        let attempt = delivery.attempts + 1;
        let span = tracing::info_span!(
            "webhook.deliver",
            otel.kind = "client",
            endpoint = self.endpoint.name,
            event.id = delivery.event_id,
            attempt,
            status = tracing::field::Empty,
            error = tracing::field::Empty,
        );
        if attempt > 1 {
            trace::link(&span, &delivery.trace);
        } else if Span::current().is_none() {
            trace::adopt(&span, &delivery.trace);
        }
        async {
            let mut sent = DeliveryContent::of(&delivery, &self.shared.cluster, &self.shared.event_cache)?;
            // Boxed: only few endpoints need it.
            let (shared, format) = (&self.shared, &self.endpoint.format);
            Box::pin(spending::attach(&mut sent, &shared.bus, &shared.spending_wait, format, attempt)).await;
            let keys = self.endpoint.format.keys(&sent.content());
            let provider_state = self.rows().provider_states(keys).await?;
            let at = clock::now();
            let sending = post::send_content(&self.shared.http, &self.endpoint, &sent, &provider_state, trace::traceparent());
            let attempted = tokio::select! {
                attempted = sending => attempted,
                // The lease is lost: this dispatcher may no longer write the outcome.
                () = self.lease.lost.cancelled() => return Err(Error::NotOurs(self.endpoint.name.clone())),
            };
            delivery.keep = attempted.verdict.keep;
            let now = clock::now();
            delivery.attempts = attempt;
            delivery.status = attempted.status;
            delivery.cause = attempted.cause;
            delivery.updated_at = now;
            delivery.next_at = None;
            Span::current().record("status", attempted.status);
            let outcome = &attempted.verdict.outcome;
            let max_retry_after = self.endpoint.rules.max_retry_after;
            let signal = AttemptSignal::of(outcome, attempted.cause, attempted.status, max_retry_after, now);
            let next = next_attempt(&self.endpoint.policy, attempt, delivery.began_at, outcome, now, rand::random());
            // Keep the key of a notice across retries, so that it is still dropped if the wait ends.
            let is_notice = delivery.pair.as_deref().is_some_and(pending::is_key);
            if !(is_notice && matches!(next, Next::Retry { .. })) {
                delivery.pair = None;
            }
            let result = match next {
                Next::Delivered => {
                    delivery.state = State::Delivered;
                    delivery.error = String::new();
                    "delivered"
                }
                Next::Retry { at } => {
                    tracing::debug!(error = attempted.verdict.error, next_at = %at, "delivery failed, retry scheduled");
                    delivery.next_at = Some(at);
                    delivery.error = attempted.verdict.error;
                    "retry"
                }
                Next::GiveUp { reason } => {
                    tracing::warn!(error = attempted.verdict.error, reason, "delivery failed permanently, stored as dead letter");
                    delivery.state = State::Dead;
                    delivery.error = format!("{} ({reason})", attempted.verdict.error);
                    "dead"
                }
            };
            if !delivery.error.is_empty() {
                Span::current().record("error", &delivery.error);
            }
            delivery.attempt = Some(Attempt {
                n: attempt,
                at,
                status: attempted.status,
                latency_ms: u64::try_from(attempted.elapsed.as_millis()).unwrap_or(u64::MAX),
                cause: attempted.cause,
                error: delivery.error.clone(),
                snippet: attempted.snippet,
                next_at: delivery.next_at,
            });
            if let Some(cause) = attempted.cause {
                metrics::failed(&self.endpoint.name, cause);
            }
            self.metrics.attempted(&self.endpoint.name, result, attempted.elapsed);
            Ok((delivery, signal))
        }
        .instrument(span)
        .await
    }

    /// Stores the state of a delivery, then wakes the outbox publisher or the loop for due deliveries.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn store(&self, delivery: Delivery) -> Result<(), Error> {
        let (state, missed) = (
            delivery.state,
            delivery.state == State::Expired && self.endpoint.format.is_chat(),
        );
        if missed {
            self.shared
                .store
                .save_missed(self.lease.epoch, delivery)
                .await?;
        } else {
            self.shared.store.save(self.lease.epoch, delivery).await?;
        }
        if state != State::Waiting {
            self.metrics.settled(&self.endpoint.name, state.as_str());
            self.shared.outcomes.notify_one();
        }
        if state == State::Waiting || missed {
            self.wake();
        }
        Ok(())
    }

    /// The endpoint's rows in the database.
    pub(crate) fn rows(&self) -> EndpointRows<'_> {
        EndpointRows {
            store: &self.shared.store,
            endpoint: &self.endpoint.name,
            epoch: self.lease.epoch,
        }
    }

    /// Stores the position of an endpoint that stops.
    pub async fn save_position(&self, queue: &EventQueue) {
        if let Some((cursor, created)) = queue.unstored()
            && let Err(error) = self.shared.store.save_cursor(queue, cursor, created).await
        {
            // Some events are read again, and recognised.
            let (error, endpoint) = (mesh_runtime::error_chain(&error), &self.endpoint.name);
            tracing::debug!(error, endpoint, "cursor not stored");
        }
    }

    /// Takes a cost that arrived before its message.
    pub fn taken_cost(&self, pair: &str) -> Option<Bytes> {
        self.shared.costs.take(&self.endpoint.name, pair)
    }
}
