//! State in the key-value bucket: the explanations of each run, in shards, and the unpublished events.
//!
//! Every write names the revision it is based on, so two instances never both write the same explanation. The events of a change are
//! written with it *before* they are published (the outbox). After a crash they are published again with the same ids.
//! Changes that arrive while a write is under way share the next write.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use mesh_bus::{Backoff, Bucket, PutError};
use mesh_events::{Event, subject};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::domain::timeline::PendingRun;
use crate::error::Error;
use crate::metrics;

/// Number of shards per cluster. With 100,000 pending jobs, a shard stays far below the bucket's limit of 1 MiB.
const SHARDS: u16 = 512;

/// Version of the stored format.
const VERSION: u32 = 1;

/// The runs of a shard, by run key.
pub type Runs = BTreeMap<String, PendingRun>;

#[derive(Serialize, Deserialize)]
struct StoredShard {
    version: u32,
    runs: Runs,
    outbox: Vec<OutboxEntry>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct OutboxEntry(#[serde(with = "super::protobuf")] Event);

/// All shards.
pub struct Store {
    bucket: Bucket,
    shards: tokio::sync::Mutex<HashMap<String, Arc<Shard>>>,
}

/// One value of the bucket.
pub struct Shard {
    key: String,
    cluster: String,
    memory: Mutex<ShardRuns>,
    writer: tokio::sync::Mutex<ShardWriter>,
}

#[derive(Default)]
struct ShardRuns {
    runs: Runs,
    outbox: Vec<Event>,
    /// Number of changes.
    changes: u64,
}

#[derive(Default)]
struct ShardWriter {
    revision: Option<u64>,
    /// Number of changes that are stored.
    stored: u64,
    /// Number of entries in the stored outbox.
    outbox: usize,
}

impl Store {
    /// Loads the shards of a cluster.
    pub async fn load(bucket: Bucket, cluster: &str) -> Result<Self, Error> {
        let mut shards = HashMap::new();
        for entry in bucket.load(&subject::token(cluster)).await? {
            let shard = Shard::new(&entry.key, cluster);
            shard.replace_by_stored(
                &mut *shard.writer.lock().await,
                Some((entry.value, entry.revision)),
            )?;
            shards.insert(entry.key, Arc::new(shard));
        }
        Ok(Self {
            bucket,
            shards: tokio::sync::Mutex::new(shards),
        })
    }

    /// The shard of a run.
    pub async fn shard(&self, cluster: &str, run: &str) -> Result<Arc<Shard>, Error> {
        let digest = Sha256::digest(run.as_bytes());
        let number = u16::from_be_bytes([digest[0], digest[1]]) % SHARDS;
        let key = format!("{}.{number}", subject::token(cluster));
        let mut shards = self.shards.lock().await;
        if let Some(shard) = shards.get(&key) {
            return Ok(Arc::clone(shard));
        }
        // A new shard, or one of another cluster than the configured one.
        let shard = Shard::new(&key, cluster);
        let entry = self.bucket.get(&key).await?;
        shard.replace_by_stored(
            &mut *shard.writer.lock().await,
            entry.map(|entry| (entry.value, entry.revision)),
        )?;
        let shard = Arc::new(shard);
        shards.insert(key, Arc::clone(&shard));
        Ok(shard)
    }

    /// All shards in memory.
    pub async fn shards(&self) -> Vec<Arc<Shard>> {
        self.shards.lock().await.values().cloned().collect()
    }

    /// Writes a shard until its present changes are stored, however long NATS is unavailable.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another instance wrote the shard. Its state has been read, and the changes must be repeated on top of
    /// it.
    pub async fn commit(&self, shard: &Shard, shutdown: &CancellationToken) -> Result<(), Error> {
        let target_changes = shard.memory().changes;
        let mut writer = shard.writer.lock().await;
        let mut logged = false;
        let mut backoff = Backoff::fixed(Duration::from_millis(500));
        while writer.stored < target_changes {
            let (value, changes, outbox) = shard.serialised()?;
            match self.bucket.put(&shard.key, value, writer.revision).await {
                Ok(revision) => {
                    *writer = ShardWriter {
                        revision: Some(revision),
                        stored: changes,
                        outbox,
                    }
                }
                Err(PutError::Conflict { key }) => {
                    metrics::conflict();
                    let entry = self.bucket.get(&key).await?;
                    if entry.is_none() && writer.revision.take().is_some() {
                        // No other instance wrote it: the key was deleted, and memory still holds its content.
                        self.bucket.note_restored(&shard.cluster, 1);
                        continue;
                    }
                    shard.replace_by_stored(
                        &mut writer,
                        entry.map(|entry| (entry.value, entry.revision)),
                    )?;
                    return Err(Error::Conflict { key });
                }
                Err(PutError::Bus(error)) if shutdown.is_cancelled() => return Err(error.into()),
                Err(PutError::Bus(error)) => {
                    if !logged {
                        logged = true;
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            key = shard.key,
                            "state not written, retrying"
                        );
                    }
                    backoff.wait(shutdown).await;
                }
            }
        }
        Ok(())
    }

    /// Restores deleted keys, which would otherwise be lost with this process.
    pub async fn restore(&self, shutdown: &CancellationToken) -> Result<(), Error> {
        let mut written: BTreeMap<String, Vec<Arc<Shard>>> = BTreeMap::new();
        for shard in self.shards().await {
            if shard.writer.lock().await.revision.is_some() {
                let of_cluster = written.entry(shard.cluster.clone()).or_default();
                of_cluster.push(shard);
            }
        }
        for (cluster, shards) in written {
            let keys = shards.iter().map(|shard| shard.key.clone()).collect();
            let prefix = subject::token(&cluster);
            let missing = self.bucket.missing(&prefix, keys).await?;
            if missing.is_empty() {
                continue;
            }
            self.bucket.note_restored(&cluster, missing.len());
            for shard in shards.iter().filter(|shard| missing.contains(&shard.key)) {
                shard.writer.lock().await.revision = None;
                shard.memory().changes += 1;
                self.commit(shard, shutdown).await?;
            }
        }
        Ok(())
    }

    /// Stores that the outbox is published, so that a restart does not repeat it.
    pub async fn settle(&self, shutdown: &CancellationToken) -> Result<(), Error> {
        for shard in self.shards().await {
            let stale = shard.writer.lock().await.outbox > 0 && shard.memory().outbox.is_empty();
            if stale {
                shard.memory().changes += 1;
                self.commit(&shard, shutdown).await?;
            }
        }
        Ok(())
    }
}

impl Shard {
    fn new(key: &str, cluster: &str) -> Self {
        Self {
            key: key.to_owned(),
            cluster: cluster.to_owned(),
            memory: Mutex::default(),
            writer: tokio::sync::Mutex::default(),
        }
    }

    /// Key in the bucket.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Cluster of its runs.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Changes the runs. `change` returns whether it changed anything, and the events for the outbox.
    pub fn change(&self, change: impl FnOnce(&mut Runs) -> (bool, Vec<Event>)) -> bool {
        let mut memory = self.memory();
        let (changed, events) = change(&mut memory.runs);
        memory.outbox.extend(events);
        memory.changes += u64::from(changed);
        changed
    }

    /// Reads the runs.
    pub fn read<T>(&self, read: impl FnOnce(&Runs) -> T) -> T {
        read(&self.memory().runs)
    }

    /// Events that may not be on the bus yet.
    pub fn outbox(&self) -> Vec<Event> {
        self.memory().outbox.clone()
    }

    /// Marks an event as published. The next write leaves it out.
    pub fn published(&self, id: &str) {
        self.memory().outbox.retain(|event| event.id != id);
    }

    fn memory(&self) -> MutexGuard<'_, ShardRuns> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serialised(&self) -> Result<(Bytes, u64, usize), Error> {
        let memory = self.memory();
        let stored = StoredShard {
            version: VERSION,
            runs: memory.runs.clone(),
            outbox: memory.outbox.iter().cloned().map(OutboxEntry).collect(),
        };
        let value = serde_json::to_vec(&stored).map_err(|source| Error::State {
            key: self.key.clone(),
            source,
        })?;
        Ok((value.into(), memory.changes, memory.outbox.len()))
    }

    /// Replaces the state in memory by the stored one.
    fn replace_by_stored(
        &self,
        writer: &mut ShardWriter,
        entry: Option<(Bytes, u64)>,
    ) -> Result<(), Error> {
        let state = |source| Error::State {
            key: self.key.clone(),
            source,
        };
        let mut memory = self.memory();
        let (stored, revision) = match entry {
            Some((value, revision)) => (
                serde_json::from_slice::<StoredShard>(&value).map_err(state)?,
                Some(revision),
            ),
            None => (
                StoredShard {
                    version: VERSION,
                    runs: Runs::new(),
                    outbox: Vec::new(),
                },
                None,
            ),
        };
        if stored.version > VERSION {
            return Err(state(serde::de::Error::custom(format!(
                "version {} is newer than {VERSION}",
                stored.version
            ))));
        }
        memory.runs = stored.runs;
        memory.outbox = stored.outbox.into_iter().map(|entry| entry.0).collect();
        *writer = ShardWriter {
            revision,
            stored: memory.changes,
            outbox: memory.outbox.len(),
        };
        Ok(())
    }
}
