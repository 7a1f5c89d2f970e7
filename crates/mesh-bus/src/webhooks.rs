//! Names of the webhook endpoints, for the ledger: it replays events to an endpoint only if there is one.
//!
//! The dispatchers write them, each from the same database. They are in shards, so that thousands of names cost a few writes. The owner
//! of an endpoint is part of its full name.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mesh_events::catalogue::{self, BUCKET_WEBHOOKS};

use crate::{Bucket, Bus, Error, PutError};

const PREFIX: &str = "names";
/// Requests in flight.
const CONCURRENCY: usize = 32;

/// Writes the names of all endpoints.
pub struct WebhookNames {
    bucket: Bucket,
    /// The shards as stored, with their revisions.
    shards: BTreeMap<String, (Option<u64>, BTreeSet<String>)>,
}

impl Bus {
    /// Opens the names of webhook endpoints for writing.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn webhook_names(&self) -> Result<WebhookNames, Error> {
        let bucket = self.bucket(BUCKET_WEBHOOKS).await?;
        let read = |n: u8| {
            let bucket = bucket.clone();
            async move {
                let key = format!("{PREFIX}.{n:02x}");
                Ok::<_, Error>((key.clone(), read(&bucket, &key).await?))
            }
        };
        let shards = stream::iter(0..=u8::MAX).map(read);
        Ok(WebhookNames {
            shards: shards.buffer_unordered(CONCURRENCY).try_collect().await?,
            bucket,
        })
    }

    /// True if there is a webhook endpoint of this full name.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn has_webhook(&self, name: &str) -> Result<bool, Error> {
        let bucket = self.bucket(BUCKET_WEBHOOKS).await?;
        Ok(read(&bucket, &shard(name)).await?.1.contains(name))
    }
}

impl WebhookNames {
    /// Writes the shards that differ. Another dispatcher may have been faster; then its names are read, and the next call corrects them.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn write(&mut self, names: &BTreeSet<String>) -> Result<bool, Error> {
        let mut expected: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for name in names {
            expected
                .entry(shard(name))
                .or_default()
                .insert(name.clone());
        }
        let changed = self.shards.iter().filter_map(|(key, (revision, stored))| {
            let names = expected.remove(key).unwrap_or_default();
            (names != *stored).then(|| (key.clone(), *revision, names))
        });
        let changed: Vec<_> = changed.collect();
        let bucket = &self.bucket;
        let writes = changed
            .into_iter()
            .map(|(key, revision, names)| async move {
                let value = serde_json::json!(names).to_string().into();
                match bucket.put(&key, value, revision).await {
                    Ok(revision) => Ok((key, (Some(revision), names), true)),
                    Err(PutError::Conflict { .. }) => {
                        let stored = read(bucket, &key).await?;
                        Ok((key, stored, false))
                    }
                    Err(PutError::Bus(error)) => Err(error),
                }
            });
        let mut written = stream::iter(writes).buffer_unordered(CONCURRENCY);
        let mut complete = true;
        while let Some((key, stored, is_ours)) = written.try_next().await? {
            complete &= is_ours;
            self.shards.insert(key, stored);
        }
        Ok(complete)
    }

    /// Drops shards that somebody deleted, so that the next write stores them again.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn check(&mut self) -> Result<(), Error> {
        let written = self
            .shards
            .iter()
            .filter(|(_, (_, names))| !names.is_empty());
        let written = written.map(|(key, _)| key.clone()).collect();
        for key in self.bucket.missing(PREFIX, written).await? {
            self.shards.insert(key, (None, BTreeSet::new()));
        }
        Ok(())
    }
}

async fn read(bucket: &Bucket, key: &str) -> Result<(Option<u64>, BTreeSet<String>), Error> {
    Ok(match bucket.get(key).await? {
        Some(entry) => {
            let names = serde_json::from_slice(&entry.value);
            (Some(entry.revision), names.unwrap_or_default())
        }
        None => (None, BTreeSet::new()),
    })
}

fn shard(name: &str) -> String {
    format!("{PREFIX}.{:02x}", catalogue::webhook_shard(name))
}
