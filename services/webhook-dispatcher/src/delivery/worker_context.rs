//! What all endpoints of a dispatcher share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use mesh_bus::Bus;
use tokio::sync::{Notify, Semaphore, watch};

use crate::delivery::costs::Costs;
use crate::delivery::http::Http;
use crate::delivery::spending::SpendingWait;
use crate::reader::EventReader;
use crate::store::Store;
use crate::stream::event_cache::EventCache;

/// Resources shared by all endpoints.
pub struct WorkerContext {
    /// Connection to NATS.
    pub bus: Bus,
    /// Deliveries, endpoints and leases.
    pub store: Store,
    /// HTTP clients.
    pub http: Http,
    /// Recently decoded events.
    pub event_cache: EventCache,
    /// Slurm's `ClusterName`.
    pub cluster: String,
    /// Costs that arrived before their message.
    pub costs: Costs,
    /// How long a chat message waits for its cost.
    pub cost_join_timeout: Duration,
    /// Whether messages wait for what their owners have spent.
    pub spending_wait: SpendingWait,
    /// Pauses an endpoint after this time without a successful delivery. Zero: never.
    pub auto_disable_after: Duration,
    /// Signals that there are outcomes to publish.
    pub outcomes: Notify,
    /// Limits the requests in flight over all endpoints.
    pub in_flight_limit: Arc<Semaphore>,
    /// Endpoints whose outcomes this dispatcher publishes.
    pub owned: RwLock<Vec<String>>,
    /// The reader of the public bus.
    pub reader: EventReader,
    /// Endpoints that have, or had, events of replays, with the sequence of the last one.
    pub replayed: Mutex<BTreeMap<String, u64>>,
    /// Names of all endpoints. `None` before the first read of the database.
    pub names: watch::Sender<Option<BTreeSet<String>>>,
}

impl WorkerContext {
    /// Endpoints that have, or had, events of replays, with the sequence of the last one.
    pub fn replayed(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.replayed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the endpoints that this dispatcher owns.
    pub fn owned(&self, endpoints: Vec<String>) {
        let mut owned = self.owned.write().unwrap_or_else(PoisonError::into_inner);
        if *owned != endpoints {
            *owned = endpoints;
            self.outcomes.notify_one();
        }
    }
}
