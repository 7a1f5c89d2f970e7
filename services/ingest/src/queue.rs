//! Queue snapshot of a poll, for services that need the waiting jobs.

use mesh_bus::{Bus, ClusterState, PutError};
use mesh_events::catalogue::BUCKET_QUEUE;
use mesh_events::proto::mesh::queue::v1::{QueueSnapshot, QueuedJob};
use mesh_events::{RunKey, subject, timestamp};
use prost::Message as _;
use slurm_client::{ArrayTasks, QueueListing, QueueRow};
use slurm_types::{JobBaseState, JobRef, UnixTime};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::adapters::fenced::{BACKOFF, pause};
use crate::domain::RunStore;

/// Maximum number of jobs per chunk.
const MAX_JOBS_PER_CHUNK: usize = 5_000;
/// Maximum bytes per chunk. A value may have 1 MiB.
const MAX_CHUNK_BYTES: usize = 900_000;

/// The part of a poll that the snapshot contains.
pub struct Queue {
    taken_at: UnixTime,
    running: usize,
    waiting: Vec<QueueRow>,
}

impl From<QueueListing> for Queue {
    fn from(mut listing: QueueListing) -> Self {
        let running = listing.rows.iter();
        let running = running.filter(|row| row.state == Some(JobBaseState::Running));
        let running = running.count();
        // Releases the other rows while changed jobs are read.
        listing
            .rows
            .retain(|row| row.state == Some(JobBaseState::Pending));
        listing.rows.shrink_to_fit();
        Self {
            taken_at: listing.started_at,
            running,
            waiting: listing.rows,
        }
    }
}

/// Returns the number of waiting jobs per chunk; one empty chunk if none waits.
pub fn chunks(cluster: &str, run_store: &RunStore, queue: &Queue) -> Vec<usize> {
    let mut chunks = vec![0];
    let mut bytes = 0;
    for row in &queue.waiting {
        let size = queued(cluster, run_store, row).encoded_len() + 8;
        if let Some(jobs) = chunks.last_mut()
            && *jobs < MAX_JOBS_PER_CHUNK
            && bytes + size <= MAX_CHUNK_BYTES
        {
            *jobs += 1;
            bytes += size;
        } else {
            chunks.push(1);
            bytes = size;
        }
    }
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
    let number_of = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    QueueSnapshot {
        cluster: cluster.to_owned(),
        taken_at: chrono::DateTime::from_timestamp(queue.taken_at.as_secs(), 0).map(timestamp),
        running: number_of(queue.running),
        jobs: jobs.map(|row| queued(cluster, run_store, row)).collect(),
        chunk: number_of(number),
        chunks: number_of(chunks.len()),
    }
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

/// Writes the snapshot to its bucket, fenced against other ingests.
pub struct QueuePublisher {
    state: ClusterState,
    prefix: String,
    /// Number of chunks that the bucket may contain.
    chunks: usize,
}

impl QueuePublisher {
    /// Takes over the bucket: a former leader cannot write a snapshot any more. Retries until success.
    ///
    /// # Errors
    /// On shutdown.
    pub async fn take_over(
        bus: &Bus,
        cluster: &str,
        shutdown: &CancellationToken,
    ) -> Result<Self, Error> {
        let prefix = subject::token(cluster);
        let mut backoff = BACKOFF;
        loop {
            match bus.take_over(BUCKET_QUEUE, &prefix).await {
                Ok((state, entries)) => {
                    let numbers = entries.iter().filter_map(|entry| {
                        let number = entry.key.rsplit_once('.')?.1;
                        number.parse::<usize>().ok()
                    });
                    let chunks = numbers.max().map_or(0, |last| last + 1);
                    return Ok(Self {
                        state,
                        prefix,
                        chunks,
                    });
                }
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "queue snapshot takeover failed"
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
    pub async fn publish(&mut self, chunk: &QueueSnapshot) -> Result<bool, Error> {
        let number = usize::try_from(chunk.chunk).unwrap_or_default();
        self.chunks = self.chunks.max(number + 1);
        let key = format!("{}.{number}", self.prefix);
        taken(self.state.put(&key, chunk.encode_to_vec().into()).await)
    }

    /// Removes the chunks of a longer previous queue.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn truncate(&mut self, chunks: usize) -> Result<(), Error> {
        while self.chunks > chunks {
            let last = self.chunks - 1;
            let key = format!("{}.{last}", self.prefix);
            if !taken(self.state.delete(&key).await)? {
                break;
            }
            self.chunks = last;
        }
        Ok(())
    }
}

fn taken(result: Result<(), PutError>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(PutError::Conflict { key }) => Err(Error::Fenced {
            bucket: BUCKET_QUEUE,
            key,
        }),
        Err(PutError::Bus(error)) => {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "queue snapshot not published"
            );
            Ok(false)
        }
    }
}
