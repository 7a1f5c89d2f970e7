//! A bucket's keys of the cluster, written by one ingest at a time: another one's first write makes every write from here fail.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use mesh_bus::{BucketEntry, Bus, ClusterState, PutError};
use mesh_events::Event;
use mesh_runtime::{Condition, error_chain};
use prost::Message as _;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::Error;

/// Until it works, or until shutdown.
pub const NO_TIMEOUT: Duration = Duration::MAX;

/// The first of growing pauses between two attempts.
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The keys of a cluster in a bucket.
pub struct Fenced {
    state: ClusterState,
    name: &'static str,
    health: Health,
    shutdown: CancellationToken,
}

/// Whether the bucket does what it is asked: one log line per change, and a condition of readiness.
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
    /// Takes over what a bucket has under a prefix, the cluster's token, and reads it, until it works.
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
        let mut delay = FIRST_PAUSE;
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
                    pause(shutdown, &mut delay).await?;
                }
            }
        }
    }

    /// Writes a value as JSON, trying again for so long. Returns whether it is stored.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn put(
        &mut self,
        key: String,
        value: &impl Serialize,
        patience: Duration,
    ) -> Result<bool, Error> {
        let value: Bytes = match serde_json::to_vec(value) {
            Ok(value) => value.into(),
            Err(source) => return Err(Error::Encode { key, source }),
        };
        let (began, mut delay) = (Instant::now(), FIRST_PAUSE);
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
            if began.elapsed() >= patience {
                return Ok(false);
            }
            pause(&self.shutdown, &mut delay).await?;
        }
    }

    /// Looks now and then whether the bucket has what was written, and puts it back.
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
pub async fn pause(shutdown: &CancellationToken, delay: &mut Duration) -> Result<(), Error> {
    tokio::select! {
        () = shutdown.cancelled() => return Err(Error::Stopped),
        () = tokio::time::sleep(delay.mul_f64(0.5 + rand::random::<f64>() / 2.0)) => {}
    }
    *delay = (*delay * 2).min(Duration::from_secs(5));
    Ok(())
}

/// An event as an outbox has it.
pub fn pack(event: &Event) -> String {
    STANDARD.encode(event.encode_to_vec())
}

/// The events of an outbox.
pub fn unpack(outbox: &[String]) -> Result<Vec<Event>, Box<dyn std::error::Error + Send + Sync>> {
    outbox
        .iter()
        .map(|text| Ok(Event::from_bytes(&STANDARD.decode(text)?)?))
        .collect()
}
