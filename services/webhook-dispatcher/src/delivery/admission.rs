//! Decides whether a request may be sent now. The endpoint's gate is checked before every attempt and updated by its
//! result.
//!
//! An event that is not admitted is not written. While the rate limit is exhausted, it waits in the endpoint's bounded
//! queue. While the circuit is open, or the receiver asked for a pause, the endpoint is detached from the reader and
//! reads on from its cursor afterwards.
//!
//! The gate's state is stored with the delivery that changed it, so another dispatcher can take over. It is reset
//! when the endpoint is changed or resumed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::attempt::circuit::CircuitPermit;
use crate::attempt::gate::{AdmissionRules, Closed, Gate, STORED_GATE_KEY, State, StoredGate};
use crate::attempt::signal::AttemptSignal;
use crate::clock;
use crate::delivery::EndpointWorker;
use crate::error::Error;
use crate::metrics;
use crate::store::Delivery;

/// Maximum wait between two checks of the rate limit: the clock may be set.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The gate of a running endpoint.
pub struct Admission {
    rules: AdmissionRules,
    revision: i64,
    /// `None` until read from the database.
    gate: Mutex<Option<Gate>>,
    /// New events are admitted one after the other, in their order.
    pub turn: tokio::sync::Mutex<()>,
    /// True while due deliveries wait for the rate limit. They go before new events.
    has_due: AtomicBool,
    changed: Notify,
}

impl Admission {
    /// Admission for an endpoint that has not started.
    pub fn new(rules: AdmissionRules, revision: i64) -> Self {
        Self {
            rules,
            revision,
            gate: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            has_due: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Gate>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Gate) -> T) -> T {
        act(self.lock().get_or_insert_default())
    }

    /// Sets whether due deliveries wait for the rate limit.
    pub fn set_has_due(&self, has_due: bool) {
        let has_due = has_due && self.rules.limit.is_some();
        if self.has_due.swap(has_due, Ordering::AcqRel) != has_due {
            self.changed.notify_waiters();
        }
    }

    /// Completes at the next change of the gate.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// True if the circuit is open or the receiver asked for a pause, also while a probe is due or under way.
    pub fn is_suspended(&self) -> bool {
        self.with(|gate| gate.is_suspended())
    }

    /// Number of requests that would be admitted now.
    ///
    /// # Errors
    /// The reason, if there are none.
    pub fn available(&self, now: DateTime<Utc>) -> Result<usize, Closed> {
        self.with(|gate| gate.available(&self.rules, now, Instant::now()))
    }
}

/// Permission to make one attempt. Dropping it without a signal changes nothing.
pub struct AdmissionPermit<'a> {
    worker: &'a EndpointWorker,
    permit: Option<CircuitPermit>,
}

impl EndpointWorker {
    /// Restores the gate's state before the first attempt.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn read_gate(&self) -> Result<(), Error> {
        let admission = &self.admission;
        if admission.lock().is_some() {
            return Ok(());
        }
        let stored = self.rows().provider_state(STORED_GATE_KEY).await?;
        let state = StoredGate::read(stored.as_ref(), admission.revision);
        metrics::circuit(&self.endpoint.name, state.open.is_some());
        admission.lock().get_or_insert_with(|| Gate::new(state));
        Ok(())
    }

    /// Counts a test request against the rate limit. The circuit breaker is not consulted, as a test is meant to find
    /// out whether the receiver works. Returns how long the limit is exhausted, if it is.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn charge(&self) -> Result<Result<(), Duration>, Error> {
        self.read_gate().await?;
        let (admission, now) = (&self.admission, Instant::now());
        Ok(admission.with(|gate| gate.charge(&admission.rules, now)))
    }

    /// Waits until the rate limit admits a new event.
    ///
    /// # Errors
    /// If the circuit is open, the receiver asked for a pause, or the worker stops.
    pub async fn until_admitted(&self) -> Result<(), Error> {
        let admission = &self.admission;
        loop {
            let changed = admission.changed();
            let wait = match admission.available(clock::now()) {
                Ok(_) if !admission.has_due.load(Ordering::Acquire) => return Ok(()),
                // The loop for due deliveries takes what there is.
                Ok(_) => MAX_WAIT,
                Err(Closed::Limited(wait)) => wait,
                Err(Closed::Until(_) | Closed::Probing) => return Err(self.not_admitted()),
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(wait.min(MAX_WAIT)) => {}
                () = self.stop.cancelled() => return Err(self.not_admitted()),
            }
        }
    }

    fn not_admitted(&self) -> Error {
        Error::NotAdmitted(self.endpoint.name.clone())
    }

    /// Requests permission for an attempt.
    pub fn try_acquire(&self) -> Option<AdmissionPermit<'_>> {
        let rules = &self.admission.rules;
        let permit = self
            .admission
            .with(|gate| gate.try_acquire(rules, clock::now(), Instant::now()))?;
        if rules.limit.is_some() {
            // The loop for due deliveries recomputes the time of the next attempt.
            self.wake();
        }
        let permit = Some(permit);
        Some(AdmissionPermit {
            worker: self,
            permit,
        })
    }

    /// Wakes what waits for the gate.
    fn gate_changed(&self) {
        self.wake();
        self.admission.changed.notify_waiters();
    }
}

impl AdmissionPermit<'_> {
    /// Updates the gate with the result of the attempt. A changed state is stored with the delivery.
    pub fn record_result(mut self, delivery: &mut Delivery, signal: &AttemptSignal) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        let admission = &self.worker.admission;
        let (now, jitter) = (delivery.updated_at, rand::random());
        let error = &delivery.error;
        let (before, changed, state) = admission.with(|gate| {
            let before = gate.state();
            let changed = gate.record_result(permit, signal, error, &admission.rules, now, jitter);
            (before, changed, gate.state())
        });
        if matches!(permit, CircuitPermit::Probe(_)) || changed {
            self.worker.gate_changed();
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
                    "circuit opened, only probes are sent"
                );
                metrics::circuit_opened(name);
            }
            (Some(open), None) => {
                tracing::info!(endpoint = name, since = %open.since, "circuit closed");
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        metrics::circuit(name, state.open.is_some());
        let provider_state = (state != State::default()).then(|| {
            let revision = admission.revision;
            serde_json::json!(StoredGate { revision, state }).to_string()
        });
        delivery
            .keep
            .push((STORED_GATE_KEY.to_owned(), provider_state));
    }
}

impl Drop for AdmissionPermit<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.worker.admission.with(|gate| gate.release(permit));
            self.worker.gate_changed();
        }
    }
}
