//! State in the key-value bucket: the last known state of every node, in shards, and the unpublished events.
//!
//! The first write of another instance makes all further writes of this one fail. The result of a poll is written with its events
//! *before* they are published (the outbox), so a number is never used twice. After a crash the same events are published again with
//! the same ids.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_bus::{Bus, ClusterState};
use mesh_events::catalogue::BUCKET_NODES;
use mesh_events::{Event, subject};
use prost::Message as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

use crate::domain::TrackedNode;
use crate::domain::drift::{self, PublishedDrifts};
use crate::error::Error;

/// Number of shards per cluster. With 50,000 nodes, a shard stays below the bucket's limit of 1 MiB, even at the baseline.
const SHARDS: u8 = 255;

/// Version of the stored format.
const VERSION: u32 = 1;

/// Key suffix of the marker that the first poll of the cluster is complete. Its value is the accounting watermark.
const STARTED: &str = "started";
/// Written before accounting was asked, and by earlier versions.
const NO_WATERMARK: i64 = 1;

#[derive(Clone, Default, Serialize, Deserialize)]
struct Stored {
    version: u32,
    nodes: BTreeMap<String, TrackedNode>,
    outbox: Vec<OutboxEntry>,
    /// Used in one shard only.
    #[serde(default, skip_serializing_if = "PublishedDrifts::is_empty")]
    drifts: PublishedDrifts,
}

#[derive(Clone)]
struct OutboxEntry(Event);

impl Serialize for OutboxEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0.encode_to_vec()))
    }
}

impl<'de> Deserialize<'de> for OutboxEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = STANDARD
            .decode(String::deserialize(deserializer)?)
            .map_err(de::Error::custom)?;
        Event::decode(bytes.as_slice())
            .map(Self)
            .map_err(de::Error::custom)
    }
}

/// State of all nodes of a cluster.
pub struct Store {
    state: ClusterState,
    prefix: String,
    shards: BTreeMap<String, Stored>,
    started: bool,
    accounting_watermark: Option<i64>,
}

impl Store {
    /// Takes over the state and reads it. Pending writes of another instance are refused.
    ///
    /// # Errors
    /// If NATS does not answer, or the stored format is not this version's.
    pub async fn load(bus: &Bus, cluster: &str) -> Result<Self, Error> {
        let prefix = subject::token(cluster);
        let (state, entries) = bus.take_over(BUCKET_NODES, &prefix).await?;
        let mut store = Self {
            state,
            prefix,
            shards: BTreeMap::new(),
            started: false,
            accounting_watermark: None,
        };
        for entry in entries {
            if entry.key == store.key(STARTED) {
                store.started = true;
                store.accounting_watermark = accounting_watermark(&entry.value);
                continue;
            }
            let state = |source| Error::State {
                key: entry.key.clone(),
                source,
            };
            let stored: Stored = serde_json::from_slice(&entry.value).map_err(state)?;
            if stored.version > VERSION {
                return Err(state(de::Error::custom(format!(
                    "version {} is newer than {VERSION}",
                    stored.version
                ))));
            }
            store.shards.insert(entry.key, stored);
        }
        Ok(store)
    }

    /// True if a poll of the cluster was completed before.
    pub const fn started(&self) -> bool {
        self.started
    }

    /// The newest downtime in accounting that is published, in Unix seconds by Slurm's clock; `None` if accounting was never asked.
    pub const fn accounting_watermark(&self) -> Option<i64> {
        self.accounting_watermark
    }

    /// All known nodes, by name.
    pub fn nodes(&self) -> BTreeMap<String, TrackedNode> {
        self.shards
            .values()
            .flat_map(|shard| shard.nodes.clone())
            .collect()
    }

    /// Events that may not be on the bus yet.
    pub fn outbox(&self) -> Vec<Event> {
        self.shards
            .values()
            .flat_map(|shard| shard.outbox.iter().map(|entry| entry.0.clone()))
            .collect()
    }

    /// Writes nodes and their events. Returns once all is stored.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another instance has taken over. After any error the state must be loaded again.
    pub async fn write(
        &mut self,
        nodes: Vec<(String, TrackedNode)>,
        events: &[Event],
    ) -> Result<(), Error> {
        let mut touched: BTreeMap<String, Stored> = BTreeMap::new();
        let known = |shards: &BTreeMap<String, Stored>, key: &str| {
            shards.get(key).cloned().unwrap_or_default()
        };
        for (name, node) in nodes {
            let key = self.key(&shard_of(&name));
            let stored = touched.entry(key).or_insert_with_key(|key| Stored {
                outbox: Vec::new(),
                ..known(&self.shards, key)
            });
            stored.nodes.insert(name, node);
        }
        for event in events {
            let key = self.key(&shard_of(event.entity_key().trim_start_matches("node/")));
            let stored = touched.entry(key).or_insert_with_key(|key| Stored {
                outbox: Vec::new(),
                ..known(&self.shards, key)
            });
            stored.outbox.push(OutboxEntry(event.clone()));
        }
        for (key, stored) in touched {
            self.put(key, stored).await?;
        }
        Ok(())
    }

    /// The published drifts.
    pub fn drifts(&self) -> PublishedDrifts {
        let shard = self.shards.get(&self.key(&shard_of(drift::ENTITY)));
        shard.map_or_else(PublishedDrifts::default, |shard| shard.drifts.clone())
    }

    /// Writes the published drifts with their events.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn write_drifts(
        &mut self,
        drifts: PublishedDrifts,
        events: &[Event],
    ) -> Result<(), Error> {
        let key = self.key(&shard_of(drift::ENTITY));
        let known = self.shards.get(&key).cloned().unwrap_or_default();
        let stored = Stored {
            outbox: events.iter().cloned().map(OutboxEntry).collect(),
            drifts,
            ..known
        };
        self.put(key, stored).await
    }

    /// Records that all events of the outbox are on the bus, so that a restart does not repeat them.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn settle(&mut self) -> Result<(), Error> {
        let stale: Vec<_> = self
            .shards
            .iter()
            .filter(|(_, shard)| !shard.outbox.is_empty())
            .map(|(key, _)| key.clone())
            .collect();
        for key in stale {
            let stored = Stored {
                outbox: Vec::new(),
                ..self.shards[&key].clone()
            };
            self.put(key, stored).await?;
        }
        Ok(())
    }

    /// Checks from time to time that the whole state is still stored.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn check(&mut self) -> Result<(), Error> {
        Ok(self.state.check().await?)
    }

    /// Records that the first poll is complete, and the accounting watermark.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn mark_started(&mut self, accounting_watermark: Option<i64>) -> Result<(), Error> {
        let key = self.key(STARTED);
        let value = accounting_watermark.unwrap_or(NO_WATERMARK).to_string();
        self.state.put(&key, value.into()).await?;
        (self.started, self.accounting_watermark) = (true, accounting_watermark);
        Ok(())
    }

    async fn put(&mut self, key: String, mut stored: Stored) -> Result<(), Error> {
        stored.version = VERSION;
        let value = serde_json::to_vec(&stored).map_err(|source| Error::State {
            key: key.clone(),
            source,
        })?;
        self.state.put(&key, value.into()).await?;
        self.shards.insert(key, stored);
        Ok(())
    }

    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.prefix)
    }
}

fn accounting_watermark(value: &[u8]) -> Option<i64> {
    let seconds: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    (seconds != NO_WATERMARK).then_some(seconds)
}

fn shard_of(node: &str) -> String {
    (Sha256::digest(node.as_bytes())[0] % SHARDS).to_string()
}
