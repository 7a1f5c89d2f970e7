//! Notices about pending jobs, and cancellations whose actor is not known yet. They are stored as deliveries until they
//! are due, and dropped if the wait ends before. A cancellation is due once its actor is known.
//!
//! The event that ends a wait may still be on the bus: after an outage, an hours-old explanation arrives before the
//! start that followed it. A notice is therefore sent only when the endpoint has consumed all events up to now.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use event_message::cancellation::{self, Canceller};
use event_message::pending::{self, PendingNotice, PublishedTopics};
use mesh_events::{Event, EventType};
use prost::Message as _;

use crate::clock;
use crate::delivery::EndpointWorker;
use crate::error::Error;
use crate::store::{Delivery, State};
use crate::stream::event::StreamEvent;

/// An endpoint is up to date if its latest event is no older than this.
const RECENT_WITHIN: TimeDelta = TimeDelta::seconds(1);
/// Delay of a notice while the endpoint is not up to date.
const RETRY_INTERVAL: TimeDelta = TimeDelta::seconds(1);

/// Time up to which an endpoint has consumed all events.
#[derive(Default)]
pub struct PendingWatermark {
    millis: AtomicI64,
}

impl PendingWatermark {
    fn up_to(&self, time: DateTime<Utc>) {
        self.millis
            .fetch_max(time.timestamp_millis(), Ordering::Relaxed);
    }

    /// Sets the watermark.
    fn is_at(&self, time: DateTime<Utc>) {
        self.millis
            .store(time.timestamp_millis(), Ordering::Relaxed);
    }

    /// False also if the watermark lies in the future, set by a clock that was ahead.
    fn is_recent(&self, now: DateTime<Utc>) -> bool {
        let recent = now - RECENT_WITHIN..=now + RECENT_WITHIN;
        let millis = self.millis.load(Ordering::Relaxed);
        DateTime::from_timestamp_millis(millis).is_some_and(|time| recent.contains(&time))
    }
}

impl EndpointWorker {
    /// Drops notices about waits that these events end. Called before the events are delivered.
    ///
    /// # Errors
    /// If the database write fails. The events are handled again.
    pub async fn end_waits(&self, events: &[Arc<StreamEvent>]) -> Result<(), Error> {
        if self.pending_companions.is_empty() {
            return Ok(());
        }
        let news = || events.iter().filter(|read| read.replay.is_none());
        let ended: Vec<String> = news()
            .flat_map(|read| pending::ended(read.kind, &read.event))
            .collect();
        self.end_notices(ended, "dropped: the job started or ended before it was due")
            .await?;
        for read in news() {
            match Canceller::of(read.kind, &read.event) {
                Some(canceller) if canceller.is_owner() => {
                    let reason = "dropped: its owner cancelled the job";
                    self.end_notices(vec![canceller.key()], reason).await?;
                }
                Some(canceller) => {
                    let costs = &self.shared.costs;
                    costs.put(&self.endpoint.name, canceller.key(), read.body.clone());
                    self.name_canceller(&canceller).await?;
                }
                None => {}
            }
        }
        for key in news().filter_map(|read| pending::released(read.kind, &read.event)) {
            if let Some(left) = self.sent_topics(&key).await?.released() {
                let updates = vec![(key, left)];
                let rows = self.rows();
                rows.store_provider_state(updates, clock::now()).await?;
            }
        }
        if let Some(last) = news().map(|read| read.stored).max() {
            self.watermark.up_to(last);
        }
        Ok(())
    }

    /// Drops the notices with these keys that wait, and those that are handled concurrently and stored a moment later.
    async fn end_notices(&self, keys: Vec<String>, reason: &'static str) -> Result<(), Error> {
        if keys.is_empty() {
            return Ok(());
        }
        for key in &keys {
            let costs = &self.shared.costs;
            costs.put(&self.endpoint.name, key.clone(), Bytes::new());
        }
        self.drop_notices(keys, reason).await
    }

    /// Adds the canceller to the cancellation that waits for it. It is due once its cost is known, too.
    async fn name_canceller(&self, canceller: &Canceller<'_>) -> Result<(), Error> {
        let (store, name) = (&self.shared.store, &self.endpoint.name);
        let Some(delivery) = store.load(name, canceller.cancelled).await? else {
            return Ok(());
        };
        if delivery.state != State::Waiting {
            return Ok(());
        }
        let mut event = Event::clone(&*delivery.event(&self.shared.event_cache)?);
        event.actor = Some(canceller.actor.clone());
        let (now, body) = (clock::now(), event.encode_to_vec());
        let pair = self.awaited_cost(&event);
        let pair = pair.filter(|_| delivery.cost.is_none());
        let due = match pair {
            Some(_) => now + self.shared.cost_join_timeout,
            None => now,
        };
        let (rows, key) = (self.rows(), canceller.key());
        let is_changed = rows.complete_notice(&key, &body, due, pair.as_deref());
        if !is_changed.await? {
            return Ok(());
        }
        if let Some(pair) = pair
            && let Some(cost) = self.taken_cost(&pair)
        {
            rows.join_cost(&pair, None, &cost, clock::now()).await?;
        }
        self.wake();
        Ok(())
    }

    async fn drop_notices(&self, keys: Vec<String>, reason: &'static str) -> Result<(), Error> {
        let endpoint = &self.endpoint.name;
        let dropped = self.rows().drop_waiting(keys, reason, clock::now()).await?;
        if dropped > 0 {
            tracing::debug!(endpoint, dropped, reason, "pending notices dropped");
            self.shared.outcomes.notify_one();
        }
        Ok(())
    }

    /// The notice for an event, if the endpoint delays notices.
    pub fn notice(&self, event: &Event) -> Option<PendingNotice> {
        let is_delayed = !self.pending_companions.is_empty();
        is_delayed
            .then(|| {
                let waits = pending::notice(event, self.endpoint.pending_threshold);
                waits.or_else(|| cancellation::notice(&self.endpoint.filter, event))
            })
            .flatten()
    }

    /// Stores a notice until it is due, unless its topic was already sent.
    ///
    /// # Errors
    /// If the database read or write fails.
    pub async fn park_notice(
        &self,
        mut delivery: Delivery,
        notice: PendingNotice,
    ) -> Result<(), Error> {
        if self.sent_topics(&notice.key).await?.has(&notice.topic) {
            return Ok(());
        }
        let newer = "dropped: a newer explanation took its place";
        self.drop_notices(vec![notice.key.clone()], newer).await?;
        let due = notice.due.unwrap_or(delivery.created_at);
        delivery.next_at = Some(due.max(delivery.created_at));
        delivery.pair = Some(notice.key.clone());
        let event = delivery.event(&self.shared.event_cache)?;
        self.store(delivery).await?;
        // What ends the wait, names the canceller or is the cost may have arrived in the meantime.
        if let Some(pair) = self.awaited_cost(&event)
            && let Some(cost) = self.taken_cost(&pair)
        {
            let key = Some(notice.key.clone());
            let joined = self.rows().join_cost(&pair, key, &cost, clock::now());
            joined.await?;
        }
        let Some(news) = self.taken_cost(&notice.key) else {
            return Ok(());
        };
        let correction = Event::from_bytes(&news).ok();
        match Canceller::of(EventType::JobCorrected, &correction.unwrap_or_default()) {
            Some(canceller) => self.name_canceller(&canceller).await,
            None => {
                let reason = "dropped: no news any more";
                self.drop_notices(vec![notice.key], reason).await
            }
        }
    }

    /// Topics that were already sent for a run.
    async fn sent_topics(&self, key: &str) -> Result<PublishedTopics, Error> {
        let stored = self.rows().provider_state(key).await?;
        Ok(PublishedTopics::read(stored.as_ref()))
    }

    /// Whether a due notice is sent now. If not, it is postponed or ended. `notice` is `None` if the endpoint no
    /// longer delays notices.
    ///
    /// # Errors
    /// If the database read or write fails.
    pub async fn may_send_notice(
        &self,
        delivery: &Delivery,
        notice: Option<&PendingNotice>,
    ) -> Result<bool, Error> {
        let now = clock::now();
        let mut delivery = delivery.clone();
        let needless = match notice {
            None => Some("dropped: the endpoint does not ask for it any more"),
            Some(notice) => {
                let sent = self.sent_topics(&notice.key).await?;
                sent.has(&notice.topic).then_some("dropped: sent before")
            }
        };
        if let Some(reason) = needless {
            delivery.state = State::Expired;
            reason.clone_into(&mut delivery.error);
            (delivery.next_at, delivery.pair) = (None, None);
            delivery.updated_at = now;
            self.shared.store.save(self.lease.epoch, delivery).await?;
            self.shared.outcomes.notify_one();
            return Ok(false);
        }
        let later = notice.and_then(|notice| notice.due);
        delivery.next_at = match later.filter(|due| *due > now) {
            Some(due) => Some(due),
            None if self.is_up_to_date(now).await => return Ok(true),
            None => Some(now + RETRY_INTERVAL),
        };
        delivery.updated_at = now;
        self.store(delivery).await?;
        Ok(false)
    }

    /// True if the endpoint has consumed all events on the bus.
    async fn is_up_to_date(&self, now: DateTime<Utc>) -> bool {
        if self.watermark.is_recent(now) {
            return true;
        }
        match self.shared.reader.is_at_end(&self.shared.bus).await {
            Ok(true) if self.events.is_up_to_date() => {
                self.watermark.is_at(now);
                true
            }
            Ok(_) => false,
            Err(error) => {
                let error = mesh_runtime::error_chain(&error);
                tracing::debug!(
                    error,
                    endpoint = self.endpoint.name,
                    "pending notices deferred: NATS unavailable"
                );
                false
            }
        }
    }

    /// The topic to store for a notice that was delivered, so that it is not sent twice.
    ///
    /// # Errors
    /// If the database read fails, or the stored body is not an event.
    pub async fn sent_notice(
        &self,
        delivery: &Delivery,
    ) -> Result<Option<(String, String)>, Error> {
        if !delivery.pair.as_deref().is_some_and(pending::is_key) {
            return Ok(None);
        }
        let event = delivery.event(&self.shared.event_cache)?;
        let Some(notice) = self.notice(&event) else {
            return Ok(None);
        };
        let sent = self.sent_topics(&notice.key).await?;
        Ok(Some((notice.key, sent.and(notice.topic))))
    }
}
