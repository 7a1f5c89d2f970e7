//! Snapshots in chunks: one key per chunk, `<cluster>.<number>`, replaced by each newer snapshot.

use bytes::Bytes;
use mesh_events::subject;

use crate::{BucketEntry, Bus, ClusterState, Error, PutError};

/// Writes the chunks of a cluster's snapshots, fenced against other writers.
pub struct ChunkWriter {
    state: ClusterState,
    cluster: String,
    /// Number of chunks that the bucket may contain.
    chunks: usize,
}

/// The chunks that a bucket has of a cluster, while a snapshot is written also those of two.
#[derive(Clone, Debug)]
pub struct StoredChunks<C> {
    /// Revision of the first chunk, which is written first.
    pub revision: Option<u64>,
    /// Decoded chunks.
    pub chunks: Vec<C>,
}

impl Bus {
    /// Reads the chunks of a cluster's snapshot, unless the first one still has the revision `last`.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn chunks<C: prost::Message + Default>(
        &self,
        bucket: &str,
        cluster: &str,
        last: Option<u64>,
    ) -> Result<Option<StoredChunks<C>>, Error> {
        let prefix = subject::token(cluster);
        let first_key = format!("{prefix}.0");
        let entries = self.bucket(bucket).await?;
        if last.is_some() {
            let first = entries.get(&first_key).await?;
            if first.is_some_and(|first| Some(first.revision) == last) {
                return Ok(None);
            }
        }
        let entries = entries.load(&prefix).await?;
        let first = entries.iter().find(|entry| entry.key == first_key);
        let revision = first.map(|first| first.revision);
        let decode = |entry: BucketEntry| {
            // Other keys than chunks are the writer's mark.
            chunk_number(&entry.key)?;
            C::decode(entry.value)
                .inspect_err(
                    |error| tracing::warn!(%error, bucket, key = entry.key, "snapshot unreadable"),
                )
                .ok()
        };
        let chunks = entries.into_iter().filter_map(decode).collect();
        Ok(Some(StoredChunks { revision, chunks }))
    }

    /// Takes over the snapshots of a cluster: a former writer cannot write them any more. `cluster` is the cluster's token.
    ///
    /// # Errors
    /// As [`Bus::take_over`].
    pub async fn take_over_chunks(
        &self,
        bucket: &str,
        cluster: &str,
    ) -> Result<ChunkWriter, Error> {
        let (state, entries) = self.take_over(bucket, cluster).await?;
        let numbers = entries.iter().filter_map(|entry| chunk_number(&entry.key));
        Ok(ChunkWriter {
            state,
            cluster: cluster.to_owned(),
            chunks: numbers.max().map_or(0, |last| last + 1),
        })
    }
}

impl ChunkWriter {
    /// Writes a snapshot.
    ///
    /// # Errors
    /// As [`ClusterState::put`].
    pub async fn write_all<C: prost::Message>(
        &mut self,
        chunks: impl IntoIterator<Item = C>,
    ) -> Result<(), PutError> {
        let mut count = 0;
        for chunk in chunks {
            self.write(count, chunk.encode_to_vec()).await?;
            count += 1;
        }
        self.truncate(count).await
    }

    /// Writes a chunk.
    ///
    /// # Errors
    /// As [`ClusterState::put`].
    pub async fn write(&mut self, number: usize, chunk: Vec<u8>) -> Result<(), PutError> {
        self.chunks = self.chunks.max(number + 1);
        let key = format!("{}.{number}", self.cluster);
        self.state.put(&key, Bytes::from(chunk)).await
    }

    /// Removes the chunks of a longer previous snapshot.
    ///
    /// # Errors
    /// As [`ClusterState::put`].
    pub async fn truncate(&mut self, chunks: usize) -> Result<(), PutError> {
        while self.chunks > chunks {
            let last = self.chunks - 1;
            let key = format!("{}.{last}", self.cluster);
            self.state.delete(&key).await?;
            self.chunks = last;
        }
        Ok(())
    }
}

fn chunk_number(key: &str) -> Option<usize> {
    key.rsplit_once('.')?.1.parse().ok()
}
