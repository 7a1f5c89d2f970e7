//! Leadership: one replica of a service leads per cluster; the others are on standby.
//!
//! The leader renews an entry `<cluster>.<service>` of bucket `mesh_leases`. A standby takes the entry after it has seen the same revision
//! for [`LEASE_TTL`] by its own monotonic clock, or at once if the leader has released it. Clocks of different hosts are never compared.
//!
//! A lease is no fence: a paused leader does not know that it has been replaced. [`crate::ClusterState`] refuses its writes. A leader that
//! cannot reach NATS becomes unsure. It leads again if no other replica has taken the entry meanwhile: without NATS it can publish nothing.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mesh_events::{catalogue, subject};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::bucket::{Bucket, BucketEntry, PutError};
use crate::{Bus, Error, metrics};

/// A standby takes over after this time without a renewal.
const LEASE_TTL: Duration = Duration::from_secs(6);
/// Interval of renewals.
const RENEW_INTERVAL: Duration = Duration::from_millis(1_500);
/// A renewal without an answer in this time is retried.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of a standby's polls.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Polls further apart prove nothing about the time between them: the standby was paused, or NATS was unavailable.
const MAX_POLL_GAP: Duration = Duration::from_secs(3);
/// A slower poll does not count: NATS was unavailable, so the leader could not renew. A faster one is a slow server.
const POLL_TIMEOUT: Duration = Duration::from_secs(4);

/// Leadership of a replica at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadershipState {
    /// Not known: NATS has not answered yet, or the lease was released.
    Starting,
    /// Another replica leads.
    Standby,
    /// This replica leads.
    Leader,
    /// The lease cannot be read or renewed: another replica may lead.
    Unsure,
}

impl LeadershipState {
    /// The state in lower case, as health and metrics show it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby => "standby",
            Self::Leader => "leader",
            Self::Unsure => "unsure",
        }
    }
}

/// A replica of a service that competes for leadership of a cluster.
pub struct Candidate {
    bus: Bus,
    service: String,
    cluster: String,
    state: watch::Sender<LeadershipState>,
}

/// A term of leadership. Released when dropped.
pub struct Lease {
    /// Cancelled when another replica leads.
    pub lost: CancellationToken,
    given_up: Option<oneshot::Sender<()>>,
    renewing: Option<tokio::task::JoinHandle<()>>,
}

impl Bus {
    /// A candidate of this connection's service.
    pub fn candidate(&self, cluster: &str) -> Candidate {
        Candidate {
            bus: self.clone(),
            service: self.role().to_owned(),
            cluster: cluster.to_owned(),
            state: watch::Sender::new(LeadershipState::Starting),
        }
    }
}

impl Candidate {
    /// Subscribes to this replica's leadership state.
    pub fn state(&self) -> watch::Receiver<LeadershipState> {
        self.state.subscribe()
    }

    /// Waits until this replica leads.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when `shutdown` is cancelled.
    pub async fn lead(&self, shutdown: &CancellationToken) -> Result<Lease, Error> {
        let mut watched = Watched::default();
        let mut last_read = Instant::now();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Err(Error::Cancelled),
                taken = self.try_lead(&mut watched) => match taken {
                    Ok(Some(lease)) => return Ok(lease),
                    Ok(None) => last_read = Instant::now(),
                    Err(error) => {
                        if last_read.elapsed() >= POLL_TIMEOUT {
                            self.set_state(LeadershipState::Unsure);
                        }
                        tracing::debug!(error = &error as &dyn std::error::Error, "lease not read");
                    }
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return Err(Error::Cancelled),
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    async fn try_lead(&self, watched: &mut Watched) -> Result<Option<Lease>, Error> {
        let began = Instant::now();
        let bucket = self.bus.bucket(catalogue::BUCKET_LEASES).await?;
        let key = format!("{}.{}", subject::token(&self.cluster), self.service);
        let entry = bucket.get(&key).await?;
        if !watched.is_free(entry.as_ref(), began, Instant::now()) {
            self.set_state(LeadershipState::Standby);
            return Ok(None);
        }
        let revision = entry.as_ref().map(|entry| entry.revision);
        let mut term = Term {
            bucket,
            key,
            holder: uuid::Uuid::new_v4().to_string(),
            revision,
            renewed: Instant::now(),
        };
        match term.renew().await {
            Ok(()) => {
                if let Some(entry) = entry.filter(is_foreign) {
                    let bucket = catalogue::BUCKET_LEASES;
                    let (key, bytes) = (entry.key, entry.value.len());
                    tracing::warn!(
                        bucket,
                        key,
                        bytes,
                        "lease was not written by a replica, taken over"
                    );
                }
            }
            // Another standby was faster.
            Err(PutError::Conflict { .. }) => return Ok(None),
            Err(PutError::Bus(error)) => return Err(error),
        }
        self.set_state(LeadershipState::Leader);
        let lost = CancellationToken::new();
        let (given_up, release) = oneshot::channel();
        let renewer = LeaseRenewer {
            term,
            state: self.state.clone(),
            service: self.service.clone(),
            cluster: self.cluster.clone(),
            lost: lost.clone(),
        };
        Ok(Some(Lease {
            lost,
            given_up: Some(given_up),
            renewing: Some(tokio::spawn(renewer.run(release))),
        }))
    }

    fn set_state(&self, state: LeadershipState) {
        let is_leader = state == LeadershipState::Leader;
        metrics::leader(&self.service, &self.cluster, is_leader);
        self.state.send_if_modified(|was| {
            let changed = *was != state;
            *was = state;
            changed
        });
    }
}

impl Lease {
    /// Releases the lease, so that a standby need not wait.
    pub async fn give_up(mut self) {
        drop(self.given_up.take());
        if let Some(renewing) = self.renewing.take()
            && tokio::time::timeout(Duration::from_secs(2), renewing)
                .await
                .is_err()
        {
            tracing::debug!("lease not released, it expires");
        }
    }
}

/// Whether the value is neither that of a holder nor that of a released lease.
fn is_foreign(entry: &BucketEntry) -> bool {
    !entry.value.is_empty() && uuid::Uuid::try_parse_ascii(&entry.value).is_err()
}

/// A standby's observations of an entry.
#[derive(Debug, Default)]
struct Watched {
    /// Revision, and when it was seen first and last.
    seen: Option<(u64, Instant, Instant)>,
}

impl Watched {
    /// True if no replica leads, after a poll from `began` to `now`. Time counts from the end of the first poll to the end of the last: a
    /// renewal during the last makes the attempt to take the entry fail.
    fn is_free(&mut self, entry: Option<&BucketEntry>, began: Instant, now: Instant) -> bool {
        let Some(entry) = entry.filter(|entry| !entry.value.is_empty()) else {
            return true;
        };
        let first = match self.seen {
            Some((revision, first, last))
                if revision == entry.revision
                    && began.duration_since(last) <= MAX_POLL_GAP
                    && now.duration_since(began) <= POLL_TIMEOUT =>
            {
                first
            }
            _ => now,
        };
        self.seen = Some((entry.revision, first, now));
        now.duration_since(first) >= LEASE_TTL
    }
}

/// The lease entry while this replica holds it.
struct Term {
    bucket: Bucket,
    key: String,
    holder: String,
    revision: Option<u64>,
    /// When the last successful renewal began.
    renewed: Instant,
}

impl Term {
    async fn renew(&mut self) -> Result<(), PutError> {
        self.write(Bytes::from(self.holder.clone())).await
    }

    async fn write(&mut self, value: Bytes) -> Result<(), PutError> {
        let began = Instant::now();
        let revision = match self.bucket.put(&self.key, value, self.revision).await {
            Ok(revision) => revision,
            // Our own renewal whose answer was lost looks like another writer's.
            Err(PutError::Conflict { key }) => match self.bucket.get(&self.key).await? {
                Some(entry) if entry.value == self.holder => entry.revision,
                _ => return Err(PutError::Conflict { key }),
            },
            Err(error) => return Err(error),
        };
        self.revision = Some(revision);
        self.renewed = began;
        Ok(())
    }
}

/// Renews until the lease is released or lost.
struct LeaseRenewer {
    term: Term,
    state: watch::Sender<LeadershipState>,
    service: String,
    cluster: String,
    lost: CancellationToken,
}

impl LeaseRenewer {
    async fn run(mut self, mut given_up: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                // Ready when `give_up` or a drop closes the channel.
                _ = &mut given_up => break,
                () = tokio::time::sleep(RENEW_INTERVAL) => {}
            }
            match tokio::time::timeout(REQUEST_TIMEOUT, self.term.renew()).await {
                Ok(Ok(())) => self.set_state(LeadershipState::Leader),
                Ok(Err(PutError::Conflict { .. })) => {
                    self.set_state(LeadershipState::Standby);
                    self.lost.cancel();
                    return;
                }
                Ok(Err(PutError::Bus(_))) | Err(_) => {
                    if self.term.renewed.elapsed() >= LEASE_TTL - RENEW_INTERVAL {
                        self.set_state(LeadershipState::Unsure);
                    }
                }
            }
        }
        // An empty value means that no replica leads.
        if let Err(error) = self.term.write(Bytes::new()).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "release lease");
        }
        self.set_state(LeadershipState::Starting);
    }

    fn set_state(&self, state: LeadershipState) {
        if self.state.send_replace(state) != state {
            let is_leader = state == LeadershipState::Leader;
            metrics::leader(&self.service, &self.cluster, is_leader);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(revision: u64, value: &'static str) -> BucketEntry {
        BucketEntry {
            key: "c.ingest".to_owned(),
            value: value.into(),
            revision,
        }
    }

    /// Polls at (milliseconds, revision); returns the times at which the lease was free.
    fn free_at(reads: &[(u64, u64)]) -> Vec<u64> {
        let reads = reads.iter().map(|(at, revision)| (*at, *at, *revision));
        free_after(&reads.collect::<Vec<_>>())
    }

    /// Polls of some length: (begin, end, revision).
    fn free_after(reads: &[(u64, u64, u64)]) -> Vec<u64> {
        let (mut watched, begin) = (Watched::default(), Instant::now());
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let is_free = |(began, now, revision): &&(u64, u64, u64)| {
            let entry = entry(*revision, "holder");
            watched.is_free(Some(&entry), at(*began), at(*now))
        };
        let free = reads.iter().filter(is_free);
        free.map(|(_, now, _)| *now).collect()
    }

    #[test]
    fn a_slow_poll_does_not_restart_the_wait() {
        let reads = [(0, 10, 7), (510, 4_010, 7), (4_510, 7_600, 7)];
        assert_eq!(free_after(&reads), [7_600]);
    }

    #[test]
    fn a_lease_read_interrupted_by_nats_restarts() {
        let reads = [(0, 10, 7), (510, 9_000, 7), (9_500, 9_510, 7)];
        assert_eq!(free_after(&reads), [0; 0]);
    }

    #[test]
    fn a_lease_that_is_renewed_is_not_free() {
        let reads: Vec<_> = (0..40).map(|read| (read * 500, read / 3)).collect();
        assert_eq!(free_at(&reads), [0; 0]);
    }

    #[test]
    fn a_lease_is_free_after_a_term_without_renewal() {
        let reads: Vec<_> = (0..14).map(|read| (read * 500, 7)).collect();
        assert_eq!(free_at(&reads), [6_000, 6_500]);
    }

    #[test]
    fn a_standby_that_did_not_poll_restarts_the_wait() {
        assert_eq!(
            free_at(&[(0, 7), (60_000, 7), (62_000, 7), (64_000, 7), (66_000, 7)]),
            [66_000]
        );
    }

    #[test]
    fn a_lease_of_foreign_bytes_is_recognised() {
        let holder = uuid::Uuid::new_v4().to_string();
        let with = |value: &[u8]| BucketEntry {
            value: Bytes::copy_from_slice(value),
            ..entry(3, "")
        };
        for (value, foreign) in [
            (holder.as_bytes(), false),
            (b"", false),
            (b"\xff\x00", true),
            (b"me", true),
        ] {
            assert_eq!(is_foreign(&with(value)), foreign, "{value:?}");
        }
    }

    #[test]
    fn a_missing_or_released_lease_is_taken_at_once() {
        let mut watched = Watched::default();
        let now = Instant::now();
        assert!(watched.is_free(None, now, now));
        assert!(watched.is_free(Some(&entry(3, "")), now, now));
    }
}
