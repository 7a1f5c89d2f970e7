//! Lists all jobs with the columns of squeue, for answers to pollers in its place: one command for everybody.

use std::time::Duration;

use chrono::Utc;
use mesh_events::chunks::ChunkBuilder;
use mesh_events::proto::mesh::queue::v1::{JobListing, ListedJob};
use mesh_events::timestamp;
use slurm_client::{LISTING_LETTERS, Slurm};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::adapters::chunks::ChunkPublisher;
use crate::sources::unless_stopped;

/// Lists jobs and publishes the list.
pub struct JobLister {
    /// Slurm client.
    pub slurm: Slurm,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Writes the chunks.
    pub publisher: ChunkPublisher,
    /// Pause between two lists. Zero: there are none.
    pub interval: Duration,
    /// Signals shutdown.
    pub shutdown: CancellationToken,
}

impl JobLister {
    /// Lists until shutdown.
    ///
    /// # Errors
    /// If another ingest has taken over.
    pub async fn run(mut self) -> Result<(), Error> {
        if self.interval.is_zero() {
            // An old list would only grow older.
            return self.publisher.truncate(0).await;
        }
        loop {
            let taken_at = Utc::now();
            let began = Instant::now();
            match unless_stopped(&self.shutdown, self.slurm.job_listing()).await {
                // Readers see its age, and ask squeue themselves.
                Ok(Err(error)) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "jobs not listed")
                }
                Ok(Ok(listing)) => {
                    let empty = JobListing {
                        cluster: self.cluster.clone(),
                        taken_at: Some(timestamp(taken_at)),
                        letters: LISTING_LETTERS.to_owned(),
                        ..JobListing::default()
                    };
                    self.publisher.publish_all(split(empty, listing)).await?;
                }
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            }
            // At most a tenth of a slow controller's time.
            let pause = self.interval.max(began.elapsed().saturating_mul(9));
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
        }
    }
}

/// Divides a list into chunks.
fn split(empty: JobListing, listing: slurm_client::JobListing) -> Vec<JobListing> {
    let first = JobListing {
        titles: listing.titles,
        ..empty.clone()
    };
    let mut chunks = ChunkBuilder::new(first, empty);
    for columns in listing.jobs {
        let job = ListedJob { columns };
        chunks.chunk_for(&job).jobs.push(job);
    }
    chunks.build()
}
