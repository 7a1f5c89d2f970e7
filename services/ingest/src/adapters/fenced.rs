//! A bucket of which each key has one writer: every write names the revision it replaces.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use mesh_bus::{Bucket, BucketEntry, Bus, PutError};
use mesh_events::Event;
use prost::Message as _;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::Error;

/// The bucket, and the revisions this process has seen.
pub struct Fenced {
    bucket: Bucket,
    name: &'static str,
    revisions: HashMap<String, u64>,
    shutdown: CancellationToken,
}

impl Fenced {
    /// Opens a bucket and reads what it has under a prefix, until it works.
    ///
    /// # Errors
    /// If told to stop.
    pub async fn load(
        bus: &Bus,
        name: &'static str,
        prefix: &str,
        shutdown: &CancellationToken,
    ) -> Result<(Self, Vec<BucketEntry>), Error> {
        let mut delay = Duration::from_millis(50);
        loop {
            let read = async {
                let bucket = bus.bucket(name).await?;
                let entries = bucket.load(prefix).await?;
                Ok::<_, mesh_bus::Error>((bucket, entries))
            };
            match read.await {
                Ok((bucket, entries)) => {
                    let revisions = entries
                        .iter()
                        .map(|entry| (entry.key.clone(), entry.revision))
                        .collect();
                    let fenced = Self {
                        bucket,
                        name,
                        revisions,
                        shutdown: shutdown.clone(),
                    };
                    return Ok((fenced, entries));
                }
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        bucket = name,
                        "read state, trying again"
                    );
                    pause(shutdown, &mut delay).await?;
                }
            }
        }
    }

    /// Writes a value as JSON, until it works.
    ///
    /// # Errors
    /// [`Error::Fenced`] if somebody else wrote the key.
    pub async fn put(&mut self, key: String, value: &impl Serialize) -> Result<(), Error> {
        let value: Bytes = match serde_json::to_vec(value) {
            Ok(value) => value.into(),
            Err(source) => return Err(Error::Encode { key, source }),
        };
        let mut delay = Duration::from_millis(50);
        loop {
            match self
                .bucket
                .put(&key, value.clone(), self.revisions.get(&key).copied())
                .await
            {
                Ok(revision) => {
                    self.revisions.insert(key, revision);
                    return Ok(());
                }
                Err(PutError::Conflict { .. }) => {
                    // Our own write, whose answer was lost, looks like somebody else's.
                    match self.bucket.get(&key).await {
                        Ok(Some(entry)) if entry.value == value => {
                            self.revisions.insert(key, entry.revision);
                            return Ok(());
                        }
                        Ok(_) => {
                            let bucket = self.name;
                            return Err(Error::Fenced { key, bucket });
                        }
                        // The next write meets the same conflict and asks again.
                        Err(_) => pause(&self.shutdown, &mut delay).await?,
                    }
                }
                Err(PutError::Bus(error)) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        bucket = self.name,
                        key,
                        "write state, trying again"
                    );
                    pause(&self.shutdown, &mut delay).await?;
                }
            }
        }
    }
}

async fn pause(shutdown: &CancellationToken, delay: &mut Duration) -> Result<(), Error> {
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
