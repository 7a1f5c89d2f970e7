//! Reads the snapshots of ingest and node-watcher.

use chrono::{DateTime, Utc};
use mesh_bus::Bus;
use mesh_events::catalogue::{BUCKET_JOB_COUNTS, BUCKET_NODE_LIST};
use mesh_events::chunks::{Chunk, newest_complete};
use mesh_events::proto::mesh::metrics::v1::{JobCounts, NodeList, SchedulerState};

use crate::domain::jobs::Jobs;
use crate::domain::nodes::Nodes;
use crate::error::Error;

/// The newest complete counts of the cluster's jobs, and what ingest last read about the scheduler. `None` before the first, and while a newer one is written.
///
/// # Errors
/// If NATS does not answer.
pub async fn jobs(
    bus: &Bus,
    cluster: &str,
) -> Result<Option<(Jobs, Option<SchedulerState>)>, Error> {
    let newest = newest::<JobCounts>(bus, BUCKET_JOB_COUNTS, cluster).await?;
    Ok(newest.map(|(taken_at, mut chunks)| {
        let scheduler = chunks.iter_mut().find_map(|chunk| chunk.scheduler.take());
        let cells = chunks.into_iter().flat_map(|chunk| chunk.cells);
        (Jobs::new(taken_at, cells), scheduler)
    }))
}

/// The newest complete list of the cluster's nodes. `None` before the first, and while a newer one is written.
///
/// # Errors
/// If NATS does not answer.
pub async fn nodes(bus: &Bus, cluster: &str) -> Result<Option<Nodes>, Error> {
    let newest = newest::<NodeList>(bus, BUCKET_NODE_LIST, cluster).await?;
    Ok(newest.map(|(taken_at, chunks)| {
        let nodes = chunks.into_iter().flat_map(|chunk| chunk.nodes);
        Nodes::new(taken_at, nodes)
    }))
}

/// The chunks of the newest complete snapshot, and its time.
async fn newest<C: Chunk + prost::Message + Default>(
    bus: &Bus,
    bucket: &str,
    cluster: &str,
) -> Result<Option<(DateTime<Utc>, Vec<C>)>, Error> {
    let stored = bus.chunks(bucket, cluster, None).await?;
    Ok(stored.and_then(|stored| newest_complete(stored.chunks)))
}
