//! Snapshots in chunks in a bucket, fenced against other ingests.

use mesh_bus::{Bus, ChunkWriter, PutError};
use mesh_events::subject;
use tokio_util::sync::CancellationToken;

use super::fenced::{BACKOFF, pause};
use crate::Error;

/// Writes a snapshot to its bucket, fenced against other ingests.
pub struct ChunkPublisher {
    bucket: &'static str,
    writer: ChunkWriter,
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
            match bus.take_over_chunks(bucket, &prefix).await {
                Ok(writer) => return Ok(Self { bucket, writer }),
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

    /// Writes a whole snapshot. A failed write is only logged.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn publish_all<C: prost::Message>(
        &mut self,
        chunks: impl IntoIterator<Item = C>,
    ) -> Result<(), Error> {
        taken(self.bucket, self.writer.write_all(chunks).await).map(drop)
    }

    /// Writes a chunk. A failed write is only logged, as the next poll writes newer chunks. Returns whether it is stored.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn publish(&mut self, number: usize, chunk: Vec<u8>) -> Result<bool, Error> {
        taken(self.bucket, self.writer.write(number, chunk).await)
    }

    /// Removes the chunks of a longer previous snapshot.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn truncate(&mut self, chunks: usize) -> Result<(), Error> {
        taken(self.bucket, self.writer.truncate(chunks).await).map(drop)
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
