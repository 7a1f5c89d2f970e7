//! The queue snapshot of a sweep, for those who need the waiting jobs.

use mesh_bus::{Bus, ClusterState, PutError};
use mesh_events::catalogue::BUCKET_QUEUE;
use mesh_events::proto::mesh::queue::v1::{QueueSnapshot, QueuedJob};
use mesh_events::{RunKey, subject, timestamp};
use prost::Message as _;
use slurm_client::{ArrayTasks, Sweep, SweepRow};
use slurm_types::{JobBaseState, JobRef, UnixTime};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::adapters::fenced::{FIRST_PAUSE, pause};
use crate::domain::Book;

/// Jobs per chunk.
const MOST_JOBS: usize = 5_000;
/// Bytes per chunk; a value may have 1 MiB.
const MOST_BYTES: usize = 900_000;

/// The waiting jobs in chunks; one empty chunk if none waits.
pub fn snapshot(cluster: &str, book: &Book, sweep: &Sweep) -> Vec<QueueSnapshot> {
    let running = sweep
        .rows
        .iter()
        .filter(|row| row.state.is(JobBaseState::Running))
        .count();
    let empty = || QueueSnapshot {
        cluster: cluster.to_owned(),
        taken_at: chrono::DateTime::from_timestamp(sweep.started_at.as_secs(), 0).map(timestamp),
        running: u32::try_from(running).unwrap_or(u32::MAX),
        ..QueueSnapshot::default()
    };
    let mut chunks = vec![empty()];
    let mut bytes = 0;
    for row in sweep
        .rows
        .iter()
        .filter(|row| row.state.is(JobBaseState::Pending))
    {
        let job = queued(cluster, book, row);
        let size = job.encoded_len() + 8;
        let full = chunks
            .last()
            .is_some_and(|chunk| chunk.jobs.len() >= MOST_JOBS)
            || bytes + size > MOST_BYTES;
        if full {
            chunks.push(empty());
            bytes = 0;
        }
        bytes += size;
        if let Some(chunk) = chunks.last_mut() {
            chunk.jobs.push(job);
        }
    }
    let count = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
    for (number, chunk) in (0..).zip(&mut chunks) {
        (chunk.chunk, chunk.chunks) = (number, count);
    }
    chunks
}

fn queued(cluster: &str, book: &Book, row: &SweepRow) -> QueuedJob {
    let submit_time = row.submit.map_or(0, UnixTime::as_secs);
    let task = row.array_tasks.as_ref().and_then(ArrayTasks::task);
    let tracked = book.submitted_as(row.job_id.get(), submit_time).next_back();
    let run = tracked
        .map(|(run, _)| run.clone())
        .unwrap_or_else(|| RunKey {
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
        user: row.user.clone(),
        partition: row.partition.clone(),
        reason: row.reason.clone(),
        priority: row.priority.unwrap_or_default(),
        expected_start: row.start.map_or(0, UnixTime::as_secs),
    }
}

fn display_id(row: &SweepRow) -> JobRef {
    match (
        row.array_job_id,
        &row.array_tasks,
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

/// The snapshot in its bucket, written by one ingest at a time.
pub struct Published {
    state: ClusterState,
    prefix: String,
    /// How many chunks there may be.
    chunks: usize,
}

impl Published {
    /// Takes over what is there: a former leader writes no snapshot any more.
    ///
    /// # Errors
    /// If told to stop.
    pub async fn take_over(
        bus: &Bus,
        cluster: &str,
        shutdown: &CancellationToken,
    ) -> Result<Self, Error> {
        let prefix = subject::token(cluster);
        let mut delay = FIRST_PAUSE;
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
                        "take over the queue snapshot"
                    );
                    pause(shutdown, &mut delay).await?;
                }
            }
        }
    }

    /// Writes the chunks. The next sweep brings newer ones, so what NATS does not take is only noted.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn publish(&mut self, chunks: &[QueueSnapshot]) -> Result<(), Error> {
        match self.write(chunks).await {
            Ok(()) => Ok(()),
            Err(PutError::Conflict { key }) => Err(Error::Fenced {
                bucket: BUCKET_QUEUE,
                key,
            }),
            Err(PutError::Bus(error)) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "publish queue snapshot"
                );
                Ok(())
            }
        }
    }

    async fn write(&mut self, chunks: &[QueueSnapshot]) -> Result<(), PutError> {
        self.chunks = self.chunks.max(chunks.len());
        for chunk in chunks {
            let key = format!("{}.{}", self.prefix, chunk.chunk);
            self.state.put(&key, chunk.encode_to_vec().into()).await?;
        }
        // Chunks of a longer queue before.
        while self.chunks > chunks.len() {
            let last = self.chunks - 1;
            self.state
                .delete(&format!("{}.{last}", self.prefix))
                .await?;
            self.chunks = last;
        }
        Ok(())
    }
}
