//! State in the key-value bucket: the last known state of every node, in shards, and the unpublished events.
//!
//! The first write of another instance makes all further writes of this one fail. The result of a poll is written with its events
//! *before* they are published (the outbox), so a number is never used twice. After a crash the same events are published again with
//! the same ids.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use mesh_bus::{BucketEntry, Bus, ClusterState};
use mesh_events::catalogue::BUCKET_NODES;
use mesh_events::{Event, subject};
use prost::Message as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

use crate::domain::TrackedNode;
use crate::domain::absence::NewNode;
use crate::domain::drift::{self, PublishedDrifts};
use crate::domain::lost_state::LostState;
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
    #[serde(default, skip_serializing_if = "mesh_events::is_default")]
    drifts: PublishedDrifts,
    /// Number before the first event of a node that the shard does not have. Above 0 if the shard was lost: the time of the loss, in Unix
    /// seconds. No earlier number is as large.
    #[serde(default, skip_serializing_if = "mesh_events::is_default")]
    seq_from: u64,
    /// The shard was lost, and no poll has completed it since.
    #[serde(default, skip_serializing_if = "mesh_events::is_default")]
    is_incomplete: bool,
}

impl Stored {
    /// Replaces a shard that was lost.
    fn after_loss(now: DateTime<Utc>) -> Self {
        let seq_from = u64::try_from(now.timestamp()).unwrap_or_default();
        Self {
            seq_from,
            is_incomplete: true,
            ..Self::default()
        }
    }
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
    /// Takes over the state and reads it. Pending writes of another instance are refused. Values that cannot be read are put aside, and
    /// replaced with the event about it in the outbox.
    ///
    /// # Errors
    /// If NATS does not answer, or the stored format is a newer version's.
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
        let mut unreadable = Vec::new();
        for entry in entries {
            if let Err(source) = store.read(&entry) {
                unreadable.push((entry, source));
            }
        }
        if !unreadable.is_empty() {
            store.replace(cluster, unreadable).await?;
        }
        Ok(store)
    }

    /// Adds a stored value, or nothing of it if it cannot be read.
    fn read(&mut self, entry: &BucketEntry) -> Result<(), serde_json::Error> {
        if entry.key == self.key(STARTED) {
            self.started = true;
            let seconds: i64 = serde_json::from_slice(&entry.value)?;
            self.accounting_watermark = (seconds != NO_WATERMARK).then_some(seconds);
            return Ok(());
        }
        if entry.is_newer_than(VERSION) {
            return Err(de::Error::custom(format!(
                "the version is newer than {VERSION}"
            )));
        }
        let stored = serde_json::from_slice(&entry.value)?;
        self.shards.insert(entry.key.clone(), stored);
        Ok(())
    }

    /// Puts values aside and replaces them. The event about it is stored first: a start after a crash publishes it, or finds the others
    /// unreadable again.
    async fn replace(
        &mut self,
        cluster: &str,
        unreadable: Vec<(BucketEntry, serde_json::Error)>,
    ) -> Result<(), Error> {
        let now = Utc::now();
        let mut lost = LostState::default();
        let mut shards = Vec::new();
        for (entry, source) in unreadable {
            if entry.is_newer_than(VERSION) {
                let key = entry.key;
                return Err(Error::State { key, source });
            }
            self.state
                .put_aside(&entry, &mesh_runtime::error_chain(&source))
                .await?;
            if entry.key == self.key(STARTED) {
                lost.has_lost_watermark = true;
            } else {
                lost.shards += 1;
                shards.push(entry.key);
            }
        }
        let key = self.key(&shard_of(drift::ENTITY));
        let mut stored = match self.shards.get(&key) {
            Some(stored) => stored.clone(),
            None if shards.contains(&key) => {
                let stored = Stored::after_loss(now);
                let drifts = PublishedDrifts::counting_from(stored.seq_from);
                Stored { drifts, ..stored }
            }
            None => Stored::default(),
        };
        let gap = lost.gap(cluster, stored.drifts.next_number(), now);
        stored.outbox.push(OutboxEntry(gap));
        shards.retain(|shard| *shard != key);
        self.put(key, stored).await?;
        for shard in shards {
            self.put(shard, Stored::after_loss(now)).await?;
        }
        if lost.has_lost_watermark {
            self.mark_started(None).await?;
        }
        Ok(())
    }

    /// How the events of a node that is not known are counted, and whether it is news.
    pub fn new_node(&self, name: &str) -> NewNode {
        let shard = self.shards.get(&self.key(&shard_of(name)));
        let count_from = shard.map_or(0, |shard| shard.seq_from);
        if shard.is_some_and(|shard| shard.is_incomplete) {
            NewNode::Lost { count_from }
        } else if self.started {
            NewNode::Added { count_from }
        } else {
            NewNode::Baseline { count_from }
        }
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

    /// Writes the nodes and events of a complete answer: shards that were lost are complete then.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn write_poll(
        &mut self,
        nodes: Vec<(String, TrackedNode)>,
        events: &[Event],
    ) -> Result<(), Error> {
        self.write(nodes, events).await?;
        let incomplete = self.shards.iter().filter(|(_, shard)| shard.is_incomplete);
        for key in incomplete.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            let stored = Stored {
                is_incomplete: false,
                ..self.shards[&key].clone()
            };
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

fn shard_of(node: &str) -> String {
    (Sha256::digest(node.as_bytes())[0] % SHARDS).to_string()
}
