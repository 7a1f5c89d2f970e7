//! The checkpoints of the lost history: which of them the bus has and the ledger lacks, and how they are stored again.

use std::collections::{HashMap, HashSet};

use mesh_events::catalogue::{MESH_AUDIT, MESH_CHECKPOINTS};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::{from_timestamp, subject};
use prost::Message as _;

use super::Checkpointer;
use crate::adapters::SignedCheckpoint;
use crate::checkpointer::published_checkpoints::{NewestFirst, read_published};
use crate::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::domain::keys::{self, StoredKey};
use crate::domain::note::PublicKey;
use crate::error::Error;

/// A signed checkpoint and the time of its publication, in microseconds since 1970.
pub(super) struct PublishedCheckpoint {
    pub checkpoint: Checkpoint,
    pub note: String,
    at: i64,
}

/// What the ledger knows of its checkpoints.
pub(super) struct KnownHistory {
    /// Size of its newest checkpoint.
    signed: u64,
    keys: HashSet<String>,
}

impl KnownHistory {
    pub fn of(last: Option<&StoredCheckpoint>, keys: &[StoredKey]) -> Self {
        Self {
            signed: last.map_or(0, |last| last.size.unsigned_abs()),
            keys: keys.iter().map(|key| key.vkey.clone()).collect(),
        }
    }

    /// Whether the ledger lacks a checkpoint: a larger one, or one of the same size that hands over to a key which it does not have. A
    /// key may be rotated while no entries arrive.
    pub fn lacks(&self, found: &PublishedCheckpoint, keys: &[PublicKey]) -> bool {
        let hands_over = || {
            let opened = Checkpoint::open(&found.note, keys);
            opened.is_ok_and(|(_, signed_by)| {
                let mut signed_by = signed_by.iter().map(ToString::to_string);
                signed_by.any(|vkey| !self.keys.contains(&vkey))
            })
        };
        let size = found.checkpoint.size;
        size > self.signed || size == self.signed && hands_over()
    }
}

impl Checkpointer {
    /// Returns the checkpoints on the bus that the ledger lacks, smallest first.
    pub(super) async fn published_beyond(
        &self,
        origin: &str,
        keys: &[PublicKey],
        known: &KnownHistory,
    ) -> Result<Vec<PublishedCheckpoint>, Error> {
        let mut published: Vec<PublishedCheckpoint> = Vec::new();
        let subject = subject::checkpoint(origin);
        let mut walk = NewestFirst::new(&self.bus, MESH_CHECKPOINTS, &subject).await?;
        while let Some(message) = walk.next().await? {
            let Some(checkpoint) = read_published(origin, &message, keys)? else {
                continue;
            };
            let found = PublishedCheckpoint {
                checkpoint,
                note: String::from_utf8_lossy(&message.body).into_owned(),
                at: message.stored.timestamp_micros(),
            };
            // One checkpoint that the ledger already has suffices to show that nothing is missing.
            let lacks = known.lacks(&found, keys);
            if lacks || published.is_empty() {
                published.push(found);
            }
            if !lacks {
                break;
            }
        }
        published.reverse();
        published.sort_by_key(|one| one.checkpoint.size);
        Ok(published)
    }

    /// Returns when and for whom each rotated key was created, by key, according to the audit.
    /// Times are in microseconds since 1970.
    pub(super) async fn keys_made(&self) -> Result<HashMap<String, (i64, String)>, Error> {
        let mut made = HashMap::new();
        let subject = subject::audit(&self.cluster, keys::KIND);
        let mut walk = NewestFirst::new(&self.bus, MESH_AUDIT, &subject).await?;
        while let Some(message) = walk.next().await? {
            let Ok(entry) = AuditEntry::decode(message.body) else {
                continue;
            };
            let at = entry.at.as_ref().and_then(from_timestamp);
            if let (Some(Act::Key(key)), Some(at)) = (entry.act, at) {
                made.insert(key.vkey, (at.timestamp_micros(), key.made_by));
            }
        }
        Ok(made)
    }
}

/// Restores the original checkpoints and the hand-overs of keys at their original sizes.
pub(super) fn to_store(
    mut number: i64,
    mut known: Vec<StoredKey>,
    keys: &[PublicKey],
    published: &[PublishedCheckpoint],
    keys_made: &HashMap<String, (i64, String)>,
) -> Result<Vec<SignedCheckpoint>, Error> {
    let mut all = Vec::new();
    for one in published {
        let (_, signed_by) = Checkpoint::open(&one.note, keys)
            .map_err(|error| Error::NotResumed(mesh_runtime::error_chain(&error)))?;
        let signed_by: Vec<String> = signed_by.iter().map(ToString::to_string).collect();
        let is_known = |vkey: &String| known.iter().any(|key| key.vkey == *vkey);
        let new = signed_by.iter().find(|vkey| !is_known(vkey));
        let size = one.checkpoint.size.cast_signed();
        let key = match (new, known.last()) {
            (Some(new), Some(last)) if !signed_by.contains(&last.vkey) => {
                return Err(Error::NotResumed(format!(
                    "the checkpoint of the hand-over from {} to {new} is not on MESH_CHECKPOINTS",
                    last.vkey
                )));
            }
            (Some(new), last) => {
                // Nobody requested the first key.
                let made = last.and_then(|_| keys_made.get(new).cloned());
                let (made_at, made_by) = made.unwrap_or((one.at, String::new()));
                Some(StoredKey {
                    number: last.map_or(1, |last| last.number + 1),
                    vkey: new.clone(),
                    from_size: last.map_or(0, |_| size),
                    made_at,
                    made_by,
                })
            }
            (None, _) => None,
        };
        known.extend(key.clone());
        number += 1;
        all.push(SignedCheckpoint {
            subtrees: Vec::new(),
            subtrees_rebuilt: false,
            key,
            checkpoint: Some(StoredCheckpoint {
                number,
                size,
                root: one.checkpoint.root.to_vec(),
                note: one.note.clone(),
                made_at: one.at,
            }),
        });
    }
    Ok(all)
}

/// Adds a checkpoint that is not on the bus.
pub(super) fn add(
    published: &mut Vec<PublishedCheckpoint>,
    note: String,
    origin: &str,
    keys: &[PublicKey],
) -> Result<(), Error> {
    let (checkpoint, _) = Checkpoint::open(&note, keys)
        .map_err(|error| Error::NotResumed(mesh_runtime::error_chain(&error)))?;
    if checkpoint.origin != origin {
        return Err(Error::NotResumed(format!(
            "the checkpoint is of {}, but this ledger is {origin}",
            checkpoint.origin
        )));
    }
    if published.iter().all(|one| one.note != note) {
        let at = chrono::Utc::now().timestamp_micros();
        published.push(PublishedCheckpoint {
            checkpoint,
            note,
            at,
        });
        published.sort_by_key(|one| one.checkpoint.size);
    }
    Ok(())
}
