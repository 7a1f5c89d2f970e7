//! Published state of users in bucket `mesh_users`: shards of users and accounts, and one entry about the cluster.
//!
//! The guarantees are those of jobs: every write names the revision it replaces, and an event is in the outbox of its shard before it is
//! published. A published entity is never removed, so that no id is used again.

use std::collections::{BTreeMap, BTreeSet};

use chrono::Utc;
use mesh_bus::{BucketEntry, Bus};
use mesh_events::catalogue::BUCKET_USERS;
use mesh_events::{Event, is_default, subject};
use mesh_runtime::Condition;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::access::{Access, AccessByEntity, Entity};
use crate::Error;
use crate::adapters::fenced::{Fenced, NO_TIMEOUT, VERSION, pack, unpack};
use crate::identity::UserIdentity;

/// Shards per cluster. With 1 MiB each they hold the access of some hundred thousand users.
const SHARDS: u32 = 64;

/// Stored state of a user or an account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredAccess {
    /// Number of published events.
    #[serde(default)]
    pub seq: u64,
    /// Access as last published.
    #[serde(default)]
    pub access: Access,
    /// Identity as last published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<UserIdentity>,
}

/// How far access was read and published.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessProgress {
    version: u32,
    /// Whether access was read once. Access that existed by then is not published.
    pub access_known: bool,
    /// The same for identities.
    pub people_known: bool,
    /// Time of the newest published entry of slurmdbd's log, in Unix seconds.
    pub log_time: i64,
    /// Published entries of about that time, by id with their times.
    #[serde(rename = "log_told")]
    pub log_published: BTreeMap<u64, i64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Shard {
    version: u32,
    known: BTreeMap<String, StoredAccess>,
    #[serde(default, skip_serializing_if = "is_default")]
    seq_from: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outbox: Vec<String>,
}

/// The published state, in memory and in its bucket.
pub struct AccessStore {
    bucket: Fenced,
    prefix: String,
    /// All users and accounts with stored state.
    pub known: BTreeMap<Entity, StoredAccess>,
    /// How far access was read and published.
    pub progress: AccessProgress,
    /// Shards whose stored state could not be read at this start.
    lost: BTreeSet<u32>,
    /// Count before the first event of an entity that a shard does not have, if the shard was lost.
    seq_from: BTreeMap<u32, u64>,
    /// Whether some stored state could not be read at this start.
    pub is_damaged: bool,
    /// Whether access has not been read since then: not everybody is known.
    pub is_incomplete: bool,
}

impl AccessStore {
    /// Reads the state of this cluster, and the events whose publication was not confirmed.
    ///
    /// # Errors
    /// On shutdown, or if the stored state is of a newer version.
    pub async fn load(
        bus: &Bus,
        cluster: &str,
        condition: Condition,
        shutdown: &CancellationToken,
    ) -> Result<(Self, Vec<Event>), Error> {
        let prefix = subject::token(cluster);
        let (bucket, entries) =
            Fenced::load(bus, BUCKET_USERS, &prefix, condition, shutdown).await?;
        let mut memory = Self {
            bucket,
            prefix,
            known: BTreeMap::new(),
            progress: AccessProgress::default(),
            lost: BTreeSet::new(),
            seq_from: BTreeMap::new(),
            is_damaged: false,
            is_incomplete: false,
        };
        let mut outbox = Vec::new();
        let mut has_lost_progress = false;
        for entry in entries {
            let Err(error) = memory.read(&entry, &mut outbox) else {
                continue;
            };
            memory.bucket.put_aside(&entry, error).await?;
            has_lost_progress |= entry.key == memory.progress_key();
            if let Some(shard) = shard_number(&entry.key) {
                memory.lost.insert(shard);
                memory.seq_from.insert(shard, now());
            }
        }
        if has_lost_progress {
            // Access that is known from the shards is no news.
            let is_known = !memory.known.is_empty();
            (memory.progress.access_known, memory.progress.people_known) = (is_known, is_known);
        }
        memory.is_incomplete = !memory.lost.is_empty();
        memory.is_damaged = has_lost_progress || memory.is_incomplete;
        Ok((memory, outbox))
    }

    /// Adds a stored value, or nothing of it if it cannot be read.
    fn read(
        &mut self,
        entry: &BucketEntry,
        outbox: &mut Vec<Event>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if entry.key == self.progress_key() {
            self.progress = serde_json::from_slice(&entry.value)?;
            return Ok(());
        }
        let shard: Shard = serde_json::from_slice(&entry.value)?;
        let events = unpack(&shard.outbox)?;
        let mut known = Vec::with_capacity(shard.known.len());
        for (key, stored) in shard.known {
            let entity = Entity::parse(&key)
                .ok_or_else(|| format!("{key:?} is neither a user nor an account"))?;
            known.push((entity, stored));
        }
        if shard.seq_from > 0 {
            let number = shard_number(&entry.key);
            self.seq_from
                .extend(number.map(|number| (number, shard.seq_from)));
        }
        self.known.extend(known);
        outbox.extend(events);
        Ok(())
    }

    /// Whether nothing is known of an entity because the state of its shard was lost: its access is no news.
    pub fn has_lost(&self, entity: &Entity) -> bool {
        self.is_in_lost_shard(entity) && !self.known.contains_key(entity)
    }

    /// Whether the state of an entity's shard was lost.
    pub fn is_in_lost_shard(&self, entity: &Entity) -> bool {
        self.lost.contains(&shard_of(entity))
    }

    /// Returns the stored state of an entity, to change it.
    pub fn entry(&mut self, entity: &Entity) -> &mut StoredAccess {
        let seq = self.seq_from.get(&shard_of(entity)).copied();
        self.known
            .entry(entity.clone())
            .or_insert_with(|| StoredAccess {
                seq: seq.unwrap_or_default(),
                ..StoredAccess::default()
            })
    }

    /// Returns the access of all users and accounts as last published.
    pub fn published(&self) -> AccessByEntity {
        self.known
            .iter()
            .filter(|(_, known)| known.access != Access::default())
            .map(|(entity, known)| (entity.clone(), known.access.clone()))
            .collect()
    }

    /// Writes the shards of these entities, with the events to be published.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest wrote one of them.
    pub async fn write<'a>(
        &mut self,
        some: impl IntoIterator<Item = &'a Entity>,
        outbox: &[(Entity, Event)],
    ) -> Result<(), Error> {
        let shards = some.into_iter().map(shard_of).collect();
        self.write_shards(&shards, outbox).await
    }

    /// Writes the shards that could not be read, once everybody in them is known again: until then a start must find them unreadable.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest wrote one of them.
    pub async fn restore_lost(&mut self) -> Result<(), Error> {
        if self.is_damaged && !self.is_incomplete {
            let lost = self.lost.clone();
            self.write_shards(&lost, &[]).await?;
            self.write_progress().await?;
            self.is_damaged = false;
        }
        Ok(())
    }

    async fn write_shards(
        &mut self,
        shards: &BTreeSet<u32>,
        outbox: &[(Entity, Event)],
    ) -> Result<(), Error> {
        let shards = shards.iter().map(|shard| (*shard, Shard::default()));
        let mut shards: BTreeMap<u32, Shard> = shards.collect();
        for (entity, known) in &self.known {
            if let Some(shard) = shards.get_mut(&shard_of(entity)) {
                shard.known.insert(entity.to_string(), known.clone());
            }
        }
        for (entity, event) in outbox {
            if let Some(shard) = shards.get_mut(&shard_of(entity)) {
                shard.outbox.push(pack(event));
            }
        }
        for (number, mut shard) in shards {
            shard.version = VERSION;
            shard.seq_from = self.seq_from.get(&number).copied().unwrap_or_default();
            let key = format!("{}.{number}", self.prefix);
            self.bucket.put(key, &shard, NO_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Checks from time to time that the bucket still has the state.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn check(&mut self) -> Result<(), Error> {
        self.bucket.check().await
    }

    /// Writes the cluster entry.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest wrote it.
    pub async fn write_progress(&mut self) -> Result<(), Error> {
        self.progress.version = VERSION;
        let key = self.progress_key();
        self.bucket.put(key, &self.progress, NO_TIMEOUT).await?;
        Ok(())
    }

    fn progress_key(&self) -> String {
        format!("{}.meta", self.prefix)
    }
}

fn shard_number(key: &str) -> Option<u32> {
    let number = key.rsplit('.').next()?.parse().ok()?;
    (number < SHARDS).then_some(number)
}

/// A count that none before has reached.
fn now() -> u64 {
    u64::try_from(Utc::now().timestamp()).unwrap_or_default()
}

/// FNV-1a: spreads well, and is the same in every version.
fn shard_of(entity: &Entity) -> u32 {
    let hash = entity
        .to_string()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
    hash % SHARDS
}
