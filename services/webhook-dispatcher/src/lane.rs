//! One endpoint: its limits, its attempts, its retries. Nothing here is shared with another endpoint but the database's writer.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::{Bus, trace};
use mesh_events::{Event, EventType, from_timestamp};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::adapters::http::Http;
use crate::adapters::store::{Attempt, Delivery, State, Store};
use crate::admission::Admission;
use crate::arrays::Arrays;
use crate::config::Endpoint;
use crate::costs::Costs;
use crate::domain::gate::{Closed, Lesson};
use crate::domain::retry::{Next, next_attempt};
use crate::domain::{names, pairing};
use crate::error::Error;
use crate::facts::Facts;
use crate::halt::Failing;
use crate::lease::Lease;
use crate::places::Places;
use crate::post::Told;
use crate::{metrics, post};

/// A chat that missed events is told once none has come for so long.
const QUIET: Duration = Duration::from_secs(2);
/// After trouble with the database.
const PAUSE: Duration = Duration::from_secs(1);

/// What all endpoints use.
pub struct Shared {
    /// The bus.
    pub bus: Bus,
    /// The database.
    pub store: Store,
    /// HTTP clients.
    pub http: Http,
    /// Events on their way.
    pub facts: Facts,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// How long a chat message waits for its cost.
    pub cost_wait: Duration,
    /// An endpoint to which nothing has arrived for so long is paused; zero for never.
    pub pause_after: Duration,
    /// Outcomes are to be announced.
    pub outcomes: Notify,
    /// Requests that may be under way to all endpoints together.
    pub places: Arc<Semaphore>,
    /// Endpoints whose outcomes are announced here.
    pub owned: RwLock<Vec<String>>,
}

impl Shared {
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
pub struct Lane {
    /// What all endpoints use.
    pub shared: Arc<Shared>,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// When it was made.
    pub since: DateTime<Utc>,
    /// The right to be at work on it.
    pub lease: Lease,
    /// Cost types that only complete its messages.
    pub companions: Vec<EventType>,
    /// Types that only digests of arrays need.
    pub array_companions: Vec<EventType>,
    /// Digests of arrays.
    pub arrays: Arrays,
    /// Costs that came before their message.
    pub costs: Costs,
    /// Cancelled once the bus has its consumer, so that no event passes it by.
    pub declared: CancellationToken,
    /// Somebody asked for dead letters to be delivered again.
    pub asked_again: Notify,
    /// What may be sent now.
    pub admission: Admission,
    pub(crate) failing: Failing,
    pub(crate) halted: AtomicBool,
    places: Places,
    wake: Notify,
    under_way: Mutex<HashSet<String>>,
}

/// An event that is being handled.
pub struct UnderWay<'a> {
    lane: &'a Lane,
    event: String,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.lane.events_under_way().remove(&self.event);
    }
}

impl Lane {
    /// An endpoint, not yet at work.
    pub fn new(
        shared: Arc<Shared>,
        endpoint: Endpoint,
        since: DateTime<Utc>,
        revision: i64,
        lease: Lease,
    ) -> Self {
        let companions = if endpoint.format.is_chat() {
            pairing::companions(&endpoint.filter)
        } else {
            Vec::new()
        };
        let array_companions = if endpoint.digest {
            pairing::array_companions(&endpoint.filter)
        } else {
            Vec::new()
        };
        let costs = Costs::new(shared.cost_wait);
        let places = Places::new(endpoint.concurrency, Arc::clone(&shared.places));
        let admission = Admission::new(endpoint.rules(), revision, endpoint.concurrency == 1);
        Self {
            shared,
            companions,
            array_companions,
            arrays: Arrays::default(),
            costs,
            declared: CancellationToken::new(),
            asked_again: Notify::new(),
            admission,
            failing: Failing::default(),
            halted: AtomicBool::new(false),
            places,
            wake: Notify::new(),
            under_way: Mutex::default(),
            endpoint,
            since,
            lease,
        }
    }

    /// Subjects of its consumer.
    pub fn subjects(&self) -> Vec<String> {
        let besides = [self.companions.as_slice(), &self.array_companions].concat();
        self.endpoint.filter.subjects(&besides)
    }

    /// True if an event is older than the endpoint wants.
    pub fn is_too_old(&self, event: &Event, now: DateTime<Utc>) -> bool {
        let Some(limit) = self
            .endpoint
            .max_event_age
            .and_then(|age| TimeDelta::from_std(age).ok())
        else {
            return false;
        };
        event
            .occurred_at
            .as_ref()
            .and_then(from_timestamp)
            .is_some_and(|occurred| now - occurred > limit)
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
    pub fn begin(&self, event: &str) -> Option<UnderWay<'_>> {
        let began = self.events_under_way().insert(event.to_owned());
        began.then(|| UnderWay {
            lane: self,
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
        let Some(entry) = self.enter(&delivery) else {
            drop(place);
            return self.put_off(delivery).await;
        };
        let (mut delivery, lesson) = self.attempt(delivery).await?;
        entry.ended(&mut delivery, &lesson);
        let halt = self.halt_after(&mut delivery).await;
        if let (State::Delivered, Some(observed)) = (delivery.state, observed) {
            metrics::delivered(&self.endpoint.name, observed, delivery.updated_at);
        }
        self.store(delivery).await?;
        drop(place);
        if let Some(halt) = halt {
            self.halt(halt).await;
        }
        Ok(())
    }

    /// Sends once and decides what follows.
    ///
    /// The first attempt is part of the event's trace, later ones are linked to it.
    ///
    /// # Errors
    /// If the database does not write, or a stored body is not an event.
    async fn attempt(&self, mut delivery: Delivery) -> Result<(Delivery, Lesson), Error> {
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
            let told = Told::of(&delivery, &self.shared.cluster, &self.shared.facts)?;
            let keys = self.endpoint.format.keys(&told.content());
            let kept = self.shared.store.kept(&self.endpoint.name, keys).await?;
            let at = Utc::now();
            let attempted = post::tell(&self.shared.http, &self.endpoint, &told, &kept, trace::traceparent()).await;
            delivery.keep = attempted.verdict.keep;
            let now = Utc::now();
            delivery.attempts = attempt;
            delivery.status = attempted.status;
            delivery.cause = attempted.cause;
            delivery.updated_at = now;
            delivery.pair = None;
            delivery.next_at = None;
            Span::current().record("status", attempted.status);
            let outcome = &attempted.verdict.outcome;
            let lesson = Lesson::of(outcome, attempted.cause, attempted.status, now);
            let next = next_attempt(&self.endpoint.policy, attempt, delivery.began_at, outcome, now, rand::random());
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
            Ok((delivery, lesson))
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
                Utc::now(),
            )
            .await
    }

    /// Sends what is due, at most as many at a time as the endpoint allows, until told to stop; then finishes what is under way.
    pub async fn retry(self: Arc<Self>, shutdown: CancellationToken) {
        let mut tasks: JoinSet<String> = JoinSet::new();
        let mut under_way: HashSet<String> = HashSet::new();
        while !shutdown.is_cancelled() {
            let pause = match self.start_due(&mut tasks, &mut under_way).await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        endpoint = self.endpoint.name,
                        "look for due deliveries"
                    );
                    PAUSE
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
                Some(Ok(done)) = tasks.join_next() => { under_way.remove(&done); }
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Starts what is due; returns how long nothing else will be.
    async fn start_due(
        self: &Arc<Self>,
        tasks: &mut JoinSet<String>,
        under_way: &mut HashSet<String>,
    ) -> Result<Duration, Error> {
        let (store, name) = (&self.shared.store, &self.endpoint.name);
        if self.may_send().is_err() {
            // Woken when the database writes again; a lease that was not renewed in time may yet be.
            return Ok(PAUSE);
        }
        let now = Utc::now();
        let mut pause = self.report_missed(now).await?;
        pause = pause.min(self.tick_digests(now).await?);
        self.read_gate().await?;
        let room = match self.admission.room(now) {
            Ok(room) => room.min(self.endpoint.concurrency),
            Err(Closed::Until(until)) => {
                return Ok(pause.min((until - now).to_std().unwrap_or_default()));
            }
            // Woken when it has ended.
            Err(Closed::Probing) => return Ok(pause),
        };
        let look = self.admission.look();
        let due = store.due(name, now, room + under_way.len()).await?;
        if due.is_empty() {
            self.admission.nobody_waits(look);
        }
        let mut started = 0;
        for id in due {
            if started >= room {
                break;
            }
            if tasks.len() >= self.endpoint.concurrency {
                // One that ends makes room, and wakes us.
                return Ok(Duration::from_secs(60));
            }
            if under_way.insert(id.clone()) {
                started += 1;
                let lane = Arc::clone(self);
                tasks.spawn(async move {
                    if let Err(error) = lane.try_again(&id).await
                        && !matches!(error, Error::Halted(_))
                    {
                        tracing::error!(
                            error = &error as &dyn std::error::Error,
                            event.id = id,
                            endpoint = lane.endpoint.name,
                            "deliver again"
                        );
                        tokio::time::sleep(PAUSE).await;
                    }
                    id
                });
            }
        }
        if let Some(next) = store.next_due(name, now).await? {
            pause = pause.min((next - now).to_std().unwrap_or_default());
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
        let now = Utc::now();
        let event = names::is_event(id)
            .then(|| delivery.event(&self.shared.facts))
            .transpose()?;
        let observed = event
            .as_ref()
            .and_then(|event| event.observed_at.as_ref())
            .and_then(from_timestamp);
        // Who has an event told or delivered once more wants it, however old it is.
        let told_again = names::replay(id).is_some() || delivery.round > 0;
        if event.is_some_and(|event| !told_again && self.is_too_old(&event, now)) {
            delivery.state = State::Expired;
            delivery.updated_at = now;
            delivery.next_at = None;
            return self.store(delivery).await;
        }
        self.deliver(delivery, observed).await
    }

    /// Puts "N events while away" into the queue once no more come; returns how long to wait for that.
    async fn report_missed(&self, now: DateTime<Utc>) -> Result<Duration, Error> {
        let long = Duration::from_secs(60);
        let Some((first, last)) = self.shared.store.missed(&self.endpoint.name).await? else {
            return Ok(long);
        };
        let quiet = (now - last).to_std().unwrap_or_default();
        if let Some(left) = QUIET.checked_sub(quiet).filter(|left| !left.is_zero()) {
            return Ok(left);
        }
        let id = names::away_id(&self.endpoint.name, &first);
        let report = Delivery::message(&self.endpoint.name, id, Vec::new(), now);
        let store = &self.shared.store;
        store.report_missed(self.lease.epoch, report).await?;
        Ok(long)
    }
}
