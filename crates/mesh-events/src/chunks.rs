//! Snapshots that are stored in chunks: divided by their writers, assembled by their readers.

use chrono::{DateTime, Utc};
use prost::Message;

use crate::from_timestamp;
use crate::proto::mesh::metrics::v1::{JobCounts, NodeList};
use crate::proto::mesh::queue::v1::{EvidenceSnapshot, JobListing, QueueSnapshot};

/// Maximum bytes per chunk. A value may have 1 MiB.
pub const MAX_CHUNK_BYTES: usize = 900_000;

/// Bytes of an item's tag and length.
const ITEM_OVERHEAD: usize = 8;

/// One chunk of a snapshot.
pub trait Chunk {
    /// When the snapshot was taken.
    fn taken_at(&self) -> Option<DateTime<Utc>>;
    /// Number of this chunk, and number of chunks.
    fn position(&self) -> (u32, u32);
    /// Sets both numbers.
    fn set_position(&mut self, number: usize, count: usize);
}

macro_rules! chunks {
    ($($message:ty),+) => {$(
        impl Chunk for $message {
            fn taken_at(&self) -> Option<DateTime<Utc>> {
                from_timestamp(self.taken_at.as_ref()?)
            }

            fn position(&self) -> (u32, u32) {
                (self.chunk, self.chunks)
            }

            fn set_position(&mut self, number: usize, count: usize) {
                let [number, count] =
                    [number, count].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
                (self.chunk, self.chunks) = (number, count);
            }
        }
    )+};
}

chunks!(
    QueueSnapshot,
    EvidenceSnapshot,
    JobListing,
    JobCounts,
    NodeList
);

/// Decides by size where a new chunk begins.
#[derive(Clone, Copy, Debug)]
pub struct ChunkSize {
    max_bytes: usize,
    /// Of a chunk without items.
    empty_bytes: usize,
    /// Of the present chunk.
    bytes: usize,
}

impl ChunkSize {
    /// Chunks of at most `max_bytes`, which have `empty_bytes` without items.
    pub fn new(max_bytes: usize, empty_bytes: usize) -> Self {
        Self {
            max_bytes,
            empty_bytes,
            bytes: empty_bytes,
        }
    }

    /// Counts an item. Returns true if a new chunk begins with it.
    pub fn add(&mut self, item: &impl Message) -> bool {
        let size = item.encoded_len() + ITEM_OVERHEAD;
        let is_full = self.bytes + size > self.max_bytes;
        if is_full {
            self.bytes = self.empty_bytes;
        }
        self.bytes += size;
        is_full
    }
}

/// Divides a snapshot into chunks that fit into a value. Without items, there is one chunk.
#[derive(Clone, Debug)]
pub struct ChunkBuilder<C> {
    empty: C,
    size: ChunkSize,
    complete: Vec<C>,
    last: C,
}

impl<C: Chunk + Message + Clone> ChunkBuilder<C> {
    /// `first` is the first chunk without items, `empty` each of the others.
    pub fn new(first: C, empty: C) -> Self {
        let mut size = ChunkSize::new(MAX_CHUNK_BYTES, empty.encoded_len());
        size.bytes = first.encoded_len();
        Self {
            empty,
            size,
            complete: Vec::new(),
            last: first,
        }
    }

    /// The chunk that an item has to be added to.
    pub fn chunk_for(&mut self, item: &impl Message) -> &mut C {
        if self.size.add(item) {
            let full = std::mem::replace(&mut self.last, self.empty.clone());
            self.complete.push(full);
        }
        &mut self.last
    }

    /// The chunks, numbered.
    pub fn build(self) -> Vec<C> {
        let mut chunks = self.complete;
        chunks.push(self.last);
        let count = chunks.len();
        for (number, chunk) in chunks.iter_mut().enumerate() {
            chunk.set_position(number, count);
        }
        chunks
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::mesh::queue::v1::{FailedRead, Limit, NodeState};

    #[test]
    fn a_large_snapshot_is_divided_and_loses_nothing() {
        let limit = Limit {
            qos: "q".repeat(1_000),
            ..Limit::default()
        };
        let empty = EvidenceSnapshot {
            cluster: "c".repeat(100),
            ..EvidenceSnapshot::default()
        };
        let first = EvidenceSnapshot {
            failed: vec![FailedRead::default()],
            ..empty.clone()
        };
        let mut builder = ChunkBuilder::new(first, empty);
        for limit in vec![limit; 2_000] {
            builder.chunk_for(&limit).limits.push(limit);
        }
        for node in vec![NodeState::default(); 10] {
            builder.chunk_for(&node).nodes.push(node);
        }
        let chunks = builder.build();
        assert!(
            chunks
                .iter()
                .all(|chunk| chunk.encoded_len() <= MAX_CHUNK_BYTES)
        );
        let positions: Vec<_> = chunks.iter().map(Chunk::position).collect();
        assert_eq!(positions, [(0, 3), (1, 3), (2, 3)]);
        let limits: usize = chunks.iter().map(|chunk| chunk.limits.len()).sum();
        let nodes: usize = chunks.iter().map(|chunk| chunk.nodes.len()).sum();
        assert_eq!((limits, nodes, chunks[0].failed.len()), (2_000, 10, 1));
        assert!(chunks.iter().all(|chunk| chunk.cluster.len() == 100));
    }

    #[test]
    fn without_items_there_is_one_chunk() {
        let chunks = ChunkBuilder::new(JobCounts::default(), JobCounts::default()).build();
        assert_eq!(
            chunks.iter().map(Chunk::position).collect::<Vec<_>>(),
            [(0, 1)]
        );
    }
}
