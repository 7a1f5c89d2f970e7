//! Published state of users in bucket `mesh_users`: shards of users and accounts, and one entry about the cluster.
//!
//! The guarantees are those of jobs: every write names the revision it replaces, and an event is in the outbox of its shard before it is
//! published. A published entity is never removed, so that no id is used again.

use std::collections::BTreeMap;

use mesh_bus::Bus;
use mesh_events::catalogue::BUCKET_USERS;
use mesh_events::{Event, subject};
use mesh_runtime::Condition;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::access::{Access, AccessByEntity, Entity};
use crate::Error;
use crate::adapters::fenced::{Fenced, NO_TIMEOUT, pack, unpack};
use crate::identity::UserIdentity;

/// Shards per cluster. With 1 MiB each they hold the access of some hundred thousand users.
const SHARDS: u32 = 64;
/// Format version of the stored values.
const VERSION: u32 = 1;

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

/// Stored state of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outbox: Vec<String>,
}

/// The published state, in memory and in its bucket.
pub struct AccessStore {
    bucket: Fenced,
    prefix: String,
    /// All users and accounts with stored state.
    pub known: BTreeMap<Entity, StoredAccess>,
    /// Stored state of the cluster.
    pub meta: Meta,
}

impl AccessStore {
    /// Reads the state of this cluster, and the events whose publication was not confirmed.
    ///
    /// # Errors
    /// On shutdown, or if the stored state cannot be read.
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
            meta: Meta::default(),
        };
        let mut outbox = Vec::new();
        for entry in entries {
            let damaged = |source: Box<dyn std::error::Error + Send + Sync>| Error::State {
                bucket: BUCKET_USERS,
                key: entry.key.clone(),
                source,
            };
            if entry.key == memory.meta_key() {
                memory.meta =
                    serde_json::from_slice(&entry.value).map_err(|error| damaged(error.into()))?;
                continue;
            }
            let shard: Shard =
                serde_json::from_slice(&entry.value).map_err(|error| damaged(error.into()))?;
            outbox.extend(unpack(&shard.outbox).map_err(damaged)?);
            for (key, known) in shard.known {
                let entity = Entity::parse(&key).ok_or_else(|| {
                    damaged(format!("{key:?} is neither a user nor an account").into())
                })?;
                memory.known.insert(entity, known);
            }
        }
        Ok((memory, outbox))
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
        let mut shards: BTreeMap<u32, Shard> = some
            .into_iter()
            .map(|entity| (shard_of(entity), Shard::default()))
            .collect();
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
    pub async fn write_meta(&mut self) -> Result<(), Error> {
        self.meta.version = VERSION;
        let key = self.meta_key();
        self.bucket.put(key, &self.meta, NO_TIMEOUT).await?;
        Ok(())
    }

    fn meta_key(&self) -> String {
        format!("{}.meta", self.prefix)
    }
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
