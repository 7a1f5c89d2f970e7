//! Takes snapshots into the estimates of starts: once per interval, stored before they are shown.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{catalogue, from_timestamp};
use mesh_runtime::HealthNote;
use queue_estimate::draws::DRAWS;

use crate::adapters::estimates::StoredEstimates;
use crate::domain::start_estimate::{self, Request};
use crate::domain::timeline::PendingRun;
use crate::error::Error;
use crate::handlers::Explainer;
use crate::metrics;

/// Fewest forward runs, however long they take.
const MIN_DRAWS: usize = 8;
/// A cycle may take one in so many parts of the interval: a tenth of a core.
const MAX_PART: u32 = 10;

impl Explainer {
    /// Makes estimates periodically until shutdown.
    pub async fn estimate_starts(&self, every: Duration, honesty: &HealthNote) {
        let mut stored = StoredEstimates::default();
        let mut draws = DRAWS;
        loop {
            match self.estimate_once(&mut stored, &mut draws, every).await {
                Ok(()) => {
                    let classes = stored.state.dishonest_classes();
                    if classes.is_empty() {
                        honesty.clear();
                    } else {
                        honesty.say(format!(
                            "fewer than 80 % of the last starts came by P90 in class {}",
                            classes.join(", ")
                        ));
                    }
                }
                Err(Error::Conflict { key }) => {
                    tracing::debug!(key, "state conflict: another instance took the snapshot in");
                }
                Err(error) => {
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        "starts not estimated"
                    );
                }
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }

    async fn estimate_once(
        &self,
        stored: &mut StoredEstimates,
        draws: &mut usize,
        every: Duration,
    ) -> Result<(), Error> {
        let cluster = self.cluster.as_str();
        let snapshot = self.snapshot(cluster);
        let (Some(queue), Some(evidence)) = (snapshot.queue, snapshot.evidence) else {
            return Ok(());
        };
        let bucket = self.bus.bucket(catalogue::BUCKET_EXPLAINER).await?;
        *stored = StoredEstimates::load(&bucket, cluster, std::mem::take(stored)).await?;
        let is_new = queue.taken_at.timestamp() > stored.state.as_of;
        if !is_new && snapshot.estimates.is_some() {
            return Ok(());
        }
        let mut requests = HashMap::new();
        for shard in self.store.shards().await {
            if shard.cluster() == cluster {
                shard.read(|runs| {
                    requests.extend(runs.iter().map(|(key, run)| (key.clone(), request(run))));
                });
            }
        }
        let (before, count) = (stored.clone(), *draws);
        let work = tokio::task::spawn_blocking(move || {
            let mut stored = before;
            let began = std::time::Instant::now();
            let step = stored.state.update(&queue, &evidence, &requests, count);
            (stored, step, began.elapsed())
        });
        let Ok((mut next, mut step, took)) = work.await else {
            return Ok(());
        };
        metrics::estimate_cycle(took);
        // Fewer forward runs rather than more than a tenth of a core.
        *draws = if took * MAX_PART > every {
            (*draws / 2).max(MIN_DRAWS)
        } else if took * MAX_PART * 4 < every {
            DRAWS
        } else {
            *draws
        };
        if is_new {
            next.save(&bucket, cluster).await?;
            for outcome in &step.finished {
                metrics::estimate_finished(outcome);
            }
            *stored = next;
        }
        let quality = Arc::new(stored.state.quality());
        let estimates = Arc::new(std::mem::take(&mut step.estimates));
        let basis = Arc::new(step.basis(stored.state.clone()));
        self.change_snapshot(cluster, |snapshot| {
            snapshot.estimates = Some(Arc::clone(&estimates));
            snapshot.quality = Some(Arc::clone(&quality));
            snapshot.basis = Some(Arc::clone(&basis));
        });
        Ok(())
    }
}

fn request(run: &PendingRun) -> Request {
    let job: &Job = &run.job;
    let started_at = job.start_time.as_ref().and_then(from_timestamp);
    let started_at = started_at
        .filter(|_| run.left_at.is_some())
        .map(|time| time.timestamp());
    let eligible = job.eligible_time.as_ref().or(job.submit_time.as_ref());
    Request {
        size: start_estimate::size(&job.req_tres),
        limit: job
            .time_limit_minutes
            .map_or(start_estimate::UNLIMITED, |minutes| i64::from(minutes) * 60),
        eligible: eligible
            .and_then(from_timestamp)
            .map_or(run.heard_at, |time| time.timestamp()),
        started_at,
        cancelled: run.ended_at.is_some() && started_at.is_none(),
    }
}
