//! Snapshots that arrive in chunks.

use chrono::{DateTime, Utc};
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::queue::v1::{EvidenceSnapshot, QueueSnapshot};

/// One chunk of a snapshot.
pub trait Chunk {
    /// When the snapshot was taken.
    fn taken_at(&self) -> Option<DateTime<Utc>>;
    /// Number of this chunk, and number of chunks.
    fn position(&self) -> (u32, u32);
}

impl Chunk for QueueSnapshot {
    fn taken_at(&self) -> Option<DateTime<Utc>> {
        from_timestamp(self.taken_at.as_ref()?)
    }

    fn position(&self) -> (u32, u32) {
        (self.chunk, self.chunks)
    }
}

impl Chunk for EvidenceSnapshot {
    fn taken_at(&self) -> Option<DateTime<Utc>> {
        from_timestamp(self.taken_at.as_ref()?)
    }

    fn position(&self) -> (u32, u32) {
        (self.chunk, self.chunks)
    }
}

/// The chunks of the newest snapshot in their order, and its time. `None` while chunks of different snapshots are mixed or one is missing.
pub fn newest_complete<C: Chunk>(chunks: Vec<C>) -> Option<(DateTime<Utc>, Vec<C>)> {
    let newest = chunks.iter().filter_map(Chunk::taken_at).max()?;
    let mut chunks: Vec<C> = chunks
        .into_iter()
        .filter(|chunk| chunk.taken_at() == Some(newest))
        .collect();
    chunks.sort_by_key(Chunk::position);
    let (_, expected) = chunks.first()?.position();
    let numbers = chunks.iter().map(|chunk| chunk.position().0);
    numbers.eq(0..expected).then_some((newest, chunks))
}
