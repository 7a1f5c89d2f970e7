//! Tells recorded events once more.
//!
//! A replay is a row of the database. Any ledger may work on it, one at a time: who does holds a lease, and every write carries the
//! fence of the claim, so that one that was thought dead changes nothing any more. The cursor moves after JetStream has stored what is before
//! it; what is told again after a crash has the same message id, and is dropped as long as JetStream remembers it. No event
//! is told before the audit has it that the replay began.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::{Bus, Replayed};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::{Event, subject};
use prost::Message as _;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::{Claimed, Store};
use crate::api::owner;
use crate::domain::replay::{Audited, Replay, State, page, pause};
use crate::error::Error;
use crate::metrics;

/// Replays that one process works on at the same time; others wait.
const AT_ONCE: usize = 8;
/// How often it is looked for replays that another replica took the order for, or left behind.
const LOOK: Duration = Duration::from_secs(1);
/// After this time without a word somebody else goes on. Longer than JetStream has for an answer, and the database to note it.
const LEASE: TimeDelta = TimeDelta::seconds(15);
/// Pauses after NATS did not take a page.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Replays that ended are forgotten after this time.
const REMEMBER: TimeDelta = TimeDelta::days(30);
const FORGET: Duration = Duration::from_secs(3600);
/// How often what they told is cleared away.
const CLEAR: TimeDelta = TimeDelta::seconds(60);
/// What is older the stream has let go by itself.
const MESH_REPLAY_AGE: TimeDelta = TimeDelta::days(4);

/// Works on replays. Cheap to clone.
#[derive(Clone)]
pub struct Replayer {
    store: Store,
    bus: Bus,
    cluster: Arc<str>,
    wake: Arc<Notify>,
    keep: Duration,
}

/// Why the work on a replay stops here.
enum Stop {
    /// Told to stop: somebody else, or the next start, goes on.
    Shutdown,
    /// It is another's, or was cancelled.
    Lost,
    /// The database cannot be reached: somebody goes on when the lease is over.
    Store(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Replayer {
    /// Reads a store and writes to a bus; `cluster` is whose audit has the entries. What was told stays on the bus for `keep` after the end.
    pub fn new(store: Store, bus: Bus, cluster: &str, keep: Duration) -> Self {
        Self {
            store,
            bus,
            cluster: cluster.into(),
            wake: Arc::default(),
            keep,
        }
    }

    /// The Unix user to whom a webhook endpoint belongs, as the dispatcher told NATS; empty for the operator's, `None` if there is no such endpoint.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn endpoint_owner(&self, endpoint: &str) -> Result<Option<String>, mesh_bus::Error> {
        self.bus.endpoint_owner(endpoint).await
    }

    /// There is something new to do.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Works on whatever is open until told to stop; then leaves it to others at once.
    pub async fn keep(self, shutdown: CancellationToken) {
        let mut works = JoinSet::new();
        let mut forgotten: Option<Instant> = None;
        let mut cleared: Option<DateTime<Utc>> = None;
        let mut told = false;
        while !shutdown.is_cancelled() {
            match self.start(&mut works, &shutdown).await {
                Ok(()) => told = false,
                Err(error) if !told => {
                    told = true;
                    tracing::warn!(error = mesh_runtime::chain(&error), "look for replays");
                }
                Err(_) => {}
            }
            if forgotten.is_none_or(|at| at.elapsed() >= FORGET) && !told {
                let forget = self.store.forget_replays(Utc::now() - REMEMBER);
                if let Err(error) = forget.await {
                    tracing::warn!(error = mesh_runtime::chain(&error), "forget old replays");
                }
                forgotten = Some(Instant::now());
            }
            let until = Utc::now() - TimeDelta::from_std(self.keep).unwrap_or(MESH_REPLAY_AGE);
            if cleared.is_none_or(|before| until - before >= CLEAR) && !told {
                let since = cleared.unwrap_or(until - MESH_REPLAY_AGE);
                match self.clear(since, until).await {
                    Ok(()) => cleared = Some(until),
                    Err(error) => tracing::debug!(error, "take away what old replays told"),
                }
            }
            metrics::replays(works.len());
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
                Some(_) = works.join_next() => {}
            }
        }
        while works.join_next().await.is_some() {}
    }

    /// Takes away what a cancelled replay told.
    async fn take_back(&self, replay: &Replay) {
        if replay.state != State::Cancelled {
            return;
        }
        if let Err(error) = self.bus.purge_replay(&replay.id).await {
            // It is done when old ones are cleared.
            let error = mesh_runtime::chain(&error);
            tracing::debug!(error, "take away what a cancelled replay told");
        }
    }

    /// Takes away what was told by replays that ended in some time, so that the stream does not stay full of it.
    async fn clear(&self, since: DateTime<Utc>, until: DateTime<Utc>) -> Result<(), String> {
        let ended = self.store.replays_that_ended(since, until).await;
        for id in ended.map_err(|error| mesh_runtime::chain(&error))? {
            let purged = self.bus.purge_replay(&id).await;
            purged.map_err(|error| mesh_runtime::chain(&error))?;
        }
        Ok(())
    }

    /// Begins to work on what nobody works on.
    async fn start(
        &self,
        works: &mut JoinSet<()>,
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        while works.len() < AT_ONCE {
            let now = Utc::now();
            let Some(claimed) = self.store.claim_replay(now, now + LEASE).await? else {
                break;
            };
            let (replayer, shutdown) = (self.clone(), shutdown.clone());
            works.spawn(async move { replayer.work(claimed, &shutdown).await });
        }
        Ok(())
    }

    async fn work(&self, mut claimed: Claimed, shutdown: &CancellationToken) {
        let id = claimed.replay.id.clone();
        match self.go_on(&mut claimed, shutdown).await {
            Ok(()) => tracing::info!(
                replay.id = id,
                sent = claimed.replay.sent,
                outcome = claimed.replay.state.as_str(),
                "replay ended"
            ),
            Err(Stop::Lost) => {
                tracing::debug!(replay.id = id, "replay is another's or cancelled");
                // Of one that was cancelled, what was told meanwhile does not stay either.
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
                    tracing::debug!(error = mesh_runtime::chain(&error), "release replay");
                }
            }
            Err(Stop::Store(error)) => tracing::warn!(
                replay.id = id,
                error = mesh_runtime::chain(&error),
                "replay goes on when its lease is over"
            ),
        }
    }

    /// Does what is left to do.
    async fn go_on(&self, claimed: &mut Claimed, shutdown: &CancellationToken) -> Result<(), Stop> {
        if claimed.replay.audited < Audited::Begin {
            let entries = claimed.replay.audit_entries(false, &self.cluster);
            self.audit(claimed, entries, shutdown).await?;
            claimed.replay.audited = Audited::Begin;
            self.save(claimed, claimed.replay.state).await?;
        }
        if claimed.replay.state == State::Running {
            self.tell(claimed, shutdown).await?;
        }
        self.take_back(&claimed.replay).await;
        let entries = claimed.replay.audit_entries(true, &self.cluster);
        self.audit(claimed, entries, shutdown).await?;
        claimed.replay.audited = Audited::End;
        self.save(claimed, claimed.replay.state).await
    }

    /// Tells page after page, to the end.
    async fn tell(&self, claimed: &mut Claimed, shutdown: &CancellationToken) -> Result<(), Stop> {
        let request = claimed.replay.request.clone();
        let limit = page(request.rate);
        let sight = request.who.sight();
        let selection = match request.selection() {
            Ok(selection) => selection,
            Err(invalid) => return self.end(claimed, State::Failed, invalid.to_string()).await,
        };
        loop {
            let begun = Instant::now();
            let (after, to) = (claimed.replay.cursor, claimed.replay.to_seq);
            let found = self.store.recorded(&selection, &sight, after, to, limit);
            let mut found = match found.await {
                // A body is missing: it does not come back.
                Err(error @ Error::Corrupt { .. }) => {
                    return self.end(claimed, State::Failed, error.to_string()).await;
                }
                found => found?,
            };
            let more = found.len() > limit as usize;
            found.truncate(limit as usize);
            let count = found.len();
            let mut told = claimed.replay.clone();
            let mut events = Vec::with_capacity(count);
            for entry in found {
                let body = Bytes::from(entry.body);
                let Ok(event) = Event::from_bytes(&body) else {
                    let corrupt = Error::Corrupt { seq: entry.seq };
                    return self.end(claimed, State::Failed, corrupt.to_string()).await;
                };
                told.told(entry.seq, owner(&event));
                events.push(Replayed {
                    original: entry.subject,
                    event,
                    body,
                });
            }
            if let Err(problem) = self.publish(claimed, events, shutdown).await? {
                return self.end(claimed, State::Failed, problem).await;
            }
            claimed.replay = Replay {
                problem: String::new(),
                ..told
            };
            metrics::replayed(count);
            if !more {
                return self.end(claimed, State::Done, String::new()).await;
            }
            self.save(claimed, State::Running).await?;
            wait(pause(count, request.rate, begun.elapsed()), shutdown).await?;
        }
    }

    /// Publishes a page, however long NATS is away or the stream is full. The inner error is one that waiting does not mend.
    async fn publish(
        &self,
        claimed: &mut Claimed,
        events: Vec<Replayed>,
        shutdown: &CancellationToken,
    ) -> Result<Result<(), String>, Stop> {
        let endpoint = claimed.replay.request.wanted.endpoint.clone();
        let id = claimed.replay.id.clone();
        let mut delay = FIRST_PAUSE;
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
            let problem = mesh_runtime::chain(&error);
            if matches!(error, mesh_bus::Error::Invalid { .. }) {
                return Ok(Err(problem));
            }
            self.wait_for_nats(claimed, problem, &mut delay, shutdown)
                .await?;
        }
    }

    /// Writes entries into the audit, however long that takes.
    async fn audit(
        &self,
        claimed: &mut Claimed,
        entries: Vec<AuditEntry>,
        shutdown: &CancellationToken,
    ) -> Result<(), Stop> {
        let mut delay = FIRST_PAUSE;
        for entry in entries {
            let body = entry.encode_to_vec();
            loop {
                let subject = subject::audit(&entry.cluster, &entry.kind);
                match self.bus.publish_raw(subject, &entry.id, body.clone()).await {
                    Ok(_) => break,
                    Err(error) => {
                        let problem = mesh_runtime::chain(&error);
                        self.wait_for_nats(claimed, problem, &mut delay, shutdown)
                            .await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes what is in the way, which keeps the lease, and waits a little.
    async fn wait_for_nats(
        &self,
        claimed: &mut Claimed,
        problem: String,
        delay: &mut Duration,
        shutdown: &CancellationToken,
    ) -> Result<(), Stop> {
        if claimed.replay.state == State::Running && claimed.replay.problem != problem {
            tracing::warn!(
                replay.id = claimed.replay.id,
                error = problem,
                "replay waits for NATS"
            );
            claimed.replay.problem = problem;
        }
        self.save(claimed, claimed.replay.state).await?;
        wait(*delay, shutdown).await?;
        *delay = (*delay * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    async fn end(&self, claimed: &mut Claimed, state: State, problem: String) -> Result<(), Stop> {
        claimed.replay.end(state, problem, Utc::now());
        self.save(claimed, State::Running).await
    }

    async fn save(&self, claimed: &Claimed, before: State) -> Result<(), Stop> {
        let until = Utc::now() + LEASE;
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
