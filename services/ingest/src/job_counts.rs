//! Counts of the jobs of a poll, for metrics: one write per poll, whatever the length of the queue.

use mesh_events::chunks::ChunkBuilder;
use mesh_events::proto::mesh::metrics::v1::{JobCell, JobCounts, SchedulerState};
use mesh_events::timestamp;
use slurm_types::UnixTime;

use crate::Error;
use crate::adapters::chunks::ChunkPublisher;

/// Writes the counts of a poll that began at `taken_at`, and what was last read about the scheduler.
///
/// # Errors
/// [`Error::Fenced`] if another ingest has taken over.
pub async fn publish(
    publisher: &mut ChunkPublisher,
    cluster: &str,
    taken_at: UnixTime,
    counts: &slurm_client::JobCounts,
    scheduler: Option<SchedulerState>,
) -> Result<(), Error> {
    let empty = JobCounts {
        cluster: cluster.to_owned(),
        taken_at: chrono::DateTime::from_timestamp(taken_at.as_secs(), 0).map(timestamp),
        ..JobCounts::default()
    };
    let first = JobCounts {
        scheduler,
        ..empty.clone()
    };
    let mut chunks = ChunkBuilder::new(first, empty);
    for cell in counts.iter().map(cell) {
        chunks.chunk_for(&cell).cells.push(cell);
    }
    publisher.publish_all(chunks.build()).await
}

fn cell((cell, sums): (&slurm_client::JobCell, &slurm_client::JobSums)) -> JobCell {
    let reason = cell.reason();
    JobCell {
        partition: cell.partition.to_string(),
        account: cell.account.to_string(),
        user: cell.user.to_string(),
        qos: cell.qos.to_string(),
        state: cell.state.to_string(),
        reason: reason.map_or_else(String::new, |(reason, _)| reason.to_owned()),
        reason_class: reason.map_or_else(String::new, |(_, class)| class.to_string()),
        jobs: sums.jobs,
        tasks: sums.tasks,
        cpus: sums.cpus,
        nodes: sums.nodes,
        max_nodes: sums.max_nodes,
        oldest_submit: sums.oldest_submit.map_or(0, UnixTime::as_secs),
    }
}
