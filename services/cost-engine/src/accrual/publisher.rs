//! Publishes `cost.accrued` of running jobs. What is published of a run is stored in the transaction that adds the events to the outbox, under
//! the lock of the run, so several cost engines publish each once.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use mesh_bus::Bus;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{EventType, RunKey};
use mesh_runtime::Service as _;
use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::handled::HandledMessages;
use super::{AccrualPoint, AccrualReason, AccrualRules, DAY_SECONDS, event, of_running};
use crate::CostEngineService;
use crate::adapters::{Filter, OpenRun, Store, Transaction};
use crate::costing;
use crate::error::Error;
use crate::metrics;
use crate::outbox::Outbox;
use crate::price_book::PriceBook;
use crate::usage::RunHistory;

/// Pause between evaluations.
const EVALUATION_INTERVAL: Duration = Duration::from_secs(15);
/// How long after its time an event is published at the earliest, so that a suspension or resize before it is known.
const SETTLE_SECONDS: i64 = 30;
/// An event that is published later than this after its time is late: nobody evaluated the run in between.
const LATE_SECONDS: i64 = 120;
/// How far ahead ticks are computed, so that a run is left alone until its next one.
const AHEAD_SECONDS: i64 = 3600;
/// Runs in one transaction.
const BATCH_RUNS: usize = 64;
/// Most events in one transaction.
const MAX_EVENTS: usize = 500;
/// Missed events older than this are not published, except amounts, which are few.
pub(crate) const MISSED_SECONDS: i64 = DAY_SECONDS;
/// Time limit of one transaction.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct AccrualPublisher {
    pub store: Store,
    pub book: watch::Receiver<Arc<PriceBook>>,
    pub rules: Arc<AccrualRules>,
    pub outbox: Outbox,
    pub bus: Bus,
    /// What the handler of job events has handled.
    pub handled: HandledMessages,
    /// Running jobs.
    pub known: HashMap<RunId, KnownRun>,
}

/// Cluster and run.
type RunId = (String, String);

/// What a transaction published.
#[derive(Debug, Default)]
struct PublishedAccruals {
    events: usize,
    /// How many of its runs have nothing left.
    runs: usize,
    /// Of them, those whose estimate another cost engine has not published yet. It comes first on the bus.
    waiting: Vec<RunId>,
}

/// A run whose ticks are computed.
pub(crate) struct KnownRun {
    history: RunHistory,
    price_book: String,
    /// Nothing is due before.
    next: i64,
    /// Its events until then are published.
    done_until: i64,
}

impl AccrualPublisher {
    /// Publishes until shutdown.
    pub async fn run(mut self, shutdown: &CancellationToken) {
        if self.rules.is_off() {
            return;
        }
        while !shutdown.is_cancelled() {
            if let Err(error) = self.evaluate(Utc::now().timestamp(), shutdown).await {
                tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    "accrued costs not evaluated, retrying"
                );
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(EVALUATION_INTERVAL) => {}
            }
        }
    }

    async fn evaluate(&mut self, now: i64, shutdown: &CancellationToken) -> Result<(), Error> {
        let progress = self
            .bus
            .consumer_progress(SLURM_EVENTS, CostEngineService::NAME);
        let progress = progress.await?;
        // Runs whose end is still in the bus are open in the database.
        let Some(handled) = self.handled.until(now, progress) else {
            return Ok(());
        };
        let until = handled - SETTLE_SECONDS;
        let book = Arc::clone(&self.book.borrow());
        let mut due = self.plan(&book, until).await?;
        while !due.is_empty() && !shutdown.is_cancelled() {
            let mut batch = due.split_off(due.len().saturating_sub(BATCH_RUNS));
            let ids: Vec<_> = batch.iter().map(|(id, _)| id.clone()).collect();
            let stored = self.publish(&ids, &book, until, now);
            let stored = tokio::time::timeout(STORE_TIMEOUT, stored).await;
            match stored.unwrap_or(Err(Error::TooSlow(STORE_TIMEOUT))) {
                Ok(published) => {
                    if published.events > 0 {
                        self.outbox.notify();
                    }
                    due.extend(batch.split_off(published.runs));
                    self.known.extend(batch);
                    // The next evaluation plans them again.
                    for id in published.waiting {
                        self.known.remove(&id);
                    }
                }
                // These runs are not known, so the next evaluation plans them again.
                Err(error) => tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    runs = ids.len(),
                    "accrued costs not published, retrying"
                ),
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Computes ticks of the runs that may have new ones. Returns those that have.
    async fn plan(
        &mut self,
        book: &PriceBook,
        until: i64,
    ) -> Result<Vec<(RunId, KnownRun)>, Error> {
        let open = self.store.open_runs(&Filter::all()).await?;
        let mut known = std::mem::take(&mut self.known);
        let mut due = Vec::new();
        for (number, run) in open.into_iter().enumerate() {
            if number % BATCH_RUNS == 0 {
                tokio::task::yield_now().await;
            }
            let id = (run.keys.cluster.clone(), run.job.run.clone());
            let before = known.remove(&id).filter(|known| known.is_of(&run, book));
            let done_until = before.as_ref().map_or(i64::MIN, |known| known.done_until);
            if let Some(before) = before.filter(|known| known.next > until) {
                self.known.insert(id, before);
                continue;
            }
            let ahead = until + AHEAD_SECONDS + spread(&id);
            let facts = (&run.history, &run.job);
            let plan = next_tick(&self.rules, book, facts, (done_until, until, ahead));
            let planned = KnownRun {
                history: run.history,
                price_book: book.label(),
                next: plan.next,
                done_until: done_until.max(until),
            };
            if plan.is_due {
                due.push((id, planned));
            } else {
                self.known.insert(id, planned);
            }
        }
        Ok(due)
    }

    /// Publishes what is due of runs, by what the database has now, in one transaction.
    async fn publish(
        &self,
        ids: &[RunId],
        book: &PriceBook,
        until: i64,
        now: i64,
    ) -> Result<PublishedAccruals, Error> {
        let mut transaction = self.store.begin().await?;
        transaction.lock(ids).await?;
        let mut done = PublishedAccruals::default();
        for id @ (cluster, key) in ids {
            if transaction.is_estimate_unpublished(cluster, key).await? {
                done.waiting.push(id.clone());
                done.runs += 1;
                continue;
            }
            let history = transaction.history(cluster, key).await?;
            if let Some(job) = &history.start
                && let Ok(run) = RunKey::parse(cluster, key)
                && let Ok(ticks) = of_running(&self.rules, book, &history, job, until)
            {
                let published = RunTicks {
                    book,
                    history: &history,
                    job,
                    is_running: true,
                    now,
                    since: until - MISSED_SECONDS,
                    max_events: MAX_EVENTS - done.events,
                };
                done.events += published.add(&mut transaction, &run, &ticks, "").await?;
            }
            if done.events >= MAX_EVENTS {
                // This run may have more: it is the first of the next transaction.
                break;
            }
            done.runs += 1;
        }
        transaction.commit().await?;
        Ok(done)
    }
}

impl KnownRun {
    /// True if the ticks are those of this history and these prices.
    fn is_of(&self, run: &OpenRun, book: &PriceBook) -> bool {
        self.history == run.history && self.price_book == book.label()
    }
}

/// Part of an hour, so that runs that were planned at once are not planned again at once.
fn spread(id: &RunId) -> i64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    i64::try_from(hasher.finish() % AHEAD_SECONDS.unsigned_abs()).unwrap_or_default()
}

/// What is due of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DueAccruals {
    /// True if something is due now.
    pub is_due: bool,
    /// Nothing more is due before.
    pub next: i64,
}

/// What is due in `(done_until, until]`, and when the next tick is, at most at `ahead`.
pub(super) fn next_tick(
    rules: &AccrualRules,
    book: &PriceBook,
    (history, job): (&RunHistory, &Job),
    (done_until, until, ahead): (i64, i64, i64),
) -> DueAccruals {
    let ticks = |until| of_running(rules, book, history, job, until);
    let charged = costing::accrued_until(history, job, ahead);
    // Past its limit a run has no more ticks.
    let (ahead, after) = if charged >= ahead {
        (ahead, ahead)
    } else {
        let over = charged + costing::LIMIT_GRACE_SECONDS;
        (
            over.min(ahead),
            if over <= until { i64::MAX } else { over + 1 },
        )
    };
    let found_ahead = (ahead > until).then(|| ticks(ahead).ok()).flatten();
    let (found, horizon) = match found_ahead {
        Some(found) => (found, after),
        None if ahead <= until => (ticks(until).unwrap_or_default(), after),
        // A price is missing in the future. What is known until now counts.
        None => (ticks(until).unwrap_or_default(), until + 1),
    };
    let is_new = |tick: &AccrualPoint| done_until < tick.as_of && tick.as_of <= until;
    let next = found.iter().find(|tick| tick.as_of > until);
    DueAccruals {
        is_due: found.iter().any(is_new),
        next: next.map_or(horizon, |tick| tick.as_of),
    }
}

/// A run whose ticks are published.
pub(crate) struct RunTicks<'a> {
    pub book: &'a PriceBook,
    pub history: &'a RunHistory,
    /// Its newest record.
    pub job: &'a Job,
    /// True: nothing is published if it has ended meanwhile.
    pub is_running: bool,
    /// Unix seconds.
    pub now: i64,
    /// Of older ticks only amounts are published.
    pub since: i64,
    /// Most events to add. The stored state lets another call go on after them.
    pub max_events: usize,
}

impl RunTicks<'_> {
    /// Adds the events of ticks that are not published yet. Returns their number.
    pub async fn add(
        &self,
        transaction: &mut Transaction,
        run: &RunKey,
        ticks: &[AccrualPoint],
        traceparent: &str,
    ) -> Result<usize, Error> {
        if ticks.is_empty() {
            return Ok(0);
        }
        let key = run.entity_key();
        let known = transaction.accruals(&run.cluster, &key).await?;
        let Some(facts) = known.filter(|known| known.is_open || !self.is_running) else {
            return Ok(0);
        };
        let mut state = facts.state;
        let mut events = 0;
        for tick in ticks {
            if events >= self.max_events {
                break;
            }
            let is_amount = matches!(tick.reason, AccrualReason::Threshold(_));
            if tick.as_of < self.since && !is_amount {
                continue;
            }
            let Some(tick) = &state.take(tick) else {
                continue;
            };
            let payload = costing::accrued(self.book, self.history, self.job, tick);
            let is_late = self.now - tick.as_of > LATE_SECONDS;
            let event = event(run, &facts, tick, payload, is_late);
            let body = event.encode_to_vec();
            transaction.add_event(&event.id, &body, traceparent).await?;
            metrics::cost(EventType::CostAccrued.event(), true);
            events += 1;
        }
        if state != facts.state {
            transaction
                .store_accruals(&run.cluster, &key, &state)
                .await?;
        }
        Ok(events)
    }
}
