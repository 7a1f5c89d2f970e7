//! Deliveries of one endpoint, the [`EndpointWorker`]. Endpoints share only the resources of [`WorkerContext`].
//!
//! - [`loops`]: the tasks of an endpoint, which run only while they have something to do ([`on_demand`]);
//!   [`worker_context`]: what all endpoints share; [`lease`]: the right to send.
//! - [`handlers`]: events of the queue; [`catch_up`]: events that the queue missed; [`replays`]: replayed events.
//! - [`due`]: retries, digests and notices that are due; [`redeliver`]: dead letters that are sent again.
//! - [`array_digests`], [`pending`], [`costs`]: messages that are put together from several events.
//! - [`spending`]: what owners have spent, for messages to them alone.
//! - [`admission`], [`concurrency_limit`], [`auto_disable`]: whether a request may be sent now.
//! - [`endpoint_worker`]: one attempt, and what it leaves in the store; [`post`], [`http`]: its requests.
//! - [`outbox_publisher`]: audit entries and dead letters; [`retention_schedule`]: deletion of old outcomes.

pub mod admission;
pub mod array_digests;
pub mod auto_disable;
pub mod catch_up;
pub mod concurrency_limit;
pub mod costs;
pub mod due;
pub mod endpoint_worker;
pub mod handlers;
pub mod http;
pub mod lease;
pub mod loops;
pub mod on_demand;
pub mod outbox_publisher;
pub mod pending;
pub mod post;
pub mod redeliver;
pub mod replays;
pub mod retention_schedule;
pub mod spending;
pub mod worker_context;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex, Weak};

use chrono::{DateTime, Utc};
use event_filter::{Filter, TypeSet};
use event_message::{cancellation, pairing};
use mesh_events::catalogue::SLURM_EVENTS;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::config::Endpoint;
use crate::metrics::DeliveryMetrics;
use crate::stream::queue::{EventHandler, EventQueue};
use crate::stream::subscription::Subscription;
use admission::Admission;
use array_digests::ArrayDigests;
use auto_disable::FailureState;
use concurrency_limit::ConcurrencyLimit;
use lease::Lease;
use loops::Loops;
use pending::PendingWatermark;
use worker_context::WorkerContext;

/// Events that wait for an endpoint in memory, at least.
const MIN_QUEUE_LENGTH: usize = 64;

/// The running state of one endpoint. Its loops run on demand: an idle endpoint has no task.
pub struct EndpointWorker {
    loops: Loops,
    /// When the loop for due deliveries looked last, in milliseconds.
    pub(crate) due_looked_at: AtomicI64,
    /// Resources shared by all endpoints.
    pub shared: Arc<WorkerContext>,
    /// The validated configuration.
    pub endpoint: Arc<Endpoint>,
    /// When the endpoint was created.
    pub created_at: DateTime<Utc>,
    /// Lease that permits this dispatcher to send.
    pub lease: Lease,
    /// Cancelled when the worker has to stop.
    pub stop: CancellationToken,
    /// Cost event types consumed only to complete messages.
    pub companions: TypeSet,
    /// Event types consumed only for array digests.
    pub array_companions: TypeSet,
    /// Event types that end a wait. Empty if the endpoint receives no pending notices, or receives each of them
    /// immediately.
    pub pending_companions: TypeSet,
    /// Time up to which all events have been consumed.
    pub watermark: PendingWatermark,
    /// Digests of job arrays.
    pub arrays: ArrayDigests,
    /// Its events that are read and not settled.
    pub events: Arc<EventQueue>,
    /// Cancelled once its position is stored: from then on no event is missed.
    pub declared: CancellationToken,
    /// Decides whether a request may be sent now.
    pub admission: Admission,
    pub(crate) failing: FailureState,
    pub(crate) halted: AtomicBool,
    metrics: DeliveryMetrics,
    in_flight_limit: ConcurrencyLimit,
    pub(crate) wake: Notify,
    under_way: Mutex<HashSet<String>>,
}

impl EndpointWorker {
    /// A worker that has not started.
    pub fn new(
        shared: Arc<WorkerContext>,
        endpoint: Arc<Endpoint>,
        is_active: bool,
        created_at: DateTime<Utc>,
        revision: i64,
        lease: Lease,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let only_if = |is_needed: bool, companions: fn(&Filter) -> TypeSet| match is_needed {
            true => companions(&endpoint.filter),
            false => TypeSet::default(),
        };
        let format = &endpoint.format;
        let companions = only_if(format.shows_costs(), pairing::companions);
        let array_companions = only_if(endpoint.digest, pairing::array_companions);
        let pending_companions = only_if(format.is_chat(), |filter| {
            event_message::pending::companions(filter) | cancellation::companions(filter)
        });
        let besides = companions | array_companions | pending_companions;
        let subscription = Subscription::new(Arc::clone(&endpoint.filter), besides, created_at);
        let in_flight_limit =
            ConcurrencyLimit::new(endpoint.concurrency, Arc::clone(&shared.in_flight_limit));
        let admission = Admission::new(endpoint.rules, revision);
        Arc::new_cyclic(|this| Self {
            events: Arc::new(EventQueue::new(
                &endpoint.name,
                SLURM_EVENTS,
                shared.reader.key(),
                subscription,
                (2 * endpoint.concurrency).max(MIN_QUEUE_LENGTH),
                this.clone() as Weak<dyn EventHandler>,
            )),
            loops: Loops::new(Weak::clone(this), is_active),
            due_looked_at: AtomicI64::new(i64::MAX),
            shared,
            companions,
            array_companions,
            pending_companions,
            watermark: PendingWatermark::default(),
            arrays: ArrayDigests::default(),
            declared: CancellationToken::new(),
            admission,
            failing: FailureState::default(),
            halted: AtomicBool::new(false),
            metrics: DeliveryMetrics::default(),
            in_flight_limit,
            wake: Notify::new(),
            under_way: Mutex::default(),
            endpoint,
            created_at,
            lease,
            stop,
        })
    }
}
