//! Sends what is due at an endpoint: retries, postponed deliveries, digests, and summaries of missed events.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::store::{Delivery, State};
use chrono::{DateTime, Utc};
use event_message::schedule::is_due;
use mesh_events::from_timestamp;
use tokio::task::JoinSet;

use crate::attempt::gate::Closed;
use crate::clock;
use crate::delivery::EndpointWorker;
use crate::error::Error;
use crate::names;
use crate::repeat::RETRY_INTERVAL;
use event_message::pending;

/// A summary of missed events is sent once none was missed for this long.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// Poll interval while deliveries wait: their times are by a clock that may be set.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// While nothing waits. A new waiting delivery starts the loop again.
pub const NOTHING_WAITS: Duration = Duration::from_secs(60 * 60);

impl EndpointWorker {
    /// Sends due deliveries until none waits or it is stopped, within the endpoint's concurrency, then finishes the
    /// requests in flight.
    pub async fn retry(self: Arc<Self>) {
        let mut tasks: JoinSet<String> = JoinSet::new();
        let mut under_way: HashSet<String> = HashSet::new();
        while !self.stop.is_cancelled() {
            let started = self.start_due(&mut tasks, &mut under_way);
            let pause = match started.await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        endpoint = self.endpoint.name,
                        "read due deliveries"
                    );
                    RETRY_INTERVAL
                }
            };
            if pause >= NOTHING_WAITS && tasks.is_empty() {
                return;
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
                Some(Ok(done)) = tasks.join_next() => { under_way.remove(&done); }
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Makes deliveries due that were scheduled by a clock ahead of this one.
    async fn replan(&self, now: DateTime<Utc>) -> Result<(), Error> {
        let replanned = self.rows().replan(now).await?;
        if replanned > 0 {
            tracing::warn!(
                endpoint = self.endpoint.name,
                deliveries = replanned,
                "deliveries scheduled by a clock that was ahead, due now"
            );
        }
        Ok(())
    }

    /// Starts due deliveries. Returns the time until the next one is due.
    async fn start_due(
        self: &Arc<Self>,
        tasks: &mut JoinSet<String>,
        under_way: &mut HashSet<String>,
    ) -> Result<Duration, Error> {
        let rows = self.rows();
        if self.may_send().is_err() {
            // A wake-up follows when the database is writable again. An expired lease may still be renewed.
            return Ok(RETRY_INTERVAL);
        }
        let now = clock::now();
        // On the first poll, and after the clock was set back.
        let millis = now.timestamp_millis();
        if millis < self.due_looked_at.load(Ordering::Acquire) {
            self.replan(now).await?;
        }
        self.due_looked_at.store(millis, Ordering::Release);
        let mut pause = self.report_missed(now).await?;
        pause = pause.min(self.tick_digests(now).await?);
        self.read_gate().await?;
        let (available, wait) = match self.admission.available(now) {
            Ok(available) => (available.min(self.endpoint.concurrency), Duration::ZERO),
            Err(Closed::Limited(wait)) => (0, wait),
            // The end of a probe wakes this loop.
            Err(closed) => return Ok(pause.min(POLL_INTERVAL).min(closed.wait(now))),
        };
        let due = rows.due(now, available.max(1) + under_way.len()).await?;
        let has_due = due.iter().any(|id| !under_way.contains(id));
        self.admission.set_has_due(has_due);
        if available == 0 {
            return Ok(pause.min(POLL_INTERVAL).min(wait));
        }
        if !due.is_empty() {
            pause = pause.min(POLL_INTERVAL);
        }
        let mut started = 0;
        for id in due {
            if started >= available {
                break;
            }
            if tasks.len() >= self.endpoint.concurrency {
                // The end of a delivery wakes this loop.
                return Ok(POLL_INTERVAL);
            }
            if under_way.insert(id.clone()) {
                started += 1;
                let worker = Arc::clone(self);
                tasks.spawn(async move {
                    if let Err(error) = worker.try_again(&id).await
                        && !matches!(error, Error::NotOurs(_) | Error::Halted(_))
                    {
                        tracing::error!(
                            error = &error as &dyn std::error::Error,
                            event.id = id,
                            endpoint = worker.endpoint.name,
                            "retry of delivery failed"
                        );
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                    id
                });
            }
        }
        if let Some(next) = rows.next_due(now).await? {
            let wait = (next - now).to_std().unwrap_or_default();
            pause = pause.min(POLL_INTERVAL).min(wait);
        }
        Ok(pause)
    }

    async fn try_again(&self, id: &str) -> Result<(), Error> {
        let Some(mut delivery) = self.shared.store.load(&self.endpoint.name, id).await? else {
            return Ok(());
        };
        if delivery.state != State::Waiting {
            return Ok(());
        }
        let now = clock::now();
        let event = names::is_event(id)
            .then(|| delivery.event(&self.shared.event_cache))
            .transpose()?;
        let mut observed = event
            .as_ref()
            .and_then(|event| event.observed_at.as_ref())
            .and_then(from_timestamp);
        // A replay or redelivery was requested explicitly: ignore the event's age.
        let is_repeated = names::replay(id).is_some() || delivery.round > 0;
        if event
            .as_ref()
            .is_some_and(|event| !is_repeated && self.is_too_old(event, now))
        {
            delivery.state = State::Expired;
            delivery.updated_at = now;
            (delivery.next_at, delivery.pair) = (None, None);
            return self.store(delivery).await;
        }
        if delivery.pair.as_deref().is_some_and(pending::is_key) {
            let notice = event.and_then(|event| self.notice(&event));
            if !self.may_send_notice(&delivery, notice.as_ref()).await? {
                return Ok(());
            }
            // The delay was intended, so it is not measured as latency.
            observed = None;
        }
        self.deliver(delivery, observed).await
    }

    /// Queues "N events while away" once no more are missed. Returns the time to wait.
    async fn report_missed(&self, now: DateTime<Utc>) -> Result<Duration, Error> {
        let Some((first, last)) = self.rows().missed().await? else {
            return Ok(NOTHING_WAITS);
        };
        let due = last + IDLE_INTERVAL;
        if !is_due(due, last, now) {
            return Ok((due - now).to_std().unwrap_or_default());
        }
        let id = names::away_id(&self.endpoint.name, &first);
        let report = Delivery::message(&self.endpoint.name, id, Vec::new(), now);
        let store = &self.shared.store;
        store.report_missed(self.lease.epoch, report).await?;
        Ok(POLL_INTERVAL)
    }
}
