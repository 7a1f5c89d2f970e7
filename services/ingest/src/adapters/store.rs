//! State in bucket `mesh_ingest`: runs in shards, and one entry about the cluster.
//!
//! The first write of another ingest, to any key, makes every write from here fail. This ingest then stops leading before it publishes
//! anything sampled twice. An event with a counted id is in the outbox of its shard before it is published: after a crash it is republished
//! with the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_bus::{BucketEntry, Bus};
use mesh_events::catalogue::BUCKET_INGEST;
use mesh_events::{Event, RunKey, subject};
use mesh_runtime::Condition;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::capture_state::CaptureState;
use super::fenced::{Fenced, VERSION, pack, unpack};
use super::shards::{shard_number, shard_of, shard_of_record};
use crate::Error;
use crate::domain::{RunState, RunStore, StoredJob};

/// Maximum number of shard values in memory at once. All values of half a million runs would take 100 MB.
const MAX_CONCURRENT_SHARDS: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
struct Shard<T> {
    version: u32,
    runs: BTreeMap<String, T>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    waiting: BTreeMap<u32, StoredJob>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outbox: Vec<String>,
}

/// State read from the bucket.
pub struct LoadedState {
    /// All stored runs.
    pub run_store: RunStore,
    /// What waits for the end of an earlier run, by Slurm's job id.
    pub waiting: BTreeMap<u32, StoredJob>,
    /// Cluster entry; `None` at the very first start.
    pub capture: Option<CaptureState>,
    /// Events whose publication is not confirmed.
    pub outbox: Vec<Event>,
    /// Shards that still have such events.
    pub unconfirmed: BTreeSet<u32>,
    /// Values that could not be read, and were put aside.
    pub unreadable: UnreadableValues,
}

/// Stored values that could not be read.
#[derive(Debug, Default)]
pub struct UnreadableValues {
    /// Shards of runs.
    pub shards: BTreeSet<u32>,
    /// Whether the cluster entry is one of them.
    pub capture_state: bool,
}

/// The bucket `mesh_ingest`.
pub struct Store {
    bucket: Fenced,
    prefix: String,
}

impl Store {
    /// Opens the bucket and reads the state of this cluster.
    ///
    /// # Errors
    /// On shutdown, or if the stored state is of a newer version.
    pub async fn load(
        bus: &Bus,
        cluster: &str,
        condition: Condition,
        shutdown: &CancellationToken,
    ) -> Result<(Self, LoadedState), Error> {
        let prefix = subject::token(cluster);
        let (bucket, entries) =
            Fenced::load(bus, BUCKET_INGEST, &prefix, condition, shutdown).await?;
        let mut store = Self { bucket, prefix };
        let mut loaded = LoadedState {
            run_store: RunStore::default(),
            waiting: BTreeMap::new(),
            capture: None,
            outbox: Vec::new(),
            unconfirmed: BTreeSet::new(),
            unreadable: UnreadableValues::default(),
        };
        for entry in entries {
            let Err(error) = store.read(cluster, &entry, &mut loaded) else {
                continue;
            };
            store.bucket.put_aside(&entry, error).await?;
            if entry.key == store.capture_state_key() {
                loaded.unreadable.capture_state = true;
            }
            loaded.unreadable.shards.extend(shard_number(&entry.key));
        }
        Ok((store, loaded))
    }

    /// Adds a stored value, or nothing of it if it cannot be read.
    fn read(
        &self,
        cluster: &str,
        entry: &BucketEntry,
        loaded: &mut LoadedState,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if entry.key == self.capture_state_key() {
            let mut capture: CaptureState = serde_json::from_slice(&entry.value)?;
            loaded.outbox.extend(unpack(&capture.outbox)?);
            capture.outbox.clear();
            loaded.capture = Some(capture);
            return Ok(());
        }
        let shard: Shard<RunState> = serde_json::from_slice(&entry.value)?;
        let outbox = unpack(&shard.outbox)?;
        let mut runs = Vec::with_capacity(shard.runs.len());
        for (key, tracked) in shard.runs {
            runs.push((RunKey::parse(cluster, &key)?, tracked));
        }
        if !outbox.is_empty() {
            loaded.unconfirmed.extend(shard_number(&entry.key));
        }
        loaded.outbox.extend(outbox);
        loaded.waiting.extend(shard.waiting);
        for (run, tracked) in runs {
            loaded.run_store.put(run, tracked);
        }
        Ok(())
    }

    /// Writes shards from the run store and what waits in each of them, with the events to be published, and retries for at most `max_wait`.
    /// Returns whether all of it is stored.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest wrote one of them.
    pub async fn write(
        &mut self,
        run_store: &RunStore,
        waiting: impl Fn(u32) -> BTreeMap<u32, StoredJob>,
        shards: &BTreeSet<u32>,
        outbox: &[(u32, Event)],
        max_wait: Duration,
    ) -> Result<bool, Error> {
        let shards: Vec<u32> = shards.iter().copied().collect();
        for some in shards.chunks(MAX_CONCURRENT_SHARDS) {
            for (number, shard) in values(run_store, &waiting, some, outbox) {
                let key = format!("{}.{number}", self.prefix);
                if !self.bucket.put(key, &shard, max_wait).await? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Checks from time to time that the bucket still has the state.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn check(&mut self) -> Result<(), Error> {
        self.bucket.check().await
    }

    /// Whether the last write failed.
    pub const fn is_failing(&self) -> bool {
        self.bucket.is_failing()
    }

    /// Writes the cluster entry, with the events to be published, and retries for at most `max_wait`. Returns whether it is stored.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest wrote it.
    pub async fn write_capture_state(
        &mut self,
        capture: &CaptureState,
        outbox: &[Event],
        max_wait: Duration,
    ) -> Result<bool, Error> {
        let key = self.capture_state_key();
        let capture = CaptureState {
            version: VERSION,
            outbox: outbox.iter().map(pack).collect(),
            ..capture.clone()
        };
        self.bucket.put(key, &capture, max_wait).await
    }

    fn capture_state_key(&self) -> String {
        format!("{}.meta", self.prefix)
    }
}

/// Builds the values of some shards.
fn values<'a>(
    run_store: &'a RunStore,
    waiting: impl Fn(u32) -> BTreeMap<u32, StoredJob>,
    shards: &[u32],
    outbox: &[(u32, Event)],
) -> BTreeMap<u32, Shard<&'a RunState>> {
    let without_runs = |shard: u32| Shard {
        version: VERSION,
        runs: BTreeMap::new(),
        waiting: waiting(shard),
        outbox: Vec::new(),
    };
    let shards_of = shards.iter().map(|shard| (*shard, without_runs(*shard)));
    let mut values: BTreeMap<u32, Shard<&RunState>> = shards_of.collect();
    for (run, tracked) in run_store.of_records(|id| shards.contains(&shard_of_record(id))) {
        if let Some(shard) = values.get_mut(&shard_of(tracked)) {
            shard.runs.insert(run.entity_key(), tracked);
        }
    }
    for (number, event) in outbox {
        if let Some(shard) = values.get_mut(number) {
            shard.outbox.push(pack(event));
        }
    }
    values
}
