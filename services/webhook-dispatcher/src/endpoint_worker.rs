//! One endpoint: its limits, its attempts, its retries. Nothing here is shared with another endpoint but the database's writer.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::{Bus, trace};
use mesh_events::{Event, EventType, from_timestamp};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::adapters::http::Http;
use crate::adapters::store::{Attempt, Delivery, State, Store};
use crate::admission::Admission;
use crate::array_digests::ArrayDigests;
use crate::auto_disable::FailureState;
use crate::concurrency_limit::ConcurrencyLimit;
use crate::config::Endpoint;
use crate::costs::Costs;
use crate::domain::gate::AttemptSignal;
use crate::domain::retry::{Next, next_attempt};
use crate::domain::{pairing, pending};
use crate::error::Error;
use crate::event_cache::EventCache;
use crate::lease::Lease;
use crate::pending::PendingWatermark;
use crate::post::DeliveryContent;
use crate::{clock, metrics, post};

/// What all endpoints use.
pub struct WorkerContext {
    /// The bus.
    pub bus: Bus,
    /// The database.
    pub store: Store,
    /// HTTP clients.
    pub http: Http,
    /// Events on their way.
    pub facts: EventCache,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// How long a chat message waits for its cost.
    pub cost_join_timeout: Duration,
    /// An endpoint to which nothing has arrived for so long is paused; zero for never.
    pub auto_disable_after: Duration,
    /// Outcomes are to be announced.
    pub outcomes: Notify,
    /// Requests that may be under way to all endpoints together.
    pub places: Arc<Semaphore>,
    /// Endpoints whose outcomes are announced here.
    pub owned: RwLock<Vec<String>>,
    /// Endpoints to which replays tell something, or did.
    pub replayed: watch::Sender<BTreeSet<String>>,
}

impl WorkerContext {
    /// These endpoints are at work here.
    pub fn owned(&self, endpoints: Vec<String>) {
        let mut owned = self.owned.write().unwrap_or_else(PoisonError::into_inner);
        if *owned != endpoints {
            *owned = endpoints;
            self.outcomes.notify_one();
        }
    }
}

/// An endpoint at work.
pub struct EndpointWorker {
    /// What all endpoints use.
    pub shared: Arc<WorkerContext>,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// The right to be at work on it.
    pub lease: Lease,
    /// Cost types that only complete its messages.
    pub companions: Vec<EventType>,
    /// Types that only digests of arrays need.
    pub array_companions: Vec<EventType>,
    /// Types that end the waits it is told of; none if it is told of none, or of each at once.
    pub pending_companions: Vec<EventType>,
    /// Up to when it has heard of everything.
    pub heard: PendingWatermark,
    /// Digests of arrays.
    pub arrays: ArrayDigests,
    /// Costs that came before their message.
    pub costs: Costs,
    /// Cancelled once the bus has its consumer, so that no event passes it by.
    pub declared: CancellationToken,
    /// Somebody asked for dead letters to be delivered again.
    pub asked_again: Notify,
    /// What may be sent now.
    pub admission: Admission,
    pub(crate) failing: FailureState,
    pub(crate) halted: AtomicBool,
    places: ConcurrencyLimit,
    pub(crate) wake: Notify,
    under_way: Mutex<HashSet<String>>,
}

/// An event that is being handled.
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
    /// An endpoint, not yet at work.
    pub fn new(
        shared: Arc<WorkerContext>,
        endpoint: Endpoint,
        created_at: DateTime<Utc>,
        revision: i64,
        lease: Lease,
    ) -> Self {
        let companions = if endpoint.format.shows_costs() {
            pairing::companions(&endpoint.filter)
        } else {
            Vec::new()
        };
        let array_companions = if endpoint.digest {
            pairing::array_companions(&endpoint.filter)
        } else {
            Vec::new()
        };
        let pending_companions = if endpoint.format.is_chat() {
            pending::companions(&endpoint.filter)
        } else {
            Vec::new()
        };
        let costs = Costs::new(shared.cost_join_timeout);
        let places = ConcurrencyLimit::new(endpoint.concurrency, Arc::clone(&shared.places));
        let admission = Admission::new(endpoint.rules(), revision, endpoint.concurrency == 1);
        Self {
            shared,
            companions,
            array_companions,
            pending_companions,
            heard: PendingWatermark::default(),
            arrays: ArrayDigests::default(),
            costs,
            declared: CancellationToken::new(),
            asked_again: Notify::new(),
            admission,
            failing: FailureState::default(),
            halted: AtomicBool::new(false),
            places,
            wake: Notify::new(),
            under_way: Mutex::default(),
            endpoint,
            created_at,
            lease,
        }
    }

    /// Subjects of its consumer.
    pub fn subjects(&self) -> Vec<String> {
        let besides = [
            self.companions.as_slice(),
            &self.array_companions,
            &self.pending_companions,
        ]
        .concat();
        self.endpoint.filter.subjects(&besides)
    }

    /// True if an event is older than the endpoint wants: what waits before it is told ages from then on.
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

    /// Checked before anything is sent.
    ///
    /// # Errors
    /// If the database does not write, the lease is not ours any more, or the endpoint was just halted.
    pub fn may_send(&self) -> Result<(), Error> {
        if self.halted.load(Ordering::Acquire) {
            return Err(Error::Halted(self.endpoint.name.clone()));
        }
        self.shared.store.check_writes()?;
        self.lease.check()
    }

    /// Begins to handle an event; `None` while it is being handled already, as when the bus gave it out twice.
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

    /// Something became due.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Sends once and stores what follows, or lets it wait while nothing is to be sent.
    ///
    /// It keeps its place until that is on disk: an endpoint that sends one after the other has each find what the one before kept.
    ///
    /// # Errors
    /// If the database does not write, or a stored body is not an event.
    pub async fn deliver(
        &self,
        delivery: Delivery,
        observed: Option<DateTime<Utc>>,
    ) -> Result<(), Error> {
        let place = self.places.take().await;
        self.read_failing().await?;
        self.read_gate().await?;
        self.may_send()?;
        let sent = self.sent_notice(&delivery).await?;
        let Some(entry) = self.enter(&delivery) else {
            drop(place);
            return self.put_off(delivery).await;
        };
        let (mut delivery, signal) = self.attempt(delivery).await?;
        entry.ended(&mut delivery, &signal);
        if let (State::Delivered, Some((key, sent))) = (delivery.state, sent) {
            delivery.keep.push((key, Some(sent)));
        }
        let auto_disable = self.auto_disable_after(&mut delivery).await;
        if let (State::Delivered, Some(observed)) = (delivery.state, observed) {
            metrics::delivered(&self.endpoint.name, observed, delivery.updated_at);
        }
        self.store(delivery).await?;
        drop(place);
        if let Some(auto_disable) = auto_disable {
            // On the heap: it is rare, and would be a part of every delivery.
            Box::pin(self.auto_disable(auto_disable)).await;
        }
        Ok(())
    }

    /// Sends once and decides what follows.
    ///
    /// The first attempt is part of the event's trace, later ones are linked to it.
    ///
    /// # Errors
    /// If the database does not write, or a stored body is not an event.
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
            let sent = DeliveryContent::of(&delivery, &self.shared.cluster, &self.shared.facts)?;
            let keys = self.endpoint.format.keys(&sent.content());
            let kept = self.shared.store.kept(&self.endpoint.name, keys).await?;
            let at = clock::now();
            let sending = post::send_content(&self.shared.http, &self.endpoint, &sent, &kept, trace::traceparent());
            let attempted = tokio::select! {
                attempted = sending => attempted,
                // What comes of it is not ours to write.
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
            let rules = self.endpoint.rules();
            let signal = AttemptSignal::of(outcome, attempted.cause, attempted.status, &rules, now);
            let next = next_attempt(&self.endpoint.policy, attempt, delivery.began_at, outcome, now, rand::random());
            // A notice goes on being dropped if the wait it tells of ends.
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
                    tracing::debug!(error = attempted.verdict.error, next_at = %at, "not delivered, trying again");
                    delivery.next_at = Some(at);
                    delivery.error = attempted.verdict.error;
                    "retry"
                }
                Next::GiveUp { reason } => {
                    tracing::warn!(error = attempted.verdict.error, reason, "delivery given up, kept as a dead letter");
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
            metrics::attempted(&self.endpoint.name, result, attempted.elapsed);
            Ok((delivery, signal))
        }
        .instrument(span)
        .await
    }

    /// Stores what became of a delivery, and tells those who wait for it.
    ///
    /// # Errors
    /// If the database does not write.
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
            metrics::settled(&self.endpoint.name, state.as_str());
            self.shared.outcomes.notify_one();
        }
        if state == State::Waiting || missed {
            self.wake();
        }
        Ok(())
    }

    /// Hands a cost to the message that waits for it; true if there was one.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn join_cost(&self, pair: String, cost: Vec<u8>) -> Result<bool, Error> {
        let store = &self.shared.store;
        store
            .join_cost(
                self.lease.epoch,
                &self.endpoint.name,
                pair,
                cost,
                clock::now(),
            )
            .await
    }
}
