//! Key-value buckets. The revision is the fence: every write names the revision that its author has read.

use std::collections::BTreeSet;

use async_nats::jetstream::kv::{CreateErrorKind, Operation, Store, UpdateErrorKind};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use serde::Deserialize;

use crate::follow::StartPosition;
use crate::{Bus, Error};

/// Key suffix of the writer's mark.
pub(crate) const MARK: &str = "writer";

/// Keys with this prefix, of values of `first.…` that were put aside: `<first>.damaged.<the other tokens>.<revision>`.
pub(crate) fn aside(first: &str) -> String {
    format!("{first}.damaged.")
}

/// A key-value bucket. Cheap to clone.
#[derive(Clone)]
pub struct Bucket {
    pub(crate) store: Store,
    name: String,
    bus: Bus,
}

/// A key and its value.
#[derive(Clone, Debug)]
pub struct BucketEntry {
    /// The key.
    pub key: String,
    /// The value; empty after a delete.
    pub value: Bytes,
    /// Revision; the next write has to name it.
    pub revision: u64,
}

impl BucketEntry {
    /// Whether the value is of a format newer than `version`, as [`is_newer_format`].
    pub fn is_newer_than(&self, version: u32) -> bool {
        is_newer_format(&self.value, version)
    }

    /// The key under which the value is put aside.
    pub(crate) fn key_aside(&self) -> String {
        let (first, others) = self.key.split_once('.').unwrap_or(("", &self.key));
        format!("{}{others}.{}", aside(first), self.revision)
    }
}

/// Whether a stored value is of a format newer than `version`, as its JSON field `version` says. An older program must not discard it.
pub fn is_newer_format(json: &[u8], version: u32) -> bool {
    #[derive(Deserialize)]
    struct Format {
        version: u32,
    }
    serde_json::from_slice(json).is_ok_and(|format: Format| format.version > version)
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// Another writer changed the key in between; the revision read is out of date.
    #[error("write {key}: changed by another writer")]
    Conflict {
        /// The key.
        key: String,
    },
    /// NATS refused the write or did not answer.
    #[error(transparent)]
    Bus(#[from] Error),
}

impl Bus {
    /// Opens a bucket of the catalogue.
    ///
    /// # Errors
    /// If it does not exist or NATS does not answer.
    pub async fn bucket(&self, name: &str) -> Result<Bucket, Error> {
        let store = self
            .jetstream
            .get_key_value(name)
            .await
            .map_err(|source| Error::jetstream("open bucket", name)(source.into()))?;
        Ok(Bucket {
            store,
            name: name.to_owned(),
            bus: self.clone(),
        })
    }
}

impl Bucket {
    pub(crate) fn error<E: Into<crate::BoxError>>(
        &self,
        action: &'static str,
    ) -> impl FnOnce(E) -> Error + use<E> {
        let error = Error::jetstream(action, &self.name);
        move |source| error(source.into())
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads a key's value; `None` if the key does not exist or was deleted.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn get(&self, key: &str) -> Result<Option<BucketEntry>, Error> {
        let entry = self
            .store
            .entry(key)
            .await
            .map_err(self.error("read bucket"))?;
        Ok(entry
            .filter(|entry| entry.operation == Operation::Put)
            .map(|entry| BucketEntry {
                key: entry.key,
                value: entry.value,
                revision: entry.revision,
            }))
    }

    /// Writes a key if its revision is still the expected one; `None` expects that the key does not exist. Returns the new revision.
    ///
    /// # Errors
    /// [`PutError::Conflict`] if another writer changed the key in between.
    pub async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<u64, PutError> {
        let conflict = || PutError::Conflict {
            key: key.to_owned(),
        };
        let subject = format!("{}{key}", self.store.prefix);
        let waiting = self.bus.status.publishing(&subject);
        let written = match expected {
            Some(revision) => self
                .store
                .update(key, value, revision)
                .await
                .map_err(|source| match source.kind() {
                    UpdateErrorKind::WrongLastRevision => conflict(),
                    _ => PutError::Bus(self.error("write bucket")(source)),
                }),
            None => self
                .store
                .create(key, value)
                .await
                .map_err(|source| match source.kind() {
                    CreateErrorKind::AlreadyExists => conflict(),
                    _ => PutError::Bus(self.error("write bucket")(source)),
                }),
        };
        match &written {
            Ok(_) => waiting.stored(),
            Err(PutError::Conflict { .. }) => waiting.answered(),
            Err(PutError::Bus(error)) => waiting.failed(&error.cause()),
        }
        written
    }

    /// Deletes a key if its revision is still the expected one.
    ///
    /// # Errors
    /// [`PutError::Conflict`] if another writer changed the key in between.
    pub async fn remove(&self, key: &str, expected: u64) -> Result<(), PutError> {
        let removed = self.store.delete_expect_revision(key, Some(expected)).await;
        removed.map_err(|source| match source.kind() {
            UpdateErrorKind::WrongLastRevision => PutError::Conflict {
                key: key.to_owned(),
            },
            _ => PutError::Bus(self.error("delete from bucket")(source)),
        })
    }

    /// Stores a value that its service cannot read under another key, so that the service can write the key again. Logs and reports it.
    /// The other key is the same if this is repeated.
    ///
    /// # Errors
    /// If NATS refuses the write or does not answer.
    pub async fn put_aside(&self, entry: &BucketEntry, reason: &str) -> Result<(), Error> {
        let key = entry.key_aside();
        match self.put(&key, entry.value.clone(), None).await {
            Ok(_) | Err(PutError::Conflict { .. }) => {}
            Err(PutError::Bus(error)) => return Err(error),
        }
        self.note_aside(entry, &key, reason);
        Ok(())
    }

    pub(crate) fn note_aside(&self, entry: &BucketEntry, key: &str, reason: &str) {
        let note = format!(
            "value of key {} in bucket {} cannot be read, kept as {key}",
            entry.key, self.name
        );
        tracing::error!(bytes = entry.value.len(), reason, "{note}");
        self.bus.status.record(note);
    }

    /// Returns the keys of `written` that the bucket no longer has, because they were deleted or purged.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn missing(&self, prefix: &str, written: Vec<String>) -> Result<Vec<String>, Error> {
        let found = self
            .store
            .stream
            .info_with_subjects(format!("{}{prefix}.>", self.store.prefix))
            .await
            .map_err(self.error("read bucket"))?;
        let found: BTreeSet<String> = found
            .map_ok(|(subject, _)| subject)
            .try_collect()
            .await
            .map_err(self.error("read bucket"))?;
        let mut missing = written;
        missing.retain(|key| !found.contains(&format!("{}{key}", self.store.prefix)));
        Ok(missing)
    }

    /// Logs and reports that keys had been lost and were written again.
    pub fn note_restored(&self, cluster: &str, keys: usize) {
        let note = format!(
            "state of {cluster} in bucket {} was missing, written again",
            self.name
        );
        tracing::error!(keys, "{note}");
        self.bus.status.repaired(note);
    }

    /// Reads every key that begins with `<prefix>.`, except the writer's mark ([`crate::ClusterState`]) and values that were put aside.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn load(&self, prefix: &str) -> Result<Vec<BucketEntry>, Error> {
        let mut entries = self.entries(&format!("{prefix}.>")).await?;
        let aside = aside(prefix);
        entries.retain(|entry| !entry.key.starts_with(&aside));
        Ok(entries)
    }

    /// Reads every key, except the writers' marks.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn all(&self) -> Result<Vec<BucketEntry>, Error> {
        self.entries(">").await
    }

    async fn entries(&self, keys: &str) -> Result<Vec<BucketEntry>, Error> {
        // The keys of a bucket are the subjects of its stream.
        let mut found = self
            .store
            .stream
            .info_with_subjects(format!("{}{keys}", self.store.prefix))
            .await
            .map_err(self.error("read bucket"))?;
        let is_mark = |key: &str| key.split_once('.').is_some_and(|(_, key)| key == MARK);
        let mut entries = Vec::new();
        while let Some((subject, _)) = found.try_next().await.map_err(self.error("read bucket"))? {
            let key = subject.strip_prefix(&self.store.prefix);
            if let Some(key) = key.filter(|key| !is_mark(key)) {
                entries.extend(self.get(key).await?);
            }
        }
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(entries)
    }

    /// Streams every change of a key that begins with `<prefix>.`, beginning with the present values. `*` in the prefix matches any token.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn watch(
        &self,
        prefix: &str,
    ) -> Result<impl Stream<Item = Result<BucketEntry, Error>> + use<>, Error> {
        let keys = self.store.prefix.clone();
        let stream = format!("KV_{}", self.name);
        let filter = format!("{keys}{prefix}.>");
        let changes = self
            .bus
            .read_stream(&stream, filter, StartPosition::Sequence(1));
        Ok(changes.await?.map(move |change| {
            change.map(|message| BucketEntry {
                key: message.subject.replacen(&keys, "", 1),
                value: message.body,
                revision: message.stream_sequence,
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_json_value_names_a_newer_format() {
        for (value, newer) in [
            (&b"{\"version\":2,\"runs\":[]}"[..], true),
            (b"{\"version\":1,\"runs\":[]}", false),
            (b"{\"runs\":{}}", false),
            (b"{\"version\":\"x\"}", false),
            (b"\xff\x00", false),
            (b"", false),
        ] {
            let entry = BucketEntry {
                key: "c1.0".to_owned(),
                value: Bytes::from_static(value),
                revision: 1,
            };
            assert_eq!(entry.is_newer_than(1), newer, "{value:?}");
        }
    }
}
