//! The endpoints that this dispatcher owns.
//!
//! Reconciles once a second, and whenever something changed locally: sends a heartbeat, reads the live replicas and
//! the endpoints, and takes or releases leases as planned by [`ownership`](crate::store::ownership). Each owned
//! endpoint runs in its own task. When its definition changes, the task finishes the requests in flight and a new
//! task starts.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mesh_runtime::Condition;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::delivery::EndpointWorker;
use crate::delivery::lease::Lease;
use crate::delivery::worker_context::WorkerContext;
use crate::endpoint::active_endpoint::{ActiveEndpoint, begin};
use crate::endpoint::registry::Registry;
use crate::error::Error;
use crate::store::endpoints::{Activity, EndpointRow, EndpointSummary, Source};
use crate::store::ownership::{LeasePlan, StoredLease, plan};
use crate::store::replicas::TTL;

mod unlisted;

/// Interval between reconciliations of the workers.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A dispatcher stops sending this long before others may take its leases.
const MARGIN: Duration = Duration::from_secs(1);

/// Endpoints whose definitions are read at once.
const START_BATCH_SIZE: usize = 256;

/// Log message for a lost lease.
const TAKEN: &str = "lease lost: another dispatcher takes over the endpoint";

/// How long an API request waits until its change is active.
const APPLY_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The endpoints that this dispatcher owns.
pub struct WorkerPool {
    shared: Arc<WorkerContext>,
    registry: Arc<Registry>,
    validity: watch::Sender<Option<Instant>>,
    running: Mutex<BTreeMap<String, ActiveEndpoint>>,
    /// Endpoints that were paused or disabled at the last poll.
    halted: Mutex<BTreeSet<String>>,
    wake: Arc<Notify>,
    /// Whether the endpoints of `mesh.toml` have changed since the other dispatchers were informed.
    relist: AtomicBool,
    /// The state of the database at the last reconciliation, see [`Store::changes`](crate::store::Store::changes).
    seen: AtomicU64,
}

impl WorkerPool {
    /// An empty pool. [`WorkerPool::run`] starts it.
    pub fn new(shared: Arc<WorkerContext>, registry: Arc<Registry>) -> Self {
        Self {
            shared,
            registry,
            validity: watch::Sender::default(),
            running: Mutex::default(),
            halted: Mutex::default(),
            wake: Arc::default(),
            relist: AtomicBool::default(),
            seen: AtomicU64::new(u64::MAX),
        }
    }

    /// Triggers a reconciliation.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Registers the endpoints of `mesh.toml` again, before the next look at the stored ones.
    pub fn list_again(&self) {
        self.relist.store(true, Ordering::Release);
    }

    /// Starts workers of endpoints again, with their definitions of now. Requests in flight are finished before.
    pub fn restart(&self, endpoints: &[String]) {
        for name in endpoints {
            if let Some(running) = self.running().get_mut(name) {
                running.stop();
            }
        }
        self.wake();
    }

    /// Waits up to `APPLY_TIMEOUT` until a change is active, so that events published after the API's response are
    /// handled by the new definition. If another dispatcher owns the endpoint, or NATS is unavailable, the change
    /// becomes active later.
    pub async fn applied(&self, name: &str, revision: i64) {
        self.wake();
        let until = Instant::now() + APPLY_TIMEOUT;
        while Instant::now() < until && !self.is_applied(name, revision) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn is_applied(&self, name: &str, revision: i64) -> bool {
        self.running().get(name).is_some_and(|running| {
            let declared = |worker: &Arc<EndpointWorker>| worker.declared.is_cancelled();
            running.revision >= revision && running.worker.as_ref().is_none_or(declared)
        })
    }

    /// The worker of an endpoint, if this dispatcher runs it.
    pub fn worker(&self, name: &str) -> Option<Arc<EndpointWorker>> {
        self.running().get(name)?.worker.clone()
    }

    /// Local endpoints whose positions are not stored yet, with the tokens that signal it.
    fn undeclared(&self) -> Vec<(String, CancellationToken)> {
        let all = self.running();
        let undeclared = all.iter().filter_map(|(name, running)| {
            let declared = &running.worker.as_ref()?.declared;
            (!declared.is_cancelled()).then(|| (name.clone(), declared.clone()))
        });
        undeclared.collect()
    }

    /// Wakes the workers of endpoints for which deliveries wait.
    pub async fn wake_waiting(&self) -> Result<(), Error> {
        for name in self.shared.store.with_waiting().await? {
            if let Some(worker) = self.worker(&name) {
                worker.wake();
            }
        }
        Ok(())
    }

    /// Runs until shutdown, then finishes the requests in flight for at most `patience` and releases every lease. The
    /// next owner repeats requests that were not answered by then.
    ///
    /// The condition becomes ready once every endpoint found at the start has a position. Endpoints created later
    /// do not affect it; their API request waits for them.
    pub async fn run(&self, condition: Condition, shutdown: CancellationToken, patience: Duration) {
        let out_of_patience = async {
            shutdown.cancelled().await;
            tokio::time::sleep(patience).await;
        };
        let mut out_of_patience = pin!(out_of_patience);
        let mut has_given_up = false;
        let mut id = String::new();
        let mut is_declared = false;
        loop {
            let leaving = shutdown.is_cancelled();
            let mut missing = Vec::new();
            match self.reconcile(&mut id, leaving).await {
                Ok(()) => {
                    if !is_declared {
                        missing = self.undeclared();
                    }
                    is_declared |= missing.is_empty();
                    match missing.first() {
                        Some((name, _)) => condition.fail(format!(
                            "cursor of {name} not stored yet: events published before may not reach it"
                        )),
                        None => condition.ok(),
                    }
                }
                Err(error) => {
                    let error = mesh_runtime::error_chain(&error);
                    tracing::warn!(error, "assigning endpoints failed, retrying");
                    condition.fail(error);
                }
            }
            if leaving && self.running().is_empty() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.wake.notified() => {}
                // Reconcile once when the last position is stored. Doing so for each would be quadratic in the number
                // of endpoints.
                () = all(&missing), if !missing.is_empty() => {}
                () = shutdown.cancelled(), if !leaving => {}
                () = &mut out_of_patience, if !has_given_up => {
                    has_given_up = true;
                    self.cancel_leases("shutdown deadline reached: requests in flight will be repeated", |_| true);
                }
            }
        }
        if let Err(error) = self.shared.store.leave(&id).await {
            tracing::warn!(
                error = mesh_runtime::error_chain(&error),
                "leases not released, they will expire"
            );
        }
    }

    async fn reconcile(&self, id: &mut String, leaving: bool) -> Result<(), Error> {
        let store = &self.shared.store;
        let start = Instant::now();
        if !self.stay_member(id, leaving).await? {
            // Other dispatchers may already hold the leases.
            self.cancel_leases(TAKEN, |_| true);
            let new = uuid::Uuid::new_v4().to_string();
            store.join(&new, &self.registry.listed()).await?;
            *id = new;
        } else if self.relist.swap(false, Ordering::AcqRel) {
            let listed = store.list(id, &self.registry.listed()).await;
            listed.inspect_err(|_| self.list_again())?;
        }
        let changes = store.changes();
        // A file has no other writer: without a change there is nothing to do.
        if !store.is_shared() && !leaving && self.is_settled(changes) {
            return Ok(());
        }
        let replicas = store.replicas().await?;
        let mut leases = store.leases().await?;
        let summaries = store.endpoint_summaries().await?;
        let ours = |name: &str, epoch: i64| {
            leases
                .get(name)
                .is_some_and(|lease| lease.holder == *id && lease.epoch == epoch)
        };
        self.cancel_leases(TAKEN, |lease| !ours(&lease.endpoint, lease.epoch));
        let until = store.is_shared().then(|| start + TTL - MARGIN);
        self.validity.send_replace(until);

        // A removed endpoint can be cleaned up by any dispatcher, not only by one that lists it in `mesh.toml`.
        let wanted = summaries.iter().map(|(name, summary)| {
            let is_removed = summary.activity == Activity::Removed;
            (name, summary.source == Source::File && !is_removed)
        });
        let LeasePlan { take, release } = plan(id, &replicas, wanted, &leases);
        if !take.is_empty() {
            for (endpoint, epoch) in store.take(id, &take).await? {
                let holder = id.clone();
                leases.insert(endpoint, StoredLease { holder, epoch });
            }
        }
        let (mut to_start, mut done) = (Vec::new(), Vec::new());
        for (name, lease) in leases.iter().filter(|(_, lease)| lease.holder == *id) {
            let summary = summaries
                .get(name)
                .filter(|_| !leaving && !release.contains(name));
            if self.settle(name, summary) {
                match summary {
                    Some(summary) => to_start.push((name, lease.epoch, summary)),
                    None => done.push(name.clone()),
                }
            }
        }
        if !done.is_empty() {
            store.release(id, done).await?;
        }
        let mut started = Vec::new();
        for part in to_start.chunks(START_BATCH_SIZE) {
            let names = part.iter().map(|(name, ..)| (*name).clone());
            let mut stored = store.named(names.collect()).await?;
            for (name, epoch, summary) in part {
                started.extend(self.start(name, *epoch, summary, stored.remove(*name)));
            }
        }
        if !started.is_empty() {
            tokio::spawn(begin(Arc::clone(&self.shared), started));
        }
        self.remove_ended();
        self.shared.names.send_if_modified(|names| {
            let is_known = |names: &BTreeSet<String>| names.iter().eq(summaries.keys());
            let changed = !names.as_ref().is_some_and(is_known);
            if changed {
                *names = Some(summaries.keys().cloned().collect());
            }
            changed
        });
        self.wake_for_notices(&summaries).await?;
        for name in store.with_redeliveries().await? {
            if let Some(worker) = self.running().get(&name).and_then(|it| it.worker.as_ref()) {
                worker.redeliver();
            }
        }
        self.remove_from_config(&replicas, &summaries).await?;
        self.seen.store(changes, Ordering::Release);
        Ok(())
    }

    /// True if nothing was changed since the last reconciliation, and no worker has ended or has to.
    fn is_settled(&self, changes: u64) -> bool {
        let is_unchanged = self.seen.load(Ordering::Acquire) == changes;
        is_unchanged && !self.running().values().any(ActiveEndpoint::is_over)
    }

    /// Sends the heartbeat. Returns false if the dispatcher has to join, for the first time or again.
    async fn stay_member(&self, id: &str, leaving: bool) -> Result<bool, Error> {
        let store = &self.shared.store;
        if id.is_empty() {
            if !store.is_shared() {
                // A SQLite file has a single process, this one: remove replicas of earlier runs.
                store.forget_replicas().await?;
            }
            return Ok(false);
        }
        Ok(!store.is_shared() || store.heartbeat(id, leaving).await?)
    }

    /// Cancels lost leases. Their workers stop and send nothing more.
    fn cancel_leases(&self, why: &str, lost: impl Fn(&Lease) -> bool) {
        for running in self.running().values_mut() {
            if !running.lease.lost.is_cancelled() && lost(&running.lease) {
                tracing::warn!(endpoint = running.lease.endpoint, "{why}");
                running.lease.lost.cancel();
                running.stop();
            }
        }
    }

    /// Stops the worker of an endpoint that was changed or deleted, and removes one that has ended. Returns true if
    /// none is running.
    fn settle(&self, name: &str, summary: Option<&EndpointSummary>) -> bool {
        let mut all = self.running();
        let Some(running) = all.get_mut(name) else {
            return true;
        };
        if running.has_ended() {
            all.remove(name);
            return true;
        }
        let is_changed = |summary: &EndpointSummary| summary.revision != running.revision;
        // A worker whose task panicked is over already.
        if running.is_over() || summary.is_none_or(is_changed) {
            running.stop();
        }
        false
    }

    /// If the set of paused and disabled endpoints changed, notices about them may be due at other endpoints.
    async fn wake_for_notices(
        &self,
        summaries: &BTreeMap<String, EndpointSummary>,
    ) -> Result<(), Error> {
        let is_halted = |summary: &EndpointSummary| {
            matches!(summary.activity, Activity::Paused | Activity::Disabled)
        };
        let halted = summaries.iter().filter(|(_, summary)| is_halted(summary));
        let halted: BTreeSet<String> = halted.map(|(name, _)| name.clone()).collect();
        let is_new = {
            let mut before = self.halted.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *before, halted.clone()) != halted
        };
        if is_new {
            self.wake_waiting().await?;
        }
        Ok(())
    }

    /// Removes workers that have ended.
    fn remove_ended(&self) {
        let mut all = self.running();
        all.retain(|_, running| !running.has_ended());
        self.shared.owned(all.keys().cloned().collect());
    }

    fn start(
        &self,
        name: &str,
        epoch: i64,
        summary: &EndpointSummary,
        stored: Option<EndpointRow>,
    ) -> Option<Arc<EndpointWorker>> {
        let lease = Lease::new(name, epoch, self.validity.subscribe());
        let stop = CancellationToken::new();
        let made = || -> Result<_, Error> {
            let stored = stored.ok_or_else(|| Error::Unknown(name.to_owned()))?;
            Ok(EndpointWorker::new(
                Arc::clone(&self.shared),
                self.registry.made_of(&stored)?,
                summary.activity == Activity::Active,
                stored.created_at,
                summary.revision,
                lease.clone(),
                stop.clone(),
            ))
        };
        let is_removed = summary.activity == Activity::Removed;
        let worker = match (!is_removed).then(made).transpose() {
            Ok(worker) => worker,
            Err(error) => {
                tracing::error!(
                    endpoint = name,
                    error = mesh_runtime::error_chain(&error),
                    "endpoint not started: invalid definition"
                );
                None
            }
        };
        let mut running = ActiveEndpoint {
            lease,
            revision: summary.revision,
            worker: worker.clone(),
            stop,
            ending: None,
            wake: Arc::clone(&self.wake),
        };
        if is_removed {
            running.remove(Arc::clone(&self.shared));
        }
        tracing::debug!(
            endpoint = name,
            epoch,
            state = summary.activity.as_str(),
            "endpoint started"
        );
        self.running().insert(name.to_owned(), running);
        worker
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, ActiveEndpoint>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until all positions are stored.
async fn all(declared: &[(String, CancellationToken)]) {
    for (_, declared) in declared {
        declared.cancelled().await;
    }
}
