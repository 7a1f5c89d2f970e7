//! State in the key-value bucket: the explanations of each run, in shards, and the unpublished events.
//!
//! Every write names the revision it is based on, so two instances never both write the same explanation. The events of a change are
//! written with it *before* they are published (the outbox). After a crash they are published again with the same ids.
//! Changes that arrive while a write is under way share the next write.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use chrono::Utc;
use mesh_bus::{Backoff, Bucket, BucketEntry, PutError};
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

#[derive(Default, Serialize, Deserialize)]
struct StoredShard {
    version: u32,
    runs: Runs,
    /// Least number of the next explanation of a run. Above 0 if the shard was lost: the time of the loss, in Unix seconds. No earlier
    /// number is as large.
    #[serde(default, skip_serializing_if = "mesh_events::is_default")]
    next_from: u64,
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
    next_from: u64,
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
    /// Loads the shards of a cluster. One that cannot be read is put aside, and is empty.
    ///
    /// # Errors
    /// If NATS does not answer, or the stored format is a newer version's.
    pub async fn load(bucket: Bucket, cluster: &str) -> Result<Self, Error> {
        let store = Self {
            bucket,
            shards: tokio::sync::Mutex::default(),
        };
        let mut shards = HashMap::new();
        for entry in store.bucket.load(&subject::token(cluster)).await? {
            let shard = Shard::new(&entry.key, cluster);
            let key = entry.key.clone();
            store
                .read(&shard, &mut *shard.writer.lock().await, Some(entry))
                .await?;
            shards.insert(key, Arc::new(shard));
        }
        *store.shards.lock().await = shards;
        Ok(store)
    }

    /// Replaces the state of a shard in memory by the stored one.
    async fn read(
        &self,
        shard: &Shard,
        writer: &mut ShardWriter,
        entry: Option<BucketEntry>,
    ) -> Result<(), Error> {
        let Some(entry) = entry else {
            shard.replace(writer, StoredShard::default(), None);
            return Ok(());
        };
        let stored = match serde_json::from_slice::<StoredShard>(&entry.value) {
            Ok(stored) if stored.version <= VERSION => stored,
            Err(source) if !entry.is_newer_than(VERSION) => {
                let reason = mesh_runtime::error_chain(&source);
                self.bucket.put_aside(&entry, &reason).await?;
                StoredShard {
                    next_from: u64::try_from(Utc::now().timestamp()).unwrap_or_default(),
                    ..StoredShard::default()
                }
            }
            Ok(_) | Err(_) => {
                return Err(Error::Newer { key: entry.key });
            }
        };
        shard.replace(writer, stored, Some(entry.revision));
        Ok(())
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
        self.read(&shard, &mut *shard.writer.lock().await, entry)
            .await?;
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
                    self.read(shard, &mut writer, entry).await?;
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
        let next_from = memory.next_from;
        if next_from > 0 {
            let runs = memory.runs.values_mut();
            runs.for_each(|run| run.next = run.next.max(next_from));
        }
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
            next_from: memory.next_from,
            outbox: memory.outbox.iter().cloned().map(OutboxEntry).collect(),
        };
        let value = serde_json::to_vec(&stored).map_err(|source| Error::Json {
            key: self.key.clone(),
            source,
        })?;
        Ok((value.into(), memory.changes, memory.outbox.len()))
    }

    /// Replaces the state in memory.
    fn replace(&self, writer: &mut ShardWriter, stored: StoredShard, revision: Option<u64>) {
        let mut memory = self.memory();
        memory.runs = stored.runs;
        memory.next_from = stored.next_from;
        memory.outbox = stored.outbox.into_iter().map(|entry| entry.0).collect();
        *writer = ShardWriter {
            revision,
            stored: memory.changes,
            outbox: memory.outbox.len(),
        };
    }
}
