//! The safety net: a cheap poll of the whole queue every few seconds, and full records of the jobs that have changed.
//!
//! Absence alone proves nothing. A live job that the answer lacks is read by its id, then looked up in accounting; only a record ends it.

mod hook_health;
mod reads;
mod selection;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mesh_events::proto::mesh::metrics::v1::SchedulerState;
use prost::Message as _;
use slurm_client::Slurm;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::hook_health::HookHealth;
pub use self::reads::LookupRotations;
use self::selection::{arrays, changed, missing, shown};
use crate::accounting::resolver::LookupQueue;
use crate::adapters::chunks::ChunkPublisher;
use crate::collector::Collector;
use crate::config::Config;
use crate::envelope::Cause;
use crate::job_queries::JobQueries;
use crate::queue::Queue;
use crate::scheduling::Demand;
use crate::sources::{RequestCost, SlurmSource, unless_stopped};
use crate::{Error, job_counts, metrics, queue};

/// Polls the queue.
pub struct Poller<S = Slurm> {
    /// Slurm client.
    pub slurm: S,
    /// Applies observations and holds the run store.
    pub collector: Collector,
    /// Availability of slurmctld.
    pub slurmctld: Arc<SlurmSource>,
    /// Queue of accounting lookups.
    pub lookups: LookupQueue,
    /// Publishes the queue snapshot.
    pub queue: ChunkPublisher,
    /// Publishes the counts of jobs.
    pub job_counts: ChunkPublisher,
    /// What was last read about the scheduler.
    pub scheduler: watch::Receiver<Option<SchedulerState>>,
    /// Publishes whether scheduling state is needed.
    pub demand: watch::Sender<Demand>,
    /// Whether the first poll is done.
    pub live: bool,
    /// Which of what polls lack is asked about next.
    pub rotations: LookupRotations,
    /// Whether hooks ring.
    pub hooks: Arc<HookHealth>,
    /// Requests an early poll.
    pub nudge: Arc<Notify>,
    /// Signals shutdown.
    pub shutdown: CancellationToken,
}

/// Result of a poll.
enum PollOutcome {
    /// All facts it showed are published.
    Done {
        /// Time that Slurm took to answer.
        answer: Duration,
    },
    /// Slurm did not answer; retry after this time.
    Retry(Duration),
}

/// Shortest pause before a requested poll.
const MIN_PAUSE: Duration = Duration::from_secs(1);

impl<S: JobQueries> Poller<S> {
    /// Polls until one poll succeeds, so that all live jobs are known.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn first(&mut self) -> Result<(), Error> {
        loop {
            let PollOutcome::Retry(pause) = self.poll().await? else {
                self.live = true;
                return Ok(());
            };
            tokio::select! {
                () = self.shutdown.cancelled() => return Err(Error::Stopped),
                () = sleep(pause) => {}
            }
        }
    }

    /// Polls until shutdown.
    ///
    /// # Errors
    /// If another ingest has taken over.
    pub async fn run(mut self) -> Result<(), Error> {
        let config = Arc::clone(&self.collector.config);
        let interval = config.poll_interval;
        let (mut pause, mut at_least) = (interval, MIN_PAUSE);
        let mut before = Duration::ZERO;
        loop {
            let requested = async {
                sleep(at_least).await;
                self.nudge.notified().await;
            };
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = sleep(pause) => {}
                () = requested => {}
            }
            let began = Instant::now();
            (pause, at_least) = match self.poll().await {
                Ok(PollOutcome::Retry(pause)) => (pause.max(interval), pause.max(interval)),
                // The time that publishing took says nothing about Slurm.
                Ok(PollOutcome::Done { answer }) => {
                    // One slow answer proves no load: squeue waits ten seconds for a controller that fails over to its backup (22.05).
                    let usual = answer.min(std::mem::replace(&mut before, answer));
                    let polite = poll_delay(usual, self.hooks.is_healthy(), &config)
                        .max(self.slurm.min_poll_interval(answer));
                    let pause = interval.saturating_sub(began.elapsed()).max(polite);
                    (pause, polite.max(MIN_PAUSE))
                }
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    /// Polls once.
    async fn poll(&mut self) -> Result<PollOutcome, Error> {
        self.collector.check_state().await?;
        // Many of its facts would have to be stored before publication.
        if self.collector.is_stuck().await? {
            return Ok(PollOutcome::Retry(self.collector.config.poll_interval));
        }
        let began = Instant::now();
        let mut listing = match unless_stopped(&self.shutdown, self.slurm.list_queue()).await? {
            Ok(listing) => listing,
            Err(error) => return self.unavailable(&error).await.map(PollOutcome::Retry),
        };
        let answer = began.elapsed();
        let number = self.collector.state().await.capture.poll + 1;
        if listing.rows.is_empty() && !self.collector.state().await.run_store.is_empty() {
            // An empty answer with status 0 proves nothing, unless a controller that is up confirms it.
            match unless_stopped(&self.shutdown, self.slurm.ping()).await? {
                Ok(ping) if ping.up => {}
                Ok(_) => return Ok(PollOutcome::Retry(self.collector.config.poll_interval)),
                Err(error) => return self.unavailable(&error).await.map(PollOutcome::Retry),
            }
        }
        self.slurmctld.up(RequestCost::Heavy).await?;
        let taken_at = listing.started_at;
        let now = taken_at.as_secs();
        let rows: BTreeSet<u32> = listing.rows.iter().map(|row| row.job_id.get()).collect();
        self.collector.touch(&rows, now).await;
        let (changed, missing, arrays, unpublished) = {
            let state = self.collector.state().await;
            (
                changed(&state.run_store, &listing),
                missing(&state.run_store, &listing, &rows),
                arrays(&state.run_store, &listing),
                shown(&state.unpublished_jobs(), &listing),
            )
        };
        let cause = Cause::Poll(number);
        metrics::poll(began.elapsed(), listing.rows.len(), changed.order.len());
        drop(rows);
        let counts = std::mem::take(&mut listing.counts);
        let queue = Queue::from(listing);
        self.demand.send_replace(queue.demand());
        if let Some(pause) = self.read(&cause, changed).await? {
            return Ok(PollOutcome::Retry(pause));
        }
        // Also after an unreadable line: the read by id shows whose it was.
        if let Some(pause) = self.resolve_missing(&cause, &missing).await? {
            return Ok(PollOutcome::Retry(pause));
        }
        if let Some(pause) = self.settle(&cause, arrays).await? {
            return Ok(PollOutcome::Retry(pause));
        }
        self.look_up_unpublished(&unpublished).await?;
        self.collector.record_poll(number, began.into_std()).await?;
        self.collector.republished_message(number).await?;
        self.collector.expire().await;
        self.collector.flush().await?;
        self.publish_queue(&queue).await?;
        let cluster = &self.collector.cluster;
        let scheduler = self.scheduler.borrow().clone();
        job_counts::publish(&mut self.job_counts, cluster, taken_at, &counts, scheduler).await?;
        Ok(PollOutcome::Done { answer })
    }

    /// Writes the queue snapshot, one chunk at a time.
    async fn publish_queue(&mut self, queue: &Queue) -> Result<(), Error> {
        let cluster = self.collector.cluster.clone();
        let chunks = {
            let state = self.collector.state().await;
            queue::chunks(&cluster, &state.run_store, queue)
        };
        for number in 0..chunks.len() {
            let chunk = {
                let state = self.collector.state().await;
                queue::chunk(&cluster, &state.run_store, queue, &chunks, number)
            };
            if !self.queue.publish(number, chunk.encode_to_vec()).await? {
                return Ok(());
            }
        }
        self.queue.truncate(chunks.len()).await
    }

    /// Reports slurmctld as unavailable. Returns how long to wait before the next poll.
    async fn unavailable(&self, error: &slurm_client::Error) -> Result<Duration, Error> {
        self.slurmctld.down(RequestCost::Heavy, error).await
    }
}

/// Returns the pause after an answer. A slow answer means a busy controller: polls use at most a tenth of its time, and a twentieth while
/// hooks report nearly everything.
fn poll_delay(answer: Duration, hooks_active: bool, config: &Config) -> Duration {
    let longest = config.max_poll_interval.max(config.poll_interval);
    let answers = if hooks_active { 19 } else { 9 };
    answer.saturating_mul(answers).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_answers_and_active_hooks_make_polls_rare() {
        let config = Config::default();
        let seconds = |answer, hooks_active| {
            poll_delay(Duration::from_millis(answer), hooks_active, &config).as_secs_f64()
        };
        assert!((seconds(100, false) - 0.9).abs() < 1e-9);
        assert!((seconds(2_000, false) - 18.0).abs() < 1e-9);
        assert!((seconds(2_000, true) - 38.0).abs() < 1e-9);
        assert!((seconds(30_000, true) - 60.0).abs() < 1e-9);
    }
}
