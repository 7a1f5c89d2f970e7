//! A service's state of one cluster: keys `<cluster>.<…>` of a bucket, with one writer at a time.
//!
//! A new writer writes `<cluster>.writer` first and reads afterwards. Every write names the last revision of *any* key of the cluster. So
//! the first write of a new writer fences off its predecessor, whatever key that is about to write. A delayed write cannot overwrite a
//! newer one either.
//!
//! The writer stores a compressed copy of what it wrote. If the bucket is deleted or purged, its next write or check restores everything.
//! If the lease is lost with the bucket, the next writer of this process restores it.

pub(crate) mod former;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use self::former::Written;
use crate::bucket::{self, Bucket, BucketEntry, MARK, PutError};
use crate::{Bus, Error};

/// Makes the server compare with the last message of other subjects than the message's own; nats-server 2.12 and later, also in a cluster.
const EXPECTED_LAST_OF: &str = "Nats-Expected-Last-Subject-Sequence-Subject";
/// Names the writer, to recognise a write whose answer was lost.
const WRITER_HEADER: &str = "Mesh-Writer";
/// Error text for a write that the server refused although its revision is current.
const UNEXPECTED_CONFLICT: &str = "NATS rejected it as outdated, although it is current; check that every nats-server has version 2.12 or newer";
/// A delete is a message without a value, and with this header.
const DELETE_MARKER: (&str, &str) = ("KV-Operation", "DEL");
/// Interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Keys read concurrently.
const MAX_CONCURRENT_READS: usize = 32;

/// The state of a service for one cluster, with the exclusive right to write it.
pub struct ClusterState {
    bus: Bus,
    bucket: Bucket,
    cluster: String,
    writer: String,
    last: u64,
    /// The bucket's values of the cluster, by key, compressed.
    written: Written,
    /// True if the bucket has lost some of `written`.
    lost: bool,
    /// When the bucket was last found complete.
    checked: Instant,
}

impl Bus {
    /// Takes over the state of a service for a cluster, and fences off every other writer. Returns the stored entries. `cluster` is the
    /// cluster's token, with which its keys begin.
    ///
    /// # Errors
    /// If the bucket does not exist or NATS does not answer.
    pub async fn take_over(
        &self,
        bucket: &str,
        cluster: &str,
    ) -> Result<(ClusterState, Vec<BucketEntry>), Error> {
        let mut state = ClusterState {
            bus: self.clone(),
            bucket: self.bucket(bucket).await?,
            cluster: cluster.to_owned(),
            writer: uuid::Uuid::new_v4().to_string(),
            last: 0,
            written: BTreeMap::new(),
            lost: false,
            checked: Instant::now(),
        };
        let former = self.former.take(state.bucket.name(), cluster);
        // Another writer in between would have left a mark, unless everything was deleted.
        let is_empty = state.newest(&state.key(">")).await?.is_none();
        let mark = state.subject(&state.key(MARK));
        let subject = mark.clone();
        let headers = state.headers();
        let stored = async {
            self.jetstream
                .publish_with_headers(mark, headers, state.writer.clone().into())
                .await?
                .await
        };
        let waiting = self.status.publishing(&subject);
        let stored = stored.await;
        match &stored {
            Ok(_) => waiting.stored(),
            Err(error) => waiting.failed(error),
        }
        let stored = stored.map_err(state.bucket.error("take over bucket"))?;
        state.last = stored.sequence;
        if let (true, Some(former)) = (is_empty, former) {
            state.written = former;
            match state.rewrite(MARK).await {
                // A conflict means that another writer took over meanwhile; our first write will report it.
                Ok(()) | Err(PutError::Conflict { .. }) => {}
                Err(PutError::Bus(error)) => return Err(error),
            }
        }
        let entries = state.load().await?;
        for entry in &entries {
            state.note(&entry.key, &entry.value)?;
        }
        Ok((state, entries))
    }
}

impl ClusterState {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.cluster)
    }

    /// Writes a key of the cluster.
    ///
    /// # Errors
    /// [`PutError::Conflict`] if another writer has taken the state over. After any other error the same write may be retried.
    pub async fn put(&mut self, key: &str, value: Bytes) -> Result<(), PutError> {
        self.write(key, value, &self.headers()).await
    }

    /// Deletes a key of the cluster.
    ///
    /// # Errors
    /// As [`ClusterState::put`].
    pub async fn delete(&mut self, key: &str) -> Result<(), PutError> {
        let mut headers = self.headers();
        let (name, value) = DELETE_MARKER;
        headers.insert(name, value);
        self.write(key, Bytes::new(), &headers).await
    }

    /// Stores the value of a key that its service cannot read under another key, so that the service can write the key again. Logs and reports
    /// it. Returns the other key, which is the same if this is repeated.
    ///
    /// # Errors
    /// As [`ClusterState::put`].
    pub async fn put_aside(
        &mut self,
        entry: &BucketEntry,
        reason: &str,
    ) -> Result<String, PutError> {
        let key = entry.key_aside();
        self.put(&key, entry.value.clone()).await?;
        self.bucket.note_aside(entry, &key, reason);
        Ok(key)
    }

    /// Checks, at most every ten seconds, that the bucket has everything that was written, and restores what is missing. For writers that
    /// may not write for long: until the next write the data would be lost with the writer.
    ///
    /// # Errors
    /// As [`ClusterState::put`].
    pub async fn check(&mut self) -> Result<(), PutError> {
        if self.checked.elapsed() < CHECK_INTERVAL {
            return Ok(());
        }
        let found = self.subjects().await?;
        let mark = self.key(MARK);
        let is_missing = |key: &String| !found.contains(&self.subject(key));
        let lost = is_missing(&mark) || self.written.keys().any(is_missing);
        self.lost |= lost;
        if self.lost {
            self.rewrite(&mark).await?;
        }
        self.checked = Instant::now();
        Ok(())
    }

    async fn write(
        &mut self,
        key: &str,
        value: Bytes,
        headers: &HeaderMap,
    ) -> Result<(), PutError> {
        let subject = self.subject(key);
        loop {
            if self.lost {
                self.rewrite(key).await?;
            }
            if self.store(&subject, &value, headers).await? {
                break;
            }
            // An earlier write of ours whose answer was lost, or another writer's.
            let Some(newest) = self.newest_own(key).await? else {
                self.lost = true;
                continue;
            };
            if newest.sequence == self.last {
                // Nothing came in between: a write of ours is still in flight, or the server compares with another subject.
                return Err(self.bucket.error("write bucket")(UNEXPECTED_CONFLICT).into());
            }
            self.last = newest.sequence;
            if newest.subject.as_str() == subject && newest.payload == value {
                break;
            }
        }
        Ok(self.note(key, &value)?)
    }

    /// The newest message of the cluster, if it is ours. `None` only if the bucket was emptied: every new writer leaves a mark.
    async fn newest_own(&mut self, key: &str) -> Result<Option<StreamMessage>, PutError> {
        let newest = self.newest(&self.key(">")).await?;
        let is_own = |newest: &StreamMessage| {
            newest
                .headers
                .get(WRITER_HEADER)
                .map(|writer| writer.as_str())
                == Some(&self.writer)
        };
        match newest {
            Some(newest) if !is_own(&newest) => Err(self.replaced(key)),
            newest => Ok(newest),
        }
    }

    /// Another writer has taken over: drops the copy of our writes.
    fn replaced(&mut self, key: &str) -> PutError {
        self.written.clear();
        PutError::Conflict {
            key: key.to_owned(),
        }
    }

    /// One attempt; false if the last revision of the cluster's keys is another one.
    async fn store(
        &mut self,
        subject: &str,
        value: &Bytes,
        headers: &HeaderMap,
    ) -> Result<bool, Error> {
        let mut headers = headers.clone();
        headers.insert(
            NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
            self.last.to_string().as_str(),
        );
        headers.insert(EXPECTED_LAST_OF, self.subject(&self.key(">")).as_str());
        let waiting = self.bus.status.publishing(subject);
        let stored = async {
            self.bus
                .jetstream
                .publish_with_headers(subject.to_owned(), headers, value.clone())
                .await?
                .await
        };
        match stored.await {
            Ok(ack) => {
                waiting.stored();
                self.last = ack.sequence;
                Ok(true)
            }
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                waiting.answered();
                Ok(false)
            }
            Err(error) => {
                waiting.failed(&error);
                Err(self.bucket.error("write bucket")(error))
            }
        }
    }

    /// Restores everything into a bucket that was emptied, and may be retried. `key` is the key to be written afterwards, for the error.
    async fn rewrite(&mut self, key: &str) -> Result<(), PutError> {
        let newest = self.newest_own(key).await?;
        self.last = newest.map_or(0, |newest| newest.sequence);
        let headers = self.headers();
        let mut values = vec![(self.key(MARK), Bytes::from(self.writer.clone()))];
        for (key, packed) in &self.written {
            values.push((key.clone(), self.unpacked(packed)?));
        }
        for (one, value) in &values {
            let subject = self.subject(one);
            if !self.store(&subject, value, &headers).await? {
                return Err(self.replaced(key));
            }
        }
        self.lost = false;
        let note = format!(
            "state of {} in bucket {} was missing, written again",
            self.cluster,
            self.bucket.name()
        );
        tracing::error!(keys = self.written.len(), "{note}");
        self.bus.status.repaired(note);
        Ok(())
    }

    /// Records a stored value; an empty one is a deleted key.
    fn note(&mut self, key: &str, value: &Bytes) -> Result<(), Error> {
        if value.is_empty() {
            self.written.remove(key);
            return Ok(());
        }
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        let packed = encoder.write_all(value).and_then(|()| encoder.finish());
        let packed = packed.map_err(self.bucket.error("compress a value of bucket"))?;
        self.written.insert(key.to_owned(), packed);
        Ok(())
    }

    fn unpacked(&self, packed: &[u8]) -> Result<Bytes, Error> {
        let mut value = Vec::new();
        let read = DeflateDecoder::new(packed).read_to_end(&mut value);
        read.map_err(self.bucket.error("read a compressed value of bucket"))?;
        Ok(value.into())
    }

    /// Reads every key but the mark and what was put aside, from the stream's leader: a replica may be behind, and its old values would be written back.
    async fn load(&self) -> Result<Vec<BucketEntry>, Error> {
        let (mark, aside) = (self.key(MARK), bucket::aside(&self.cluster));
        let subjects = self.subjects().await?;
        let keys: Vec<String> = subjects
            .iter()
            .filter_map(|subject| subject.strip_prefix(&self.bucket.store.prefix))
            .filter(|key| *key != mark && !key.starts_with(&aside))
            .map(str::to_owned)
            .collect();
        let entries: Vec<Option<BucketEntry>> =
            stream::iter(keys.into_iter().map(|key| self.read(key)))
                .buffer_unordered(MAX_CONCURRENT_READS)
                .try_collect()
                .await?;
        let mut entries: Vec<BucketEntry> = entries.into_iter().flatten().collect();
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(entries)
    }

    /// The subjects of the cluster's keys.
    async fn subjects(&self) -> Result<BTreeSet<String>, Error> {
        let read = || self.bucket.error("read bucket");
        let listed = self
            .bucket
            .store
            .stream
            .info_with_subjects(self.subject(&self.key(">")))
            .await
            .map_err(read())?;
        let subjects = listed.map_ok(|(subject, _)| subject);
        subjects.try_collect().await.map_err(read())
    }

    async fn read(&self, key: String) -> Result<Option<BucketEntry>, Error> {
        let newest = self.newest(&key).await?;
        let stored = newest.filter(|message| message.headers.get(DELETE_MARKER.0).is_none());
        Ok(stored.map(|message| BucketEntry {
            key,
            value: message.payload,
            revision: message.sequence,
        }))
    }

    /// The newest message of a key, or of all, from the stream's leader.
    async fn newest(&self, key: &str) -> Result<Option<StreamMessage>, Error> {
        let stream = &self.bucket.store.stream;
        match stream
            .get_last_raw_message_by_subject(&self.subject(key))
            .await
        {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(self.bucket.error("read bucket")(error)),
        }
    }

    fn subject(&self, key: &str) -> String {
        format!("{}{key}", self.bucket.store.prefix)
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(WRITER_HEADER, self.writer.as_str());
        headers
    }
}

impl Drop for ClusterState {
    fn drop(&mut self) {
        let written = std::mem::take(&mut self.written);
        self.bus
            .former
            .record_written(self.bucket.name(), &self.cluster, written);
    }
}
