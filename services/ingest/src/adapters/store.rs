//! The memory in bucket `mesh_ingest`: runs in shards, and one entry about the cluster.
//!
//! Every write names the revision it replaces. Another writer's revision ends this process before anything sampled is told twice.
//! An event with a counted id is in the outbox of its shard before it is published: after a crash it is published again with the
//! same id.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use mesh_bus::{Bucket, BucketEntry, Bus, PutError};
use mesh_events::catalogue::BUCKET_INGEST;
use mesh_events::{Event, RunKey, subject};
use prost::Message as _;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::domain::{Book, Tracked};

/// Shards per cluster. By Slurm's id of the record, so that a large array spreads; 1 MiB each holds about half a million runs together.
const SHARDS: u32 = 128;
/// Form of the stored values.
const VERSION: u32 = 1;

/// What is remembered about a cluster as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Form of the value.
    pub version: u32,
    /// When capture began, in Unix seconds. What ended before is not told.
    pub capture_since: i64,
    /// Begin of the last sweep that was told completely.
    pub watermark: i64,
    /// Number of that sweep.
    pub sweep: u64,
    /// Whether the first sweep was told.
    pub baseline_done: bool,
    /// Begin of the time that accounting must still be asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owed_from: Option<i64>,
    /// How many of each capture event were told, by `<type> <source>`.
    pub counts: BTreeMap<String, u64>,
    /// Events on their way.
    #[serde(default)]
    pub outbox: Vec<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Shard {
    version: u32,
    runs: BTreeMap<String, Tracked>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outbox: Vec<String>,
}

/// What was stored.
pub struct Loaded {
    /// The runs.
    pub book: Book,
    /// About the cluster; `None` at the very first start.
    pub meta: Option<Meta>,
    /// Events whose publishing was not confirmed.
    pub outbox: Vec<Event>,
}

/// The bucket, and the revisions this process has seen.
pub struct Store {
    bucket: Bucket,
    cluster: String,
    prefix: String,
    revisions: HashMap<String, u64>,
    shutdown: CancellationToken,
}

impl Store {
    /// Opens the bucket and reads everything of this cluster.
    ///
    /// # Errors
    /// If told to stop, or if what is stored cannot be read.
    pub async fn load(
        bus: &Bus,
        cluster: &str,
        shutdown: &CancellationToken,
    ) -> Result<(Self, Loaded), Error> {
        let prefix = subject::token(cluster);
        let (bucket, entries) = read_all(bus, &prefix, shutdown).await?;
        let mut store = Self {
            bucket,
            cluster: cluster.to_owned(),
            prefix,
            revisions: HashMap::new(),
            shutdown: shutdown.clone(),
        };
        let mut loaded = Loaded {
            book: Book::default(),
            meta: None,
            outbox: Vec::new(),
        };
        for entry in entries {
            store.revisions.insert(entry.key.clone(), entry.revision);
            let damaged = |source: Box<dyn std::error::Error + Send + Sync>| Error::State {
                key: entry.key.clone(),
                source,
            };
            if entry.key == store.meta_key() {
                let mut meta: Meta =
                    serde_json::from_slice(&entry.value).map_err(|error| damaged(error.into()))?;
                loaded.outbox.extend(unpack(&meta.outbox).map_err(damaged)?);
                meta.outbox.clear();
                loaded.meta = Some(meta);
                continue;
            }
            let shard: Shard =
                serde_json::from_slice(&entry.value).map_err(|error| damaged(error.into()))?;
            loaded
                .outbox
                .extend(unpack(&shard.outbox).map_err(damaged)?);
            for (key, tracked) in shard.runs {
                let run = RunKey::parse(cluster, &key).map_err(|error| damaged(error.into()))?;
                loaded.book.put(run, tracked);
            }
        }
        Ok((store, loaded))
    }

    /// The shard of a run.
    pub const fn shard_of(tracked: &Tracked) -> u32 {
        tracked.raw_id % SHARDS
    }

    /// Writes shards as the book has them, with the events that are on their way.
    ///
    /// # Errors
    /// [`Error::Fenced`] if somebody else wrote one of them.
    pub async fn write(
        &mut self,
        book: &Book,
        shards: &BTreeSet<u32>,
        outbox: &[(u32, Event)],
    ) -> Result<(), Error> {
        if shards.is_empty() {
            return Ok(());
        }
        let mut values: BTreeMap<u32, Shard> = shards
            .iter()
            .map(|shard| {
                (
                    *shard,
                    Shard {
                        version: VERSION,
                        ..Shard::default()
                    },
                )
            })
            .collect();
        for (run, tracked) in book.iter() {
            if let Some(shard) = values.get_mut(&Self::shard_of(tracked)) {
                shard.runs.insert(run.entity_key(), tracked.clone());
            }
        }
        for (number, event) in outbox {
            if let Some(shard) = values.get_mut(number) {
                shard.outbox.push(pack(event));
            }
        }
        for (number, shard) in values {
            let key = format!("{}.{number}", self.prefix);
            let value = serde_json::to_vec(&shard).map_err(|source| Error::Encode {
                key: key.clone(),
                source,
            })?;
            self.put(key, value.into()).await?;
        }
        Ok(())
    }

    /// Writes what is remembered about the cluster, with the events that are on their way.
    ///
    /// # Errors
    /// [`Error::Fenced`] if somebody else wrote it.
    pub async fn write_meta(&mut self, meta: &Meta, outbox: &[Event]) -> Result<(), Error> {
        let key = self.meta_key();
        let meta = Meta {
            version: VERSION,
            outbox: outbox.iter().map(pack).collect(),
            ..meta.clone()
        };
        let value = serde_json::to_vec(&meta).map_err(|source| Error::Encode {
            key: key.clone(),
            source,
        })?;
        self.put(key, value.into()).await
    }

    fn meta_key(&self) -> String {
        format!("{}.meta", self.prefix)
    }

    async fn put(&mut self, key: String, value: Bytes) -> Result<(), Error> {
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
                        Ok(_) => return Err(Error::Fenced { key }),
                        // The next write meets the same conflict and asks again.
                        Err(_) => pause(&self.shutdown, &mut delay).await?,
                    }
                }
                Err(PutError::Bus(error)) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        key,
                        cluster = self.cluster,
                        "write state, trying again"
                    );
                    pause(&self.shutdown, &mut delay).await?;
                }
            }
        }
    }
}

/// Reads until it works or the process is told to stop.
async fn read_all(
    bus: &Bus,
    prefix: &str,
    shutdown: &CancellationToken,
) -> Result<(Bucket, Vec<BucketEntry>), Error> {
    let mut delay = Duration::from_millis(50);
    loop {
        let read = async {
            let bucket = bus.bucket(BUCKET_INGEST).await?;
            let entries = bucket.load(prefix).await?;
            Ok::<_, mesh_bus::Error>((bucket, entries))
        };
        match read.await {
            Ok(done) => return Ok(done),
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "read state, trying again"
                );
                pause(shutdown, &mut delay).await?;
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

fn pack(event: &Event) -> String {
    STANDARD.encode(event.encode_to_vec())
}

fn unpack(outbox: &[String]) -> Result<Vec<Event>, Box<dyn std::error::Error + Send + Sync>> {
    outbox
        .iter()
        .map(|text| Ok(Event::from_bytes(&STANDARD.decode(text)?)?))
        .collect()
}
