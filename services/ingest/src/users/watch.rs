//! Polls access and publishes the changes.
//!
//! slurmdbd's log of changes is read first: one cheap request, and without a new entry no other is made. Without such a log (slurmrestd),
//! everything is read each time, so reading takes at most a twentieth of the time.
//!
//! Everything is read twice, and only what two readings agree on is published. A failed reading changes nothing. If a reading lacks a user
//! whom nobody has removed according to the log, it does not count for that user, unless this persists ([`super::suspected_removals`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use mesh_bus::Bus;
use mesh_events::{EventType, unreadable_state};
use mesh_runtime::{Condition, error_chain};
use slurm_client::{Slurm, Transaction};
use slurm_types::UnixTime;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::access::{AccessByEntity, access_by_entity};
use super::access_changes::AccessDiff;
use super::access_store::AccessStore;
use super::coordinators::{self, Coordinators};
use super::suspected_removals::SuspectedRemovals;
use crate::Error;
use crate::accounting::rate_limit::AccountingRateLimit;
use crate::collector::Collector;
use crate::config::Config;
use crate::identity::IdentityResolver;
use crate::sources::{RequestCost, SlurmSource, unless_stopped};

/// Delay before the next attempt if two consecutive readings did not agree.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The log is read from this many seconds before its newest published entry. sacctmgr without `-i` waits half a minute for confirmation,
/// and the entry has the time of its prompt.
pub(super) const LOG_OVERLAP_SECS: i64 = 600;

/// Without a log, the pause between polls is at least this many times as long as the answer took.
const PAUSE_FACTOR: u32 = 20;

/// What is unknown of users whose state was lost.
const LOST: &str = "changes of their access or identity that were not published yet";

/// Watches the access of users.
pub struct AccessWatcher {
    /// Slurm client for accounting.
    pub slurm: Slurm,
    /// Availability of slurmdbd.
    pub slurmdbd: Arc<SlurmSource>,
    /// Rate limit of accounting requests.
    pub rate_limit: Arc<AccountingRateLimit>,
    /// Publishes that stored state was lost.
    pub collector: Collector,
    /// Bus for the events.
    pub bus: Bus,
    /// Cluster name.
    pub cluster: String,
    /// Configuration of ingest.
    pub config: Arc<Config>,
    /// Resolves users to identities.
    pub identities: Arc<IdentityResolver>,
    /// Whether the stored state can be read and written.
    pub state_health: Condition,
    /// Signals shutdown.
    pub shutdown: CancellationToken,
}

/// State of one run of the watcher.
struct WatchState {
    access_store: AccessStore,
    /// Time of the last full reading.
    read: Option<Instant>,
    /// Duration of that answer.
    took: Duration,
    /// Losses that the log does not explain.
    suspected_removals: SuspectedRemovals,
    /// Last logged problem, so that each is logged once.
    problem: Option<String>,
}

/// An answer, or the delay before the next request.
type OrPause<T> = Result<T, Duration>;

impl AccessWatcher {
    /// Watches until shutdown.
    ///
    /// # Errors
    /// If another ingest has taken over, or if the stored state is of a newer version.
    pub async fn run(self) -> Result<(), Error> {
        match Box::pin(self.watch()).await {
            Err(error) if error.is_shutdown() => Ok(()),
            done => done,
        }
    }

    async fn watch(&self) -> Result<(), Error> {
        let (mut access_store, outbox) = AccessStore::load(
            &self.bus,
            &self.cluster,
            self.state_health.clone(),
            &self.shutdown,
        )
        .await?;
        self.bus.publish_all(outbox, &self.shutdown).await?;
        // Without accounting, only identities are known.
        access_store.is_incomplete &= self.config.accounting;
        if access_store.is_damaged {
            // Before the keys are written again: a start after a crash must find them unreadable.
            let gap = unreadable_state("of users", LOST, None, Utc::now(), 0);
            let closed = EventType::CaptureGapClosed;
            self.collector.capture(closed, gap).await?;
        }
        let mut coordinators =
            Coordinators::take_over(&self.bus, &self.cluster, &self.shutdown).await?;
        let mut state = WatchState {
            access_store,
            read: None,
            took: Duration::ZERO,
            suspected_removals: SuspectedRemovals::default(),
            problem: None,
        };
        let mut due = Instant::now();
        loop {
            state.access_store.check().await?;
            if self.config.accounting && due <= Instant::now() {
                due = Instant::now() + self.poll(&mut state).await?;
            }
            let store = &state.access_store;
            // Else coordinators who are not known again yet would lose their rights.
            if store.progress.access_known && !store.is_incomplete {
                coordinators.publish(&state.access_store.known).await?;
                let acting = coordinators::coordinators_by_user(&state.access_store.known);
                self.identities.actors().set_coordinators(acting);
            }
            self.link(&mut state.access_store).await?;
            state.access_store.restore_lost().await?;
            self.pause(self.config.identity_reload_interval).await?;
        }
    }

    async fn pause(&self, pause: Duration) -> Result<(), Error> {
        tokio::select! {
            () = self.shutdown.cancelled() => Err(Error::Stopped),
            () = sleep(pause) => Ok(()),
        }
    }

    /// Polls once. Returns how long to wait before the next poll.
    async fn poll(&self, state: &mut WatchState) -> Result<Duration, Error> {
        let settings = &self.config.users;
        let log = match self.log(state).await? {
            Ok(log) => log,
            Err(pause) => return Ok(pause),
        };
        let published = &state.access_store.progress.log_published;
        let is_new = log
            .as_ref()
            .is_none_or(|log| log.iter().any(|entry| !published.contains_key(&entry.id)));
        let is_due = state
            .read
            .is_none_or(|at| at.elapsed() >= settings.full_interval);
        if !is_new && !is_due {
            return Ok(settings.interval);
        }
        let has_log = log.is_some();
        let first = match self.read(state).await? {
            Ok(access_by_entity) => access_by_entity,
            Err(pause) => return Ok(pause),
        };
        let published = state.access_store.published();
        let mut still_needed = BTreeSet::new();
        if first != published || !state.access_store.progress.access_known {
            match self.read(state).await? {
                Ok(second) if second == first => {}
                // A change is in progress; the next poll sees its result.
                Ok(_) => return Ok(RETRY_DELAY),
                Err(pause) => return Ok(pause),
            }
            let newer = match self.log(state).await? {
                Ok(log) => log,
                Err(pause) => return Ok(pause),
            };
            let log_published = &state.access_store.progress.log_published;
            let [log, newer] = [&log, &newer].map(|log| {
                let entries = log
                    .iter()
                    .flatten()
                    .filter(|entry| !log_published.contains_key(&entry.id));
                entries.cloned().collect::<Vec<_>>()
            });
            let mut diff = AccessDiff::of(&state.access_store, first, &log, &newer);
            still_needed = state.suspected_removals.withhold(&published, &mut diff);
            self.changed(&mut state.access_store, diff).await?;
        } else {
            state.suspected_removals = SuspectedRemovals::default();
        }
        state.access_store.is_incomplete = false;
        // Suspected losses are read again, whatever the log says.
        state.read = state.suspected_removals.is_empty().then(Instant::now);
        let mut log = log.unwrap_or_default();
        log.retain(|entry| !still_needed.contains(&entry.id));
        self.settle(&mut state.access_store, log).await?;
        Ok(match has_log {
            true => settings.interval,
            false => settings.interval.max(state.took * PAUSE_FACTOR),
        })
    }

    /// Reads recent log entries; `None` if Slurm has no such log, or if ingest may not read it.
    async fn log(
        &self,
        state: &mut WatchState,
    ) -> Result<OrPause<Option<Vec<Transaction>>>, Error> {
        if !self.slurm.has_transaction_log() {
            return Ok(Ok(None));
        }
        let _permit = unless_stopped(&self.shutdown, self.rate_limit.next()).await?;
        let newest = match state.access_store.progress.log_time {
            0 => Utc::now().timestamp(),
            // The clock may have been set back.
            time => time.min(Utc::now().timestamp()),
        };
        let log = self
            .slurm
            .transactions(UnixTime::from_secs(newest - LOG_OVERLAP_SECS));
        match unless_stopped(&self.shutdown, log).await? {
            Ok(log) => {
                self.slurmdbd.up(RequestCost::Light).await?;
                Ok(Ok(Some(log)))
            }
            Err(error) => match self.failed(state, &error).await? {
                Some(pause) => Ok(Err(pause)),
                None => Ok(Ok(None)),
            },
        }
    }

    async fn read(&self, state: &mut WatchState) -> Result<OrPause<AccessByEntity>, Error> {
        let comments = self.identities.uses_comments();
        let _permit = unless_stopped(&self.shutdown, self.rate_limit.next()).await?;
        let asked = Instant::now();
        let records = self.slurm.access(&self.cluster, comments);
        match unless_stopped(&self.shutdown, records).await? {
            Ok(records) => {
                self.slurmdbd.up(RequestCost::Light).await?;
                state.problem = None;
                state.took = asked.elapsed();
                self.identities.take_comments(&records.associations);
                Ok(Ok(access_by_entity(&records)))
            }
            Err(error) => {
                let pause = self.failed(state, &error).await?;
                Ok(Err(pause.unwrap_or(self.config.users.interval)))
            }
        }
    }

    /// Returns how long to wait if slurmdbd is unavailable; `None` for other problems, which concern only this request and not jobs.
    async fn failed(
        &self,
        state: &mut WatchState,
        error: &slurm_client::Error,
    ) -> Result<Option<Duration>, Error> {
        use slurm_client::Error as Failure;
        if let Failure::AccountingDown { .. }
        | Failure::RestDown { .. }
        | Failure::TimedOut { .. }
        | Failure::MungeDown { .. } = error
        {
            let pause = self.slurmdbd.down(RequestCost::Light, error).await?;
            return Ok(Some(
                pause.max(self.config.users.interval.min(Duration::from_secs(60))),
            ));
        }
        let problem = error_chain(error);
        if state.problem.as_ref() != Some(&problem) {
            tracing::warn!(problem, "associations unavailable, access events withheld");
            state.problem = Some(problem);
        }
        Ok(None)
    }
}
