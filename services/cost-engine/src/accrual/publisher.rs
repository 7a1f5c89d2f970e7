//! Publishes `cost.accrued` of running jobs. What is published of a run is stored in the transaction that adds the events to the outbox, under
//! the lock of the run, so several cost engines publish each once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{EventType, RunKey};
use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{AccrualRules, Tick, event, of_running};
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
/// Time limit of one transaction.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct AccrualPublisher {
    pub store: Store,
    pub book: watch::Receiver<Arc<PriceBook>>,
    pub rules: Arc<AccrualRules>,
    pub outbox: Outbox,
    /// Running jobs, by cluster and run.
    pub known: HashMap<(String, String), KnownRun>,
}

/// A run whose ticks are computed.
pub(crate) struct KnownRun {
    history: RunHistory,
    price_book: String,
    /// Nothing is due before.
    next: i64,
}

impl AccrualPublisher {
    /// Publishes until shutdown.
    pub async fn run(mut self, shutdown: &CancellationToken) {
        if self.rules.is_off() {
            return;
        }
        while !shutdown.is_cancelled() {
            if let Err(error) = self.evaluate(Utc::now().timestamp()).await {
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

    async fn evaluate(&mut self, now: i64) -> Result<(), Error> {
        let book = Arc::clone(&self.book.borrow());
        let until = now - SETTLE_SECONDS;
        let open = self.store.open_runs(&Filter::all()).await?;
        let mut known = std::mem::take(&mut self.known);
        let mut due = Vec::new();
        for run in open {
            let id = (run.keys.cluster.clone(), run.job.run.clone());
            let before = known.remove(&id);
            let is_settled = |known: &KnownRun| known.is_of(&run, &book) && known.next > until;
            if let Some(known_run) = before.filter(is_settled) {
                self.known.insert(id, known_run);
                continue;
            }
            let (is_due, next) = next_tick(&self.rules, &book, &run, until);
            let planned = KnownRun {
                history: run.history,
                price_book: book.label(),
                next,
            };
            if is_due {
                due.push((id, planned));
            } else {
                self.known.insert(id, planned);
            }
        }
        while !due.is_empty() {
            let batch = due.split_off(due.len().saturating_sub(BATCH_RUNS));
            let ids: Vec<_> = batch.iter().map(|(id, _)| id.clone()).collect();
            let stored = self.publish(&ids, &book, until);
            let stored = tokio::time::timeout(STORE_TIMEOUT, stored).await;
            // A run that failed is not known, so it is evaluated again.
            if stored.unwrap_or(Err(Error::TooSlow(STORE_TIMEOUT)))? > 0 {
                self.outbox.notify();
            }
            self.known.extend(batch);
        }
        Ok(())
    }

    /// Publishes what is due of runs, by what the database has now. Returns the number of events.
    async fn publish(
        &self,
        ids: &[(String, String)],
        book: &PriceBook,
        until: i64,
    ) -> Result<usize, Error> {
        let mut transaction = self.store.begin().await?;
        transaction.lock(ids).await?;
        let mut events = 0;
        for (cluster, key) in ids {
            let history = transaction.history(cluster, key).await?;
            let Some(job) = &history.start else { continue };
            let (Ok(run), Ok(ticks)) = (
                RunKey::parse(cluster, key),
                of_running(&self.rules, book, &history, job, until),
            ) else {
                continue;
            };
            let published = RunTicks {
                book,
                history: &history,
                job,
                is_running: true,
                now: until + SETTLE_SECONDS,
            };
            events += published.add(&mut transaction, &run, &ticks, "").await?;
        }
        transaction.commit().await?;
        Ok(events)
    }
}

impl KnownRun {
    /// True if the ticks are those of this history and these prices.
    fn is_of(&self, run: &OpenRun, book: &PriceBook) -> bool {
        self.history == run.history && self.price_book == book.label()
    }
}

/// True if something may be due until a moment, and until when nothing more is.
fn next_tick(rules: &AccrualRules, book: &PriceBook, run: &OpenRun, until: i64) -> (bool, i64) {
    let ticks = |until| of_running(rules, book, &run.history, &run.job, until);
    let ahead = until + AHEAD_SECONDS;
    let is_within_limit = costing::accrued_until(&run.history, &run.job, ahead) >= ahead;
    let found_ahead = is_within_limit.then(|| ticks(ahead).ok()).flatten();
    let (found, horizon) = match found_ahead {
        Some(found) => (found, ahead),
        // The run will be past its limit, or a price is missing in the future. What is known until now counts.
        None => (ticks(until).unwrap_or_default(), until + 1),
    };
    let is_due = found.first().is_some_and(|tick| tick.as_of <= until);
    let next = found.iter().find(|tick| tick.as_of > until);
    (is_due, next.map_or(horizon, |tick| tick.as_of))
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
}

impl RunTicks<'_> {
    /// Adds the events of ticks that are not published yet. Returns their number.
    pub async fn add(
        &self,
        transaction: &mut Transaction,
        run: &RunKey,
        ticks: &[Tick],
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
            if !state.take(tick) {
                continue;
            }
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
