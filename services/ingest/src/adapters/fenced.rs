//! Fenced writes to one cluster's keys of a bucket: the first write of another ingest makes every later write from here fail.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use mesh_bus::{Backoff, BucketEntry, Bus, ClusterState, PutError};
use mesh_events::Event;
use mesh_runtime::{Condition, error_chain};
use prost::Message as _;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::Error;

/// Format version of the stored values.
pub const VERSION: u32 = 1;

/// Retry until success or shutdown.
pub const NO_TIMEOUT: Duration = Duration::MAX;

/// Delays between two attempts.
pub const BACKOFF: Backoff =
    Backoff::doubling(Duration::from_millis(50), Duration::from_secs(5)).with_jitter(0.5);

/// One cluster's keys of a bucket.
pub struct Fenced {
    state: ClusterState,
    name: &'static str,
    health: Health,
    shutdown: CancellationToken,
}

/// Availability of the bucket: logs once per change, and is a condition of readiness.
struct Health {
    condition: Condition,
    failing: bool,
}

impl Health {
    const fn new(condition: Condition) -> Self {
        Self {
            condition,
            failing: false,
        }
    }

    fn works(&mut self, bucket: &str) {
        self.condition.ok();
        if std::mem::take(&mut self.failing) {
            tracing::info!(bucket, "state store available again");
        }
    }

    fn fails(&mut self, bucket: &str, error: &mesh_bus::Error) {
        let reason = error_chain(error);
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(
                bucket,
                reason,
                "state store unavailable, events withheld, retrying"
            );
        }
        self.condition.fail(reason);
    }
}

impl Fenced {
    /// Takes over the keys under `prefix`, the cluster's token, and reads them. Retries until success.
    ///
    /// # Errors
    /// On shutdown.
    pub async fn load(
        bus: &Bus,
        name: &'static str,
        prefix: &str,
        condition: Condition,
        shutdown: &CancellationToken,
    ) -> Result<(Self, Vec<BucketEntry>), Error> {
        let mut health = Health::new(condition);
        let mut backoff = BACKOFF;
        loop {
            match bus.take_over(name, prefix).await {
                Ok((state, entries)) => {
                    health.works(name);
                    let fenced = Self {
                        state,
                        name,
                        health,
                        shutdown: shutdown.clone(),
                    };
                    return Ok((fenced, entries));
                }
                Err(error) => {
                    health.fails(name, &error);
                    pause(shutdown, &mut backoff).await?;
                }
            }
        }
    }

    /// Writes a value as JSON and retries for at most `max_wait`. Returns whether it is stored.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn put(
        &mut self,
        key: String,
        value: &impl Serialize,
        max_wait: Duration,
    ) -> Result<bool, Error> {
        let value: Bytes = match serde_json::to_vec(value) {
            Ok(value) => value.into(),
            Err(source) => return Err(Error::Encode { key, source }),
        };
        let (began, mut backoff) = (Instant::now(), BACKOFF);
        loop {
            match self.state.put(&key, value.clone()).await {
                Ok(()) => {
                    self.health.works(self.name);
                    return Ok(true);
                }
                Err(PutError::Conflict { key }) => {
                    let bucket = self.name;
                    return Err(Error::Fenced { key, bucket });
                }
                Err(PutError::Bus(error)) => self.health.fails(self.name, &error),
            }
            if began.elapsed() >= max_wait {
                return Ok(false);
            }
            pause(&self.shutdown, &mut backoff).await?;
        }
    }

    /// Puts a value aside that cannot be read, so that the key can be written again. Retries until success.
    ///
    /// # Errors
    /// On shutdown; [`Error::Fenced`] if another ingest has taken over.
    pub async fn put_aside(
        &mut self,
        entry: &BucketEntry,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> Result<(), Error> {
        let (bucket, key) = (self.name, &entry.key);
        if entry.is_newer_than(VERSION) {
            let key = key.clone();
            return Err(Error::State {
                bucket,
                key,
                source,
            });
        }
        let reason = error_chain(&*source);
        let mut backoff = BACKOFF;
        loop {
            match self.state.put_aside(entry, &reason).await {
                Ok(_) => return Ok(()),
                Err(PutError::Conflict { key }) => return Err(Error::Fenced { bucket, key }),
                Err(PutError::Bus(error)) => self.health.fails(bucket, &error),
            }
            pause(&self.shutdown, &mut backoff).await?;
        }
    }

    /// Checks from time to time that the bucket still has what was written, and restores it if not.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn check(&mut self) -> Result<(), Error> {
        match self.state.check().await {
            Ok(()) => Ok(()),
            Err(PutError::Conflict { key }) => Err(Error::Fenced {
                key,
                bucket: self.name,
            }),
            Err(PutError::Bus(error)) => {
                self.health.fails(self.name, &error);
                Ok(())
            }
        }
    }

    /// Whether the last attempt failed.
    pub const fn is_failing(&self) -> bool {
        self.health.failing
    }
}

/// Waits between two attempts, longer each time.
///
/// # Errors
/// On shutdown.
pub async fn pause(shutdown: &CancellationToken, backoff: &mut Backoff) -> Result<(), Error> {
    match backoff.wait(shutdown).await {
        true => Ok(()),
        false => Err(Error::Stopped),
    }
}

/// Encodes an event for an outbox.
pub fn pack(event: &Event) -> String {
    STANDARD.encode(event.encode_to_vec())
}

/// Decodes the events of an outbox.
pub fn unpack(outbox: &[String]) -> Result<Vec<Event>, Box<dyn std::error::Error + Send + Sync>> {
    outbox
        .iter()
        .map(|text| Ok(Event::from_bytes(&STANDARD.decode(text)?)?))
        .collect()
}
