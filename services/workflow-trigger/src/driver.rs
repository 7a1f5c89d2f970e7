//! Drives runs to their end: claims those that are due, asks Slurm for the next step, and stores its outcome.
//!
//! A submission is held, recorded, confirmed and released. Whatever happens between two of these steps, the next driver goes on from what is
//! stored: a job that was not recorded never starts, and one that was recorded is never submitted again unless the controller has lost it.

mod approval;
mod copies;
mod rerun;
mod submission;
mod tasks;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use mesh_bus::{Backoff, Bus, trace};
use mesh_events::IncomingEvent;
use mesh_runtime::Condition;
use slurm_submit::{Acted, SubmitError, Submitter};
use slurm_types::JobRef;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::adapters;
use crate::adapters::store::Store;
use crate::config::Config;
use crate::domain::index::Rules;
use crate::domain::intent::{Backend, Intent, IntentState};
use crate::domain::notice;
use crate::domain::planned_action::{self, PlannedAction};
use crate::domain::source::PUBLISHED;
use crate::error::Error;
use crate::metrics;

/// Runs at the same time that need Slurm.
const MAX_SLURM: usize = 16;
/// Runs at the same time that need the bus.
const MAX_BUS: usize = 4;
/// Longest time between two looks at the database: another process may have planned something.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Delay after an error of the database.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Drives runs.
pub(crate) struct Driver {
    pub store: Store,
    pub submitter: Submitter,
    pub bus: Bus,
    pub config: Config,
    /// When this process was started.
    pub started_at: DateTime<Utc>,
    pub rules: watch::Receiver<Arc<Rules>>,
    /// Notified when a run may be due.
    pub due_runs: Arc<DueRuns>,
    /// Condition: the database accepts writes.
    pub database: Condition,
    /// Condition: Slurm answers.
    pub slurm: Condition,
}

/// Wakes the drivers of both backends: a run was planned, or has its turn.
#[derive(Debug, Default)]
pub(crate) struct DueRuns {
    slurm: Notify,
    bus: Notify,
}

impl DueRuns {
    pub fn notify(&self) {
        self.slurm.notify_one();
        self.bus.notify_one();
    }

    async fn notified(&self, backend: Backend) {
        match backend {
            Backend::Slurm => self.slurm.notified().await,
            Backend::Bus => self.bus.notified().await,
        }
    }
}

/// What to do next with a run.
pub(crate) enum Step {
    /// Its outcome is stored.
    Stored,
    /// Again after a delay, with the words of the failure.
    Retry(String),
}

impl Driver {
    /// Drives runs until shutdown.
    pub async fn run(&self, backend: Backend, shutdown: &CancellationToken) {
        let max = match backend {
            Backend::Slurm => MAX_SLURM,
            Backend::Bus => MAX_BUS,
        };
        let mut running = FuturesUnordered::new();
        let mut next_start = Instant::now();
        loop {
            let free = max - running.len();
            let claimed = match shutdown.is_cancelled() || free == 0 {
                true => Ok(Vec::new()),
                false => {
                    let claiming = self.store.claim(backend, free as u32, Utc::now());
                    alongside(&mut running, claiming).await
                }
            };
            match claimed {
                Ok(intents) => {
                    self.database.ok();
                    for intent in intents {
                        // Spreads the requests, whatever the number of due runs.
                        let start = next_start.max(Instant::now());
                        next_start = start + Duration::from_secs(1) / self.config.submit_rate;
                        running.push(async move {
                            tokio::time::sleep_until(start).await;
                            self.drive(intent).await;
                        });
                    }
                }
                Err(error) => {
                    let reason = mesh_runtime::error_chain(&error);
                    tracing::warn!(error = reason, "runs not claimed, retrying");
                    self.database.fail(reason);
                }
            }
            if shutdown.is_cancelled() {
                // What is under way is finished: an answer that is not read is a job that is not recorded.
                while running.next().await.is_some() {}
                return;
            }
            let wait = alongside(&mut running, self.until_due(backend)).await;
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.due_runs.notified(backend), if running.len() < max => {}
                Some(()) = running.next() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn until_due(&self, backend: Backend) -> Duration {
        match self.store.next_due(backend, Utc::now()).await {
            Ok(Some(due)) => {
                let wait = (due - Utc::now()).to_std().unwrap_or(Duration::ZERO);
                // Not zero: all permits may be in use.
                wait.clamp(Duration::from_millis(5), POLL_INTERVAL)
            }
            Ok(None) => POLL_INTERVAL,
            Err(_) => RETRY_DELAY,
        }
    }

    async fn drive(&self, intent: Intent) {
        let span = tracing::info_span!(
            "trigger",
            otel.name = "workflow-trigger submit",
            run.key = intent.key,
            rule = %intent.rule,
            event.id = intent.cause.event_id,
        );
        trace::adopt(&span, &intent.cause.traceparent);
        async {
            let stored = match self.step(&intent).await {
                Ok(Step::Stored) => Ok(()),
                Ok(Step::Retry(words)) => self.retry(&intent, &words).await,
                Err(error) => Err(error),
            };
            if let Err(error) = stored {
                // The claim ends by itself, and the run goes on from what is stored.
                let reason = mesh_runtime::error_chain(&error);
                tracing::warn!(error = reason, "progress of run not stored");
                self.database.fail(reason);
            }
        }
        .instrument(span)
        .await;
    }

    async fn step(&self, intent: &Intent) -> Result<Step, Error> {
        if intent.state == IntentState::Approval {
            return self.ask(intent).await;
        }
        match &intent.action {
            Some(PlannedAction::Submit { job }) => self.submission(intent, job).await,
            Some(PlannedAction::Rerun {
                job_id,
                task,
                restarts,
                changes,
            }) => {
                let job = planned_action::reference(*job_id, *task);
                self.rerun(intent, &job, *restarts, changes).await
            }
            Some(PlannedAction::RerunTasks { first }) => {
                self.rerun_tasks(intent, first.array).await
            }
            Some(PlannedAction::Act {
                job_id,
                task,
                action,
            }) => {
                let job = planned_action::reference(*job_id, *task);
                self.act(intent, &job, action).await
            }
            Some(PlannedAction::Publish { event_type, data }) => {
                self.publish(intent, event_type, data).await
            }
            Some(PlannedAction::Notify { text, data }) => {
                let event = notice::message(intent, text, data);
                match self.bus.publish(&event).await {
                    Ok(_) => self.end(intent, IntentState::Done, "").await,
                    Err(error) => Ok(Step::Retry(mesh_runtime::error_chain(&error))),
                }
            }
            None => {
                self.end(intent, IntentState::GivenUp, "nothing to do is stored")
                    .await
            }
        }
    }

    /// Publishes an event. Its id is the run's, so that another attempt is the same event.
    async fn publish(
        &self,
        intent: &Intent,
        event_type: &str,
        data: &BTreeMap<String, String>,
    ) -> Result<Step, Error> {
        let (cluster, owner) = (&intent.cause.cluster, &intent.user);
        let id = format!("{owner}:{}", intent.key);
        let data = serde_json::json!(data);
        let at = intent.created_at;
        let mut event = IncomingEvent::new(cluster, PUBLISHED, &id, event_type, at, data);
        event.user.clone_from(owner);
        intent.chain().continued_by(&mut event);
        let published = match adapters::bus::takes_published(&self.bus).await {
            Ok(true) => adapters::bus::publish(&self.bus, &[event]).await,
            Ok(false) => return Ok(Step::Retry(adapters::bus::NO_ROOM.to_owned())),
            Err(error) => Err(error),
        };
        match published {
            Ok(()) => self.end(intent, IntentState::Done, "").await,
            Err(error) => Ok(Step::Retry(mesh_runtime::error_chain(&error))),
        }
    }

    /// An act on a job. All but a signal may be repeated.
    async fn act(
        &self,
        intent: &Intent,
        job: &JobRef,
        action: &slurm_submit::Action,
    ) -> Result<Step, Error> {
        let is_signal = matches!(action, slurm_submit::Action::Signal { .. });
        if is_signal && intent.sent_at.is_some() {
            let words = "unknown whether the signal was sent before this service stopped";
            return self.end(intent, IntentState::GivenUp, words).await;
        }
        if !self.store.sending(intent, Utc::now()).await? {
            return Ok(Step::Stored);
        }
        let acted = self.submitter.act(&intent.user, job, action).await;
        match self.answer(acted) {
            Ok(Acted::Done) => self.end(intent, IntentState::Done, "").await,
            Ok(Acted::Absent) => self.refuse(intent, "Slurm has no such job").await,
            Ok(Acted::OtherKey) => self.refuse(intent, "the job is another user's").await,
            Err(SubmitError::Refused { words, .. }) => self.refuse(intent, &words).await,
            Err(SubmitError::Unknown { words }) if is_signal => {
                let words = format!("unknown whether the signal was sent: {words}");
                self.end(intent, IntentState::GivenUp, &words).await
            }
            Err(SubmitError::Unknown { words } | SubmitError::Transient { words }) => {
                Ok(Step::Retry(words))
            }
        }
    }

    /// Counts an answer, and notes whether Slurm answers.
    fn answer<T>(&self, answer: Result<T, SubmitError>) -> Result<T, SubmitError> {
        match &answer {
            Ok(_) => {
                metrics::request("done");
                self.slurm.ok();
            }
            Err(error) => {
                metrics::request(error.kind());
                match error {
                    SubmitError::Refused { .. } => self.slurm.ok(),
                    SubmitError::Transient { words } | SubmitError::Unknown { words } => {
                        tracing::warn!(error = words, "request to Slurm without result");
                        self.slurm.fail(words);
                    }
                }
            }
        }
        answer
    }

    async fn refuse(&self, intent: &Intent, words: &str) -> Result<Step, Error> {
        tracing::warn!(error = words, "run refused by Slurm");
        self.store.refused(intent, words, Utc::now()).await?;
        metrics::run(IntentState::Refused.as_str());
        Ok(Step::Stored)
    }

    async fn end(&self, intent: &Intent, state: IntentState, words: &str) -> Result<Step, Error> {
        if self
            .store
            .finished(intent, state, words, Utc::now())
            .await?
        {
            tracing::info!(state = state.as_str(), error = words, "run ended");
            metrics::run(state.as_str());
        }
        Ok(Step::Stored)
    }

    async fn retry(&self, intent: &Intent, words: &str) -> Result<(), Error> {
        let now = Utc::now();
        let approval = intent.approval.as_ref();
        // A run whose approvers were not asked ends like one that nobody approved.
        let ends_at = approval
            .and_then(|approval| approval.until)
            .filter(|_| intent.state == IntentState::Approval);
        let age = (now - intent.created_at).to_std().unwrap_or_default();
        let waits = match &intent.action {
            Some(PlannedAction::RerunTasks { .. }) => self.config.array_wait,
            _ => Duration::ZERO,
        };
        let is_old = age > self.config.give_up_after + waits && ends_at.is_none();
        if is_old && intent.state == IntentState::Released {
            let stored = match &intent.replaced_by {
                Some(by) => self.store.replaced(intent, by, now).await,
                None => self.store.settled(intent).await,
            };
            return stored.map(drop);
        }
        if is_old {
            let words = format!("given up after {} attempts: {words}", intent.attempts);
            return self
                .end(intent, IntentState::GivenUp, &words)
                .await
                .map(drop);
        }
        let mut next = next_attempt(&self.config, intent.attempts, now);
        if matches!(intent.action, Some(PlannedAction::RerunTasks { .. })) {
            // A failed task that is not requeued is gone after MinJobAge.
            next = next.min(now + tasks::MAX_LOOK_INTERVAL);
        }
        let at = ends_at.map_or(next, |end| next.min(end));
        tracing::info!(error = words, next = %at, "run waits for its next attempt");
        self.store.retry_at(intent, at, words, now).await.map(drop)
    }
}

/// Waits for `work` while the others go on: one of them may hold the connection that `work` waits for.
async fn alongside<F: Future<Output = ()>, T>(
    others: &mut FuturesUnordered<F>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            Some(()) = others.next() => {}
        }
    }
}

/// When a run with this many attempts is retried.
fn next_attempt(config: &Config, attempts: u32, now: DateTime<Utc>) -> DateTime<Utc> {
    let mut backoff = Backoff::doubling(config.retry_initial_interval, config.retry_max_interval)
        .with_jitter(0.2);
    let mut delay = backoff.next_delay();
    for _ in 0..attempts.min(32) {
        delay = backoff.next_delay();
    }
    now + delay
}
