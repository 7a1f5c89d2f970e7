//! Queue snapshot of a poll, for services that need the waiting jobs.

use crate::domain::RunStore;
use crate::scheduling::Demand;
use mesh_events::chunks::{Chunk as _, ChunkSize};
use mesh_events::proto::mesh::queue::v1::{QueueSnapshot, QueuedJob};
use mesh_events::{RunKey, timestamp};
use slurm_client::{ArrayTasks, QueueListing, QueueRow};
use slurm_types::{JobBaseState, JobRef, UnixTime};

/// Less than fits into a value, as each chunk is built in memory.
const MAX_CHUNK_BYTES: usize = 500_000;

/// The part of a poll that the snapshot contains.
pub struct Queue {
    taken_at: UnixTime,
    running: usize,
    waiting: Vec<QueueRow>,
    /// True if a job waits, for its turn or for its nodes.
    needs_scheduling_state: bool,
}

impl From<QueueListing> for Queue {
    fn from(mut listing: QueueListing) -> Self {
        let running = listing.rows.iter();
        let running = running.filter(|row| row.state == Some(JobBaseState::Running));
        let running = running.count();
        // A flag, such as CONFIGURING, hides the base state.
        let needs_scheduling_state =
            |row: &QueueRow| matches!(row.state, Some(JobBaseState::Pending) | None);
        let needs_scheduling_state = listing.rows.iter().any(needs_scheduling_state);
        // Releases the other rows while changed jobs are read.
        listing
            .rows
            .retain(|row| row.state == Some(JobBaseState::Pending));
        listing.rows.shrink_to_fit();
        Self {
            taken_at: listing.started_at,
            running,
            waiting: listing.rows,
            needs_scheduling_state,
        }
    }
}

impl Queue {
    /// Whether scheduling state is needed to explain it.
    pub fn demand(&self) -> Demand {
        Demand {
            is_needed: self.needs_scheduling_state,
            waiting: self.waiting.len(),
        }
    }
}

/// Returns the number of waiting jobs per chunk; one empty chunk if none waits.
pub fn chunks(cluster: &str, run_store: &RunStore, queue: &Queue) -> Vec<usize> {
    let mut chunks = Vec::new();
    let mut jobs = 0;
    let mut size = ChunkSize::new(MAX_CHUNK_BYTES, 0);
    for row in &queue.waiting {
        if size.add(&queued(cluster, run_store, row)) {
            chunks.push(jobs);
            jobs = 0;
        }
        jobs += 1;
    }
    chunks.push(jobs);
    chunks
}

/// Builds one chunk. All chunks together would be most of ingest's memory with a long queue.
pub fn chunk(
    cluster: &str,
    run_store: &RunStore,
    queue: &Queue,
    chunks: &[usize],
    number: usize,
) -> QueueSnapshot {
    let before: usize = chunks.iter().take(number).sum();
    let jobs = chunks.get(number).copied().unwrap_or_default();
    let jobs = queue.waiting.iter().skip(before).take(jobs);
    let mut chunk = QueueSnapshot {
        cluster: cluster.to_owned(),
        taken_at: chrono::DateTime::from_timestamp(queue.taken_at.as_secs(), 0).map(timestamp),
        running: u32::try_from(queue.running).unwrap_or(u32::MAX),
        jobs: jobs.map(|row| queued(cluster, run_store, row)).collect(),
        ..QueueSnapshot::default()
    };
    chunk.set_position(number, chunks.len());
    chunk
}

fn queued(cluster: &str, run_store: &RunStore, row: &QueueRow) -> QueuedJob {
    let submit_time = row.submit.map_or(0, UnixTime::as_secs);
    let task = row.array_tasks.as_deref().and_then(ArrayTasks::task);
    let tracked = run_store
        .submitted_as(row.job_id.get(), submit_time)
        .next_back();
    let run = tracked.map(|(run, _)| run).unwrap_or_else(|| RunKey {
        cluster: cluster.to_owned(),
        job_id: row.array_job_id.unwrap_or(row.job_id).get(),
        task_id: task,
        submit_time,
        attempt: 0,
    });
    QueuedJob {
        run: run.entity_key(),
        job_id: row.job_id.get(),
        display_id: display_id(row).to_string(),
        user: row.user.to_string(),
        partition: row.partition.to_string(),
        reason: row.reason.to_string(),
        priority: row.priority.unwrap_or_default(),
        expected_start: row.start.map_or(0, UnixTime::as_secs),
    }
}

fn display_id(row: &QueueRow) -> JobRef {
    match (
        row.array_job_id,
        row.array_tasks.as_deref(),
        row.het_job_id,
        row.het_job_offset,
    ) {
        (Some(array), Some(ArrayTasks::Task(task)), ..) => JobRef::ArrayTask { array, task: *task },
        (Some(array), Some(tasks), ..) => JobRef::ArrayTasks {
            array,
            tasks: tasks.set().unwrap_or_default(),
        },
        (_, _, Some(leader), Some(offset)) => JobRef::HetComponent { leader, offset },
        _ => JobRef::Job(row.job_id),
    }
}
