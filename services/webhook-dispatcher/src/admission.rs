//! Decides whether a request may be sent now. The endpoint's gate is checked before every attempt and updated by its
//! result.
//!
//! A delivery that is not admitted waits as a row in the database. It occupies neither the consumer nor a concurrency
//! permit. Where order matters (concurrency 1 or a rate limit), later deliveries queue behind it.
//!
//! The gate's state is stored with the delivery that changed it, so another dispatcher can take over. It is reset
//! when the endpoint is changed or resumed.

use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::adapters::store::Delivery;
use crate::clock;
use crate::domain::circuit::CircuitPermit;
use crate::domain::gate::{AdmissionRules, AttemptSignal, Closed, Gate, State};
use crate::endpoint_worker::EndpointWorker;
use crate::error::Error;
use crate::metrics;

/// Key of the stored gate.
pub const KEY: &str = "gate";

/// The gate as stored.
#[derive(Debug, Deserialize, Serialize)]
pub struct StoredGate {
    /// Revision of the endpoint. The state is discarded if it differs.
    pub revision: i64,
    /// State of the circuit breaker and of the pause.
    pub state: State,
}

impl StoredGate {
    /// Reads the stored state. Returns the default if there is none, or if it is of another revision.
    pub fn read(text: Option<&String>, revision: i64) -> State {
        text.and_then(|text| serde_json::from_str::<Self>(text).ok())
            .filter(|kept| kept.revision == revision)
            .map(|kept| kept.state)
            .unwrap_or_default()
    }
}

/// The gate of a running endpoint, and its queue.
pub struct Admission {
    rules: AdmissionRules,
    revision: i64,
    /// True if later deliveries must not overtake earlier ones.
    ordered: bool,
    /// `None` until read from the database.
    gate: Mutex<Option<Gate>>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// True while deliveries may be queued.
    waiting: bool,
    /// Incremented whenever a delivery is queued.
    number: u64,
}

impl Admission {
    /// Admission for an endpoint that has not started.
    pub fn new(rules: AdmissionRules, revision: i64, ordered: bool) -> Self {
        Self {
            rules,
            revision,
            ordered: ordered || rules.limit.is_some(),
            gate: Mutex::default(),
            queue: Mutex::default(),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Gate) -> T) -> T {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        act(gate.get_or_insert_default())
    }

    /// Records that a delivery is queued. Returns true if the queue was empty.
    fn queue(&self) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.number += 1;
        !std::mem::replace(&mut queue.waiting, true)
    }

    fn must_queue(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.ordered && queue.waiting
    }

    /// Returns a version of the queue for [`Admission::nobody_waits`].
    pub fn look(&self) -> u64 {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.number
    }

    /// Marks the queue as empty, unless it has changed since that version was read.
    pub fn nobody_waits(&self, look: u64) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.waiting &= queue.number != look;
    }

    /// Number of requests that would be admitted now.
    ///
    /// # Errors
    /// The reason, if there are none.
    pub fn room(&self, now: DateTime<Utc>) -> Result<usize, Closed> {
        self.with(|gate| gate.room(&self.rules, now))
    }
}

/// Permission to make one attempt. Dropping it without a signal changes nothing.
pub struct AdmissionPermit<'a> {
    worker: &'a EndpointWorker,
    pass: Option<CircuitPermit>,
}

impl EndpointWorker {
    /// Restores the gate's state before the first attempt.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn read_gate(&self) -> Result<(), Error> {
        let admission = &self.admission;
        let unread = || {
            let gate = admission.gate.lock();
            gate.unwrap_or_else(PoisonError::into_inner).is_none()
        };
        if !unread() {
            return Ok(());
        }
        let (store, name) = (&self.shared.store, &self.endpoint.name);
        let kept = store.kept(name, vec![KEY.to_owned()]).await?;
        let state = StoredGate::read(kept.get(KEY), admission.revision);
        metrics::circuit(name, state.open.is_some());
        let mut gate = admission.gate.lock();
        let gate = gate.as_mut().map_err(|poisoned| poisoned.get_mut());
        let (Ok(gate) | Err(gate)) = gate;
        gate.get_or_insert_with(|| Gate::new(state));
        Ok(())
    }

    /// Counts a test request against the rate limit. The circuit breaker is not consulted, as a test is meant to find
    /// out whether the receiver works. Returns the earliest time for the test if the limit is exhausted.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn spend(&self, now: DateTime<Utc>) -> Result<Result<(), DateTime<Utc>>, Error> {
        self.read_gate().await?;
        let rules = &self.admission.rules;
        Ok(self.admission.with(|gate| gate.spend(rules, now)))
    }

    /// Requests permission for an attempt. Deliveries that already wait take precedence over new ones.
    pub fn enter(&self, delivery: &Delivery) -> Option<AdmissionPermit<'_>> {
        let waits = delivery.next_at.is_some();
        if !waits && self.admission.must_queue() {
            return None;
        }
        let rules = &self.admission.rules;
        let pass = self
            .admission
            .with(|gate| gate.enter(rules, clock::now()))?;
        if rules.limit.is_some() {
            // The loop for due deliveries recomputes the time of the next attempt.
            self.wake();
        }
        let pass = Some(pass);
        Some(AdmissionPermit { worker: self, pass })
    }

    /// Queues a delivery that was not admitted.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn put_off(&self, mut delivery: Delivery) -> Result<(), Error> {
        if delivery.next_at.is_some() {
            // It is queued already.
            return Ok(());
        }
        delivery.next_at = Some(delivery.created_at);
        let mut first = self.admission.queue();
        let saved = self.shared.store.save(self.lease.epoch, delivery).await;
        // A concurrent poll may have found the queue empty.
        first |= self.admission.queue();
        if first || self.admission.room(clock::now()).is_ok() {
            self.wake();
        }
        saved
    }
}

impl AdmissionPermit<'_> {
    /// Updates the gate with the result of the attempt. A changed state is stored with the delivery.
    pub fn ended(mut self, delivery: &mut Delivery, signal: &AttemptSignal) {
        let Some(pass) = self.pass.take() else {
            return;
        };
        let admission = &self.worker.admission;
        let (now, jitter) = (delivery.updated_at, rand::random());
        let error = &delivery.error;
        let (before, changed, state) = admission.with(|gate| {
            let before = gate.state();
            let changed = gate.ended(pass, signal, error, &admission.rules, now, jitter);
            (before, changed, gate.state())
        });
        if matches!(pass, CircuitPermit::Probe(_)) || changed {
            self.worker.wake();
        }
        if !changed {
            return;
        }
        let name = &self.worker.endpoint.name;
        match (&before.open, &state.open) {
            (None, Some(open)) => {
                tracing::warn!(
                    endpoint = name,
                    reason = open.reason,
                    "circuit is open: nothing is sent but a probe now and then"
                );
                metrics::circuit_opened(name);
            }
            (Some(open), None) => {
                tracing::info!(endpoint = name, since = %open.since, "circuit is closed again");
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        metrics::circuit(name, state.open.is_some());
        let kept = (state != State::default()).then(|| {
            let revision = admission.revision;
            serde_json::json!(StoredGate { revision, state }).to_string()
        });
        delivery.keep.push((KEY.to_owned(), kept));
    }
}

impl Drop for AdmissionPermit<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.worker.admission.with(|gate| gate.abandon(pass));
            self.worker.wake();
        }
    }
}
