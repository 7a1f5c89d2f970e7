//! Publishes recorded events again.
//!
//! A replay is a database row. One replica at a time holds its lease. Every write carries a fencing
//! token, so writes of a former holder have no effect. The cursor advances after JetStream has
//! stored the events before it. After a crash, events are published again with the same message id,
//! which JetStream deduplicates. No event is published before the audit entry of the replay.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::{Backoff, Bus, ReplayedEvent};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::{Event, subject, webhook_name};
use prost::Message as _;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::{ReplayLease, Store};
use crate::api::owner;
use crate::domain::replay::{AuditProgress, Replay, ReplayState, page, pause};
use crate::error::Error;
use crate::metrics;
const MAX_CONCURRENT_REPLAYS: usize = 8;
/// Interval of polling for replays created by other replicas.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longer than the timeouts of JetStream and of the database together.
const LEASE_DURATION: TimeDelta = TimeDelta::seconds(15);
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(5));
/// Ended replays are deleted after this time.
const REPLAY_RETENTION: TimeDelta = TimeDelta::days(30);
const PURGE_INTERVAL: Duration = Duration::from_secs(3600);
/// Interval of purging messages of ended replays.
const CLEANUP_MARGIN: TimeDelta = TimeDelta::seconds(60);
/// Older messages have expired from the stream.
const MESH_REPLAY_AGE: TimeDelta = TimeDelta::days(4);

/// Runs replays. Cheap to clone.
#[derive(Clone)]
pub struct Replayer {
    store: Store,
    bus: Bus,
    cluster: Arc<str>,
    wake: Arc<Notify>,
    retention: Duration,
}

/// Why a replay stops in this process.
enum Stop {
    /// Shutdown; another replica or the next start resumes it.
    Shutdown,
    /// Lease lost, or cancelled.
    Lost,
    /// The database is unavailable: any replica continues when the lease has expired.
    Store(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Replayer {
    /// Creates a replayer; `cluster` labels its audit entries. Messages stay on the bus for `retention` after the end.
    pub fn new(store: Store, bus: Bus, cluster: &str, retention: Duration) -> Self {
        Self {
            store,
            bus,
            cluster: cluster.into(),
            wake: Arc::default(),
            retention,
        }
    }

    /// Returns the Unix user who owns a webhook endpoint, which its full name says. The result is
    /// empty for endpoints of the operator, and `None` if the endpoint is unknown.
    ///
    /// # Errors
    /// If NATS does not respond.
    pub async fn endpoint_owner(&self, endpoint: &str) -> Result<Option<String>, mesh_bus::Error> {
        let exists = self.bus.has_webhook(endpoint).await?;
        Ok(exists.then(|| webhook_name::owner(endpoint).to_owned()))
    }

    /// Wakes the replayer, because a replay was created or changed.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Runs open replays until shutdown, then releases them immediately.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut works = JoinSet::new();
        let mut purged_at: Option<Instant> = None;
        let mut cleared: Option<DateTime<Utc>> = None;
        let mut is_failing = false;
        while !shutdown.is_cancelled() {
            match self.start(&mut works, &shutdown).await {
                Ok(()) => is_failing = false,
                Err(error) if !is_failing => {
                    is_failing = true;
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        "replay claim failed"
                    );
                }
                Err(_) => {}
            }
            if purged_at.is_none_or(|at| at.elapsed() >= PURGE_INTERVAL) && !is_failing {
                let purge = self.store.purge_replays(Utc::now() - REPLAY_RETENTION);
                if let Err(error) = purge.await {
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        "purge of old replays failed"
                    );
                }
                purged_at = Some(Instant::now());
            }
            let until = Utc::now() - TimeDelta::from_std(self.retention).unwrap_or(MESH_REPLAY_AGE);
            if cleared.is_none_or(|before| until - before >= CLEANUP_MARGIN) && !is_failing {
                let since = cleared.unwrap_or(until - MESH_REPLAY_AGE);
                match self.clear(since, until).await {
                    Ok(()) => cleared = Some(until),
                    Err(error) => tracing::debug!(error, "messages of old replays not purged"),
                }
            }
            metrics::replays(works.len());
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                Some(_) = works.join_next() => {}
            }
        }
        while works.join_next().await.is_some() {}
    }

    /// Purges the messages of a cancelled replay.
    async fn take_back(&self, replay: &Replay) {
        if replay.state != ReplayState::Cancelled {
            return;
        }
        if let Err(error) = self.bus.purge_replay(&replay.id).await {
            // Retried when messages of old replays are purged.
            let error = mesh_runtime::error_chain(&error);
            tracing::debug!(error, "messages of cancelled replay not purged");
        }
    }

    /// Purges the messages of replays that ended in a time range, to free space in the stream.
    async fn clear(&self, since: DateTime<Utc>, until: DateTime<Utc>) -> Result<(), String> {
        let ended = self.store.replays_that_ended(since, until).await;
        for id in ended.map_err(|error| mesh_runtime::error_chain(&error))? {
            let purged = self.bus.purge_replay(&id).await;
            purged.map_err(|error| mesh_runtime::error_chain(&error))?;
        }
        Ok(())
    }

    /// Claims and starts replays that no process holds.
    async fn start(
        &self,
        works: &mut JoinSet<()>,
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        while works.len() < MAX_CONCURRENT_REPLAYS {
            let now = Utc::now();
            let Some(claimed) = self.store.claim_replay(now, now + LEASE_DURATION).await? else {
                break;
            };
            let (replayer, shutdown) = (self.clone(), shutdown.clone());
            works.spawn(async move { replayer.work(claimed, &shutdown).await });
        }
        Ok(())
    }

    async fn work(&self, mut claimed: ReplayLease, shutdown: &CancellationToken) {
        let id = claimed.replay.id.clone();
        match self.go_on(&mut claimed, shutdown).await {
            Ok(()) => tracing::info!(
                replay.id = id,
                sent = claimed.replay.sent,
                outcome = claimed.replay.state.as_str(),
                "replay ended"
            ),
            Err(Stop::Lost) => {
                tracing::debug!(replay.id = id, "replay lease lost or replay cancelled");
                // Purges messages that were published before the cancellation was noticed.
                let stored = self.store.replay(&id).await;
                if let Ok(Some((replay, _))) = stored {
                    self.take_back(&replay).await;
                }
            }
            Err(Stop::Shutdown) => {
                let state = claimed.replay.state;
                let released = self
                    .store
                    .save_replay(&claimed, state, DateTime::UNIX_EPOCH);
                if let Err(error) = released.await {
                    tracing::debug!(
                        error = mesh_runtime::error_chain(&error),
                        "replay lease not released"
                    );
                }
            }
            Err(Stop::Store(error)) => tracing::warn!(
                replay.id = id,
                error = mesh_runtime::error_chain(&error),
                "replay interrupted, resumes after its lease expires"
            ),
        }
    }

    /// Continues a claimed replay.
    async fn go_on(
        &self,
        claimed: &mut ReplayLease,
        shutdown: &CancellationToken,
    ) -> Result<(), Stop> {
        if claimed.replay.audited < AuditProgress::Begin {
            let entries = claimed.replay.audit_entries(false, &self.cluster);
            self.audit(claimed, entries, shutdown).await?;
            claimed.replay.audited = AuditProgress::Begin;
            self.save(claimed, claimed.replay.state).await?;
        }
        if claimed.replay.state == ReplayState::Running {
            self.publish_events(claimed, shutdown).await?;
        }
        self.take_back(&claimed.replay).await;
        let entries = claimed.replay.audit_entries(true, &self.cluster);
        self.audit(claimed, entries, shutdown).await?;
        claimed.replay.audited = AuditProgress::End;
        self.save(claimed, claimed.replay.state).await
    }

    /// Publishes page after page.
    async fn publish_events(
        &self,
        claimed: &mut ReplayLease,
        shutdown: &CancellationToken,
    ) -> Result<(), Stop> {
        let request = claimed.replay.request.clone();
        let limit = page(request.rate);
        let visibility = request.requester.visibility();
        let selection = match request.selection() {
            Ok(selection) => selection,
            Err(invalid) => {
                return self
                    .end(claimed, ReplayState::Failed, invalid.to_string())
                    .await;
            }
        };
        loop {
            let begun = Instant::now();
            let (after, to) = (claimed.replay.cursor, claimed.replay.to_seq);
            let found = self
                .store
                .recorded(&selection, &visibility, after, to, limit);
            let mut found = match found.await {
                // A missing body is permanent.
                Err(error @ Error::Corrupt { .. }) => {
                    return self
                        .end(claimed, ReplayState::Failed, error.to_string())
                        .await;
                }
                found => found?,
            };
            let more = found.len() > limit as usize;
            found.truncate(limit as usize);
            let count = found.len();
            let mut replay = claimed.replay.clone();
            let mut events = Vec::with_capacity(count);
            for entry in found {
                let body = Bytes::from(entry.body);
                let Ok(event) = Event::from_bytes(&body) else {
                    let corrupt = Error::Corrupt { seq: entry.seq };
                    return self
                        .end(claimed, ReplayState::Failed, corrupt.to_string())
                        .await;
                };
                replay.add_sent(entry.seq, owner(&event));
                events.push(ReplayedEvent {
                    original: entry.subject,
                    event,
                    body,
                });
            }
            if let Err(problem) = self.publish(claimed, events, shutdown).await? {
                return self.end(claimed, ReplayState::Failed, problem).await;
            }
            claimed.replay = Replay {
                problem: String::new(),
                ..replay
            };
            metrics::replayed(count);
            if !more {
                return self.end(claimed, ReplayState::Done, String::new()).await;
            }
            self.save(claimed, ReplayState::Running).await?;
            wait(pause(count, request.rate, begun.elapsed()), shutdown).await?;
        }
    }

    /// Publishes a page. Waits while NATS is unavailable or the stream is full. The inner error is
    /// permanent.
    async fn publish(
        &self,
        claimed: &mut ReplayLease,
        events: Vec<ReplayedEvent>,
        shutdown: &CancellationToken,
    ) -> Result<Result<(), String>, Stop> {
        let endpoint = claimed.replay.request.requested.endpoint.clone();
        let id = claimed.replay.id.clone();
        let mut backoff = BACKOFF;
        loop {
            let sent = self
                .bus
                .publish_replayed(&id, endpoint.as_deref(), events.clone());
            let error = tokio::select! {
                sent = sent => match sent {
                    Ok(()) => return Ok(Ok(())),
                    Err(error) => error,
                },
                () = shutdown.cancelled() => return Err(Stop::Shutdown),
            };
            let problem = mesh_runtime::error_chain(&error);
            if matches!(error, mesh_bus::Error::Invalid { .. }) {
                return Ok(Err(problem));
            }
            self.wait_for_nats(claimed, problem, &mut backoff, shutdown)
                .await?;
        }
    }

    /// Publishes audit entries, with retries until success.
    async fn audit(
        &self,
        claimed: &mut ReplayLease,
        entries: Vec<AuditEntry>,
        shutdown: &CancellationToken,
    ) -> Result<(), Stop> {
        let mut backoff = BACKOFF;
        for entry in entries {
            let body = entry.encode_to_vec();
            loop {
                let subject = subject::audit(&entry.cluster, &entry.kind);
                match self.bus.publish_raw(subject, &entry.id, body.clone()).await {
                    Ok(_) => break,
                    Err(error) => {
                        let problem = mesh_runtime::error_chain(&error);
                        self.wait_for_nats(claimed, problem, &mut backoff, shutdown)
                            .await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Stores the problem, which also extends the lease, and pauses briefly.
    async fn wait_for_nats(
        &self,
        claimed: &mut ReplayLease,
        problem: String,
        backoff: &mut Backoff,
        shutdown: &CancellationToken,
    ) -> Result<(), Stop> {
        if claimed.replay.state == ReplayState::Running && claimed.replay.problem != problem {
            tracing::warn!(
                replay.id = claimed.replay.id,
                error = problem,
                "replay waiting for NATS"
            );
            claimed.replay.problem = problem;
        }
        self.save(claimed, claimed.replay.state).await?;
        wait(backoff.next_delay(), shutdown).await
    }

    async fn end(
        &self,
        claimed: &mut ReplayLease,
        state: ReplayState,
        problem: String,
    ) -> Result<(), Stop> {
        claimed.replay.end(state, problem, Utc::now());
        self.save(claimed, ReplayState::Running).await
    }

    async fn save(&self, claimed: &ReplayLease, before: ReplayState) -> Result<(), Stop> {
        let until = Utc::now() + LEASE_DURATION;
        match self.store.save_replay(claimed, before, until).await? {
            true => Ok(()),
            false => Err(Stop::Lost),
        }
    }
}

async fn wait(time: Duration, shutdown: &CancellationToken) -> Result<(), Stop> {
    tokio::select! {
        () = shutdown.cancelled() => Err(Stop::Shutdown),
        () = tokio::time::sleep(time) => Ok(()),
    }
}
