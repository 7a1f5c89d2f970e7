//! Recovers the lost history of a restored ledger from the bus.
//!
//! A signed checkpoint determines the result: only one order of the messages has its root. The
//! messages on `MESH_ORDER` give that order. All leaves are computed first and compared with this
//! checkpoint and all earlier ones. Only then are entries written. An interrupted recovery
//! continues from the entries that it has written.

use std::collections::{HashMap, HashSet};

use ledger_format::chain::Hash;
use ledger_format::merkle::{Frontier, Node};
use mesh_bus::StoredMessage;
use mesh_events::catalogue::{MESH_AUDIT, MESH_CHECKPOINTS, MESH_ORDER};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::{from_timestamp, subject};
use prost::Message as _;

use super::published_checkpoints::{NewestFirst, read_published};
use super::subtrees::tree_at;
use super::{Checkpointer, same};
use crate::adapters::{BatchSequences, SignedCheckpoint};
use crate::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::domain::history_audit::{self, Resumed};
use crate::domain::keys::{self, StoredKey};
use crate::domain::note::PublicKey;
use crate::domain::order::{EntryOrder, OrderIndex};
use crate::domain::record::Record;
use crate::domain::tile::grow;
use crate::error::Error;
use crate::handlers::Source;

/// Entries per transaction.
const PAGE_ENTRIES: usize = 500;

/// An entry to recover.
#[derive(Clone, Copy, Debug)]
struct RecoveryPlan {
    source: Source,
    sequence: u64,
    leaf: Hash,
}

/// A signed checkpoint and the time of its publication, in microseconds since 1970.
struct PublishedEntry {
    checkpoint: Checkpoint,
    note: String,
    at: i64,
}

/// What the ledger knows of its checkpoints.
struct KnownHistory {
    /// Size of its newest checkpoint.
    signed: u64,
    keys: HashSet<String>,
}

impl KnownHistory {
    fn of(last: Option<&StoredCheckpoint>, keys: &[StoredKey]) -> Self {
        Self {
            signed: last.map_or(0, |last| last.size.unsigned_abs()),
            keys: keys.iter().map(|key| key.vkey.clone()).collect(),
        }
    }

    /// Whether the ledger lacks a checkpoint: a larger one, or one of the same size that hands over to a key which it does not have. A
    /// key may be rotated while no entries arrive.
    fn lacks(&self, found: &PublishedEntry, keys: &[PublicKey]) -> bool {
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
    /// Recovers the entries up to a checkpoint: the given one, or the newest known.
    ///
    /// # Errors
    /// [`Error::NotResumed`] if entries are missing on the bus, [`Error::Inconsistent`] if the
    /// entries differ. Nothing is written then.
    pub async fn resume(&self, note: Option<&str>, made_by: &str) -> Result<Resumed, Error> {
        let mut state = self.state.lock().await;
        let stored = self.store.checkpoint_keys().await?;
        state.origin = keys::origin(&stored, &self.origin);
        self.load_last_note(&mut state)?;
        let keys = self.known_keys(&stored)?;
        let from = self.store.head().await?.seq;
        let last = self.store.last_checkpoint().await?;
        let known = KnownHistory::of(last.as_ref(), &stored);
        let mut published = self.published_beyond(&state.origin, &keys, &known).await?;
        // A checkpoint signed on this host may not have reached the bus. One of another origin or
        // key is ignored.
        if let (None, Some(last)) = (note, self.file.last_note()?) {
            add(&mut published, last, &state.origin, &keys).ok();
        }
        if let Some(note) = note {
            add(&mut published, note.to_owned(), &state.origin, &keys)?;
            let target_size =
                Checkpoint::unverified(note).map_or(0, |target_size| target_size.size);
            published.retain(|one| one.checkpoint.size <= target_size);
        }
        let Some(target) = published.last() else {
            return Err(Error::NotResumed(format!(
                "no known checkpoint covers more than the {from} entries of the ledger"
            )));
        };
        let (target, note) = (target.checkpoint.clone(), target.note.clone());
        let to = target.size;
        let resumed = Resumed {
            origin: state.origin.clone(),
            from,
            to,
            note,
        };
        // The entries may be there without their checkpoints: the database was copied before these
        // were stored.
        published.retain(|one| known.lacks(one, &keys));
        if published.is_empty() {
            tree_at(&self.store, Some(&target)).await?;
            return Ok(resumed);
        }
        let found = match to > from {
            true => self.find(&state.origin, from, to).await?,
            false => Vec::new(),
        };
        let is_stored = self
            .store_recovered(last, stored, from, &found, &published)
            .await?;
        if !is_stored {
            return Err(Error::NotResumed(
                "another replica stored a checkpoint in the meantime; try again".to_owned(),
            ));
        }
        if to <= from {
            (state.compared, state.ordered) = (false, None);
            return Ok(resumed);
        }
        let signed = state.signed.as_ref().map_or(0, |signed| signed.size);
        if to > signed {
            self.file.write_last_note(&resumed.note)?;
            state.signed = published.pop().map(|last| last.checkpoint);
        }
        (state.compared, state.ordered) = (false, None);
        tracing::warn!(from, to, by = made_by, "ledger resumed from the bus");
        self.publish_audit(&history_audit::resumed(&resumed, &self.cluster, made_by))
            .await;
        Ok(resumed)
    }

    /// Stores the published checkpoints up to a size that the ledger already has. Those of a
    /// database that was copied before they were stored are only on the bus.
    pub(super) async fn store_published(
        &self,
        origin: &str,
        last: Option<StoredCheckpoint>,
        stored: Vec<StoredKey>,
        size: u64,
    ) -> Result<(), Error> {
        let keys = self.known_keys(&stored)?;
        let known = KnownHistory::of(last.as_ref(), &stored);
        let mut published = self.published_beyond(origin, &keys, &known).await?;
        published.retain(|one| known.lacks(one, &keys) && one.checkpoint.size <= size);
        let count = published.len();
        // If another replica was faster, there is nothing left to do.
        if self
            .store_recovered(last, stored, size, &[], &published)
            .await?
        {
            tracing::warn!(count, size, "published checkpoints stored again");
        }
        Ok(())
    }

    /// Stores recovered entries and published checkpoints. Returns false if another replica stored
    /// a checkpoint meanwhile.
    async fn store_recovered(
        &self,
        last: Option<StoredCheckpoint>,
        stored: Vec<StoredKey>,
        from: u64,
        found: &[RecoveryPlan],
        published: &[PublishedEntry],
    ) -> Result<bool, Error> {
        let keys = self.known_keys(&stored)?;
        let number = last.map_or(0, |last| last.number);
        let made = self.keys_made().await?;
        let mut signed = to_store(number, stored, &keys, published, &made)?;
        let subtrees = self.prove(from, found, published).await?;
        self.append_recovered(from, found).await?;
        if let Some(first) = signed.first_mut() {
            first.subtrees = subtrees;
        }
        for signed in &signed {
            if !self.store.store_checkpoint(signed).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the checkpoints on the bus that the ledger lacks, smallest first.
    async fn published_beyond(
        &self,
        origin: &str,
        keys: &[PublicKey],
        known: &KnownHistory,
    ) -> Result<Vec<PublishedEntry>, Error> {
        let mut published: Vec<PublishedEntry> = Vec::new();
        let subject = subject::checkpoint(origin);
        let mut walk = NewestFirst::new(&self.bus, MESH_CHECKPOINTS, &subject).await?;
        while let Some(message) = walk.next().await? {
            let Some(checkpoint) = read_published(origin, &message, keys)? else {
                continue;
            };
            let found = PublishedEntry {
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
    async fn keys_made(&self) -> Result<HashMap<String, (i64, String)>, Error> {
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

    /// Locates the entries of a range in the streams.
    async fn find(&self, origin: &str, from: u64, to: u64) -> Result<Vec<RecoveryPlan>, Error> {
        let mut places = OrderIndex::new(from, to);
        let subject = subject::order(origin);
        let mut walk = NewestFirst::new(&self.bus, MESH_ORDER, &subject).await?;
        while let Some(message) = walk.next().await? {
            let Some(order) = EntryOrder::decode(&message.body) else {
                continue;
            };
            places.add(&order);
            if order.first_seq <= from + 1 {
                break;
            }
        }
        let count = usize::try_from(to - from).unwrap_or(usize::MAX);
        let unknown = places.unknown();
        let mut places = places.indexed();
        let mut found: Vec<Option<RecoveryPlan>> = vec![None; count];
        let mut rest = Vec::new();
        for source in [Source::Events, Source::Audit] {
            let mut spare = Vec::new();
            let mut messages = UnreadMessages::of(self, source).await?;
            while places.left() > 0 || spare.len() < unknown {
                let Some((sequence, stored, record)) = messages.next().await? else {
                    break;
                };
                if let Some(seq) = places.take(&record.id) {
                    let at = usize::try_from(seq - from - 1).unwrap_or(usize::MAX);
                    found[at] = Some(RecoveryPlan {
                        source,
                        sequence,
                        leaf: record.leaf(seq),
                    });
                } else if spare.len() < unknown && self.store.seq_of(&record.id).await?.is_none() {
                    spare.push((stored, source, sequence, record));
                }
            }
            rest.extend(spare);
        }
        // Entries without a recorded order are sorted by time as the best guess. The root then
        // shows whether the guess is right.
        rest.sort_by_key(|(stored, ..)| *stored);
        let mut ids = HashSet::new();
        rest.retain(|(.., record)| ids.insert(record.id.clone()));
        let mut rest = rest.into_iter();
        let open = found.iter_mut().zip(from + 1..);
        for (place, seq) in open.filter(|(place, _)| place.is_none()).take(unknown) {
            *place = rest
                .next()
                .map(|(_, source, sequence, record)| RecoveryPlan {
                    source,
                    sequence,
                    leaf: record.leaf(seq),
                });
        }
        let missing = found.iter().filter(|one| one.is_none()).count();
        if missing > 0 {
            return Err(Error::NotResumed(format!(
                "{missing} of {count} entries are no longer on SLURM_EVENTS and MESH_AUDIT; --new-origin continues without them"
            )));
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Compares the entries with every checkpoint, and returns the completed subtrees.
    async fn prove(
        &self,
        from: u64,
        found: &[RecoveryPlan],
        published: &[PublishedEntry],
    ) -> Result<Vec<(Node, Hash)>, Error> {
        let mut tree = Frontier::default();
        let mut subtrees = Vec::new();
        let mut leaves = found.iter();
        for one in published {
            let stored = one.checkpoint.size.min(from);
            if stored > tree.size() {
                subtrees.extend(self.store.grow(&mut tree, stored).await?);
            }
            while tree.size() < one.checkpoint.size {
                let Some(next) = leaves.next() else { break };
                grow(&mut tree, next.leaf, &mut subtrees);
            }
            same(Some(tree.root()), &one.checkpoint)?;
        }
        Ok(subtrees)
    }

    async fn append_recovered(&self, from: u64, found: &[RecoveryPlan]) -> Result<(), Error> {
        let mut after = from;
        let same_stream = |a: &RecoveryPlan, b: &RecoveryPlan| a.source == b.source;
        let runs = found.chunk_by(same_stream);
        for page in runs.flat_map(|run| run.chunks(PAGE_ENTRIES)) {
            let source = page[0].source;
            let stream = source.stream();
            let (mut records, mut sequences) = (Vec::new(), Vec::new());
            for one in page {
                let message = self.bus.stored_at(stream, one.sequence).await;
                let message = message.map_err(Error::Bus)?;
                let (stored, record) = record(source, message).ok_or_else(|| {
                    Error::NotResumed(format!(
                        "message {} of {stream} was deleted during the resume; {after} entries are restored",
                        one.sequence
                    ))
                })?;
                sequences.push((one.sequence, stored));
                records.push(record);
            }
            let batch = BatchSequences::Messages(sequences);
            let appended = self
                .store
                .append_recovered(after, stream, &batch, &records)
                .await?;
            after += page.len() as u64;
            if appended.head.seq != after {
                return Err(Error::Moved {
                    entries: appended.head.seq,
                    after,
                });
            }
        }
        Ok(())
    }
}

/// Restores the original checkpoints and the hand-overs of keys at their original sizes.
fn to_store(
    mut number: i64,
    mut known: Vec<StoredKey>,
    keys: &[PublicKey],
    published: &[PublishedEntry],
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

/// The messages of a stream that the ledger has not received, in order.
struct UnreadMessages<'a> {
    checkpointer: &'a Checkpointer,
    source: Source,
    next: u64,
    last: u64,
}

impl<'a> UnreadMessages<'a> {
    async fn of(checkpointer: &'a Checkpointer, source: Source) -> Result<Self, Error> {
        let stream = source.stream();
        let state = checkpointer.bus.stream_state(stream).await;
        let state = state.map_err(Error::Bus)?;
        let position = checkpointer.store.position(stream).await?;
        let position = position.unwrap_or_default();
        let same_stream = position.created_at == Some(state.created.timestamp_micros());
        Ok(Self {
            checkpointer,
            source,
            // In a recreated stream all messages are new.
            next: if same_stream {
                position.received.up_to + 1
            } else {
                1
            },
            last: state.last_sequence,
        })
    }

    /// Returns sequence, time and record of the next message, or `None` at the end.
    async fn next(&mut self) -> Result<Option<(u64, i64, Record)>, Error> {
        while self.next <= self.last {
            let bus = &self.checkpointer.bus;
            let message = bus.stored_from(self.source.stream(), self.next).await;
            let Some(message) = message.map_err(Error::Bus)? else {
                break;
            };
            self.next = message.sequence + 1;
            let sequence = message.sequence;
            if let Some((stored, record)) = record(self.source, Some(message)) {
                return Ok(Some((sequence, stored, record)));
            }
        }
        Ok(None)
    }
}

/// Adds a checkpoint that is not on the bus.
fn add(
    published: &mut Vec<PublishedEntry>,
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
        published.push(PublishedEntry {
            checkpoint,
            note,
            at,
        });
        published.sort_by_key(|one| one.checkpoint.size);
    }
    Ok(())
}

fn record(source: Source, message: Option<StoredMessage>) -> Option<(i64, Record)> {
    let message = message?;
    let record = source.decode(&message.subject, message.body).ok()?;
    Some((message.stored.timestamp_micros(), record))
}
