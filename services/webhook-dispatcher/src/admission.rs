//! What may be sent now: the endpoint's gate, asked before every attempt and taught by what comes of it.
//!
//! Who is not let in waits as a row in the database and holds no place, neither of the consumer nor among the requests under way. Where
//! events go one after the other, or at a limited rate, those that come later queue behind it, so the order stays.
//!
//! What the gate knows is kept with the delivery that taught it, so another dispatcher goes on with it. An endpoint that was changed or
//! resumed begins anew.

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

/// Under it the gate is kept.
pub const KEY: &str = "gate";

/// A gate as it is kept.
#[derive(Debug, Deserialize, Serialize)]
pub struct StoredGate {
    /// Of the endpoint; another one begins anew.
    pub revision: i64,
    /// How it stood.
    pub state: State,
}

impl StoredGate {
    /// How the gate of an endpoint of this revision stood.
    pub fn read(text: Option<&String>, revision: i64) -> State {
        text.and_then(|text| serde_json::from_str::<Self>(text).ok())
            .filter(|kept| kept.revision == revision)
            .map(|kept| kept.state)
            .unwrap_or_default()
    }
}

/// The gate of an endpoint at work, and who waits in front of it.
pub struct Admission {
    rules: AdmissionRules,
    revision: i64,
    /// True if what comes later must not overtake.
    ordered: bool,
    /// `None` until it was read.
    gate: Mutex<Option<Gate>>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// True while somebody may be waiting.
    waiting: bool,
    /// Counts those who began or ended to queue.
    number: u64,
}

impl Admission {
    /// Of an endpoint that is not at work yet.
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

    /// Somebody queues; true if nobody did.
    fn queue(&self) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.number += 1;
        !std::mem::replace(&mut queue.waiting, true)
    }

    fn must_queue(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.ordered && queue.waiting
    }

    /// To be given to [`Admission::nobody_waits`].
    pub fn look(&self) -> u64 {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.number
    }

    /// Nobody waited at that look.
    pub fn nobody_waits(&self, look: u64) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.waiting &= queue.number != look;
    }

    /// How many would be let in now.
    ///
    /// # Errors
    /// If nobody is: why.
    pub fn room(&self, now: DateTime<Utc>) -> Result<usize, Closed> {
        self.with(|gate| gate.room(&self.rules, now))
    }
}

/// The right to make one attempt. Released without a signal, it changes nothing.
pub struct AdmissionPermit<'a> {
    worker: &'a EndpointWorker,
    pass: Option<CircuitPermit>,
}

impl EndpointWorker {
    /// Reads how the gate stood, before the first attempt.
    ///
    /// # Errors
    /// If the database does not read.
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

    /// Counts a test in the endpoint's rate; whether the circuit is open is what tests are to find out. Gives the time when one may come,
    /// if the rate is used up.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn spend(&self, now: DateTime<Utc>) -> Result<Result<(), DateTime<Utc>>, Error> {
        self.read_gate().await?;
        let rules = &self.admission.rules;
        Ok(self.admission.with(|gate| gate.spend(rules, now)))
    }

    /// Asks to make an attempt at a delivery; one that waits already comes before those that are new.
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
            // Who looks for what is due learns when the next may go.
            self.wake();
        }
        let pass = Some(pass);
        Some(AdmissionPermit { worker: self, pass })
    }

    /// Lets a delivery wait that was not let in.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn put_off(&self, mut delivery: Delivery) -> Result<(), Error> {
        if delivery.next_at.is_some() {
            // It waits already.
            return Ok(());
        }
        delivery.next_at = Some(delivery.created_at);
        let mut first = self.admission.queue();
        let saved = self.shared.store.save(self.lease.epoch, delivery).await;
        // A look in between may have found nobody.
        first |= self.admission.queue();
        if first || self.admission.room(clock::now()).is_ok() {
            self.wake();
        }
        saved
    }
}

impl AdmissionPermit<'_> {
    /// What came of the attempt; what the gate makes of it is kept with the delivery.
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
