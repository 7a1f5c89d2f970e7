//! A snapshot in chunks in a bucket, fenced against other ingests: of the queue, and of the evidence.

use bytes::Bytes;
use mesh_bus::{Bus, ClusterState, PutError};
use mesh_events::subject;
use tokio_util::sync::CancellationToken;

use super::fenced::{BACKOFF, pause};
use crate::Error;

/// Maximum bytes per chunk. A value may have 1 MiB.
pub const MAX_CHUNK_BYTES: usize = 900_000;

/// Writes a snapshot to its bucket, fenced against other ingests.
pub struct ChunkPublisher {
    bucket: &'static str,
    state: ClusterState,
    prefix: String,
    /// Number of chunks that the bucket may contain.
    chunks: usize,
}

impl ChunkPublisher {
    /// Takes over the bucket: a former leader cannot write a snapshot any more. Retries until success.
    ///
    /// # Errors
    /// On shutdown.
    pub async fn take_over(
        bus: &Bus,
        bucket: &'static str,
        cluster: &str,
        shutdown: &CancellationToken,
    ) -> Result<Self, Error> {
        let prefix = subject::token(cluster);
        let mut backoff = BACKOFF;
        loop {
            match bus.take_over(bucket, &prefix).await {
                Ok((state, entries)) => {
                    let numbers = entries.iter().filter_map(|entry| {
                        let number = entry.key.rsplit_once('.')?.1;
                        number.parse::<usize>().ok()
                    });
                    let chunks = numbers.max().map_or(0, |last| last + 1);
                    return Ok(Self {
                        bucket,
                        state,
                        prefix,
                        chunks,
                    });
                }
                Err(error) => {
                    tracing::debug!(
                        bucket,
                        error = &error as &dyn std::error::Error,
                        "snapshot takeover failed"
                    );
                    pause(shutdown, &mut backoff).await?;
                }
            }
        }
    }

    /// Writes a chunk. A failed write is only logged, as the next poll writes newer chunks. Returns whether it is stored.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn publish(&mut self, number: usize, chunk: Vec<u8>) -> Result<bool, Error> {
        self.chunks = self.chunks.max(number + 1);
        let key = format!("{}.{number}", self.prefix);
        let written = self.state.put(&key, Bytes::from(chunk)).await;
        taken(self.bucket, written)
    }

    /// Removes the chunks of a longer previous snapshot.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn truncate(&mut self, chunks: usize) -> Result<(), Error> {
        while self.chunks > chunks {
            let last = self.chunks - 1;
            let key = format!("{}.{last}", self.prefix);
            let written = self.state.delete(&key).await;
            if !taken(self.bucket, written)? {
                break;
            }
            self.chunks = last;
        }
        Ok(())
    }
}

fn taken(bucket: &'static str, result: Result<(), PutError>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(PutError::Conflict { key }) => Err(Error::Fenced { bucket, key }),
        Err(PutError::Bus(error)) => {
            tracing::debug!(
                bucket,
                error = &error as &dyn std::error::Error,
                "snapshot not published"
            );
            Ok(false)
        }
    }
}
