//! What was published about users, in bucket `mesh_users`: shards of users and accounts, and one entry about the cluster.
//!
//! The same promises as for jobs: every write names the revision it replaces, and an event is in the outbox of its shard before it is
//! published. An entity that was ever published stays, so that no id is used again.

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

/// Shards per cluster: 1 MiB each holds the access of some hundred thousand users together.
const SHARDS: u32 = 64;
/// Form of the stored values.
const VERSION: u32 = 1;

/// What is stored about a user or an account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredAccess {
    /// How many events were published.
    #[serde(default)]
    pub seq: u64,
    /// What they had when it was published last.
    #[serde(default)]
    pub access: Access,
    /// Who they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<UserIdentity>,
}

/// What is stored about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    version: u32,
    /// Whether access was read once: what was there by then is not published.
    pub access_known: bool,
    /// The same for who people are.
    pub people_known: bool,
    /// Time of the newest entry of slurmdbd's log that is published, in Unix seconds.
    pub log_time: i64,
    /// Entries of about that time that are published, with their times.
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

/// The memory.
pub struct AccessStore {
    bucket: Fenced,
    prefix: String,
    /// Everybody there is something to store about.
    pub known: BTreeMap<Entity, StoredAccess>,
    /// About the cluster.
    pub meta: Meta,
}

impl AccessStore {
    /// Reads everything of this cluster, and the events whose publishing was not confirmed.
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
                    damaged(format!("{key:?} is neither user nor account").into())
                })?;
                memory.known.insert(entity, known);
            }
        }
        Ok((memory, outbox))
    }

    /// What everybody had when it was published last.
    pub fn published(&self) -> AccessByEntity {
        self.known
            .iter()
            .filter(|(_, known)| known.access != Access::default())
            .map(|(entity, known)| (entity.clone(), known.access.clone()))
            .collect()
    }

    /// Writes the shards of some, with events that are on their way.
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

    /// Looks now and then whether all of it is there still.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn check(&mut self) -> Result<(), Error> {
        self.bucket.check().await
    }

    /// Writes what is stored about the cluster.
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
