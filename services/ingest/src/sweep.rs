//! The safety net: one cheap look at the whole queue every few seconds, and full records of what has changed.
//!
//! Nothing follows from absence alone. A job that is tracked as alive and not in the answer is asked for by its id, then accounting is
//! asked, and only a record ends it.

mod choice;
mod hooks;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use mesh_bus::Bus;
use mesh_events::RunKey;
use slurm_client::{ArrayTasks, JobRecord, JobsAnswer, Slurm, Sweep, SweepRow};
use slurm_types::JobId;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::choice::{ArrayRecord, MISSING_AT_ONCE, OpenArray, arrays, changed, missing};
pub use self::hooks::Hooks;
use crate::collector::{Collector, Reading};
use crate::config::Config;
use crate::domain::Sighting;
use crate::envelope::Cause;
use crate::identity::IdentityMap;
use crate::proof::Question;
use crate::sources::{SlurmSource, Weight, unless_stopped};
use crate::{Error, metrics, queue};

/// Sweeps the queue.
pub struct Sweeper {
    /// Slurm.
    pub slurm: Slurm,
    /// The books.
    pub collector: Collector,
    /// The controller's health.
    pub slurmctld: Arc<SlurmSource>,
    /// Questions for accounting.
    pub questions: mpsc::Sender<Question>,
    /// The bus, for the queue snapshot.
    pub bus: Bus,
    /// Who people are.
    pub identities: Arc<IdentityMap>,
    /// Whether the first sweep is done.
    pub live: AtomicBool,
    /// The last of the missing jobs that were asked for.
    pub asked: AtomicU32,
    /// Whether hooks ring.
    pub hooks: Arc<Hooks>,
    /// Somebody wants a sweep, soon.
    pub nudge: Arc<Notify>,
    /// Stop.
    pub shutdown: CancellationToken,
}

/// What came of a sweep.
enum Swept {
    /// Everything it saw is told.
    Done {
        /// How long Slurm took to answer.
        answer: Duration,
    },
    /// Slurm did not answer; again after this time.
    Again(Duration),
}

/// Records taken in at a time: what follows from them is in memory at once, and doorbells wait meanwhile.
const READ_AT_ONCE: usize = 2_000;

/// Digests of rows, by Slurm's id of the record and its submit time.
type Digests = HashMap<(u32, Option<i64>), u64>;

/// Shortest pause before a sweep that somebody wants.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

impl Sweeper {
    /// Sweeps until one succeeds: what lives is known afterwards.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn first(&self) -> Result<(), Error> {
        loop {
            let Swept::Again(pause) = self.sweep().await? else {
                self.live.store(true, Ordering::Relaxed);
                return Ok(());
            };
            tokio::select! {
                () = self.shutdown.cancelled() => return Err(Error::Stopped),
                () = sleep(pause) => {}
            }
        }
    }

    /// Sweeps until told to stop.
    ///
    /// # Errors
    /// If another ingest took over.
    pub async fn run(self) -> Result<(), Error> {
        let config = Arc::clone(&self.collector.config);
        let interval = config.sweep_interval;
        let (mut pause, mut at_least) = (interval, SHORTEST_PAUSE);
        let mut before = Duration::ZERO;
        loop {
            let wanted = async {
                sleep(at_least).await;
                self.nudge.notified().await;
            };
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = sleep(pause) => {}
                () = wanted => {}
            }
            let began = Instant::now();
            (pause, at_least) = match self.sweep().await {
                Ok(Swept::Again(pause)) => (pause.max(interval), pause.max(interval)),
                // How long publishing took says nothing about Slurm.
                Ok(Swept::Done { answer }) => {
                    // One slow answer is no load: squeue waits ten seconds for a controller that hands over to its backup (22.05).
                    let usual = answer.min(std::mem::replace(&mut before, answer));
                    let polite = politeness(usual, self.hooks.ring_well(), &config)
                        .max(self.slurm.least_pause(answer));
                    let pause = interval.saturating_sub(began.elapsed()).max(polite);
                    (pause, polite.max(SHORTEST_PAUSE))
                }
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    /// One sweep.
    async fn sweep(&self) -> Result<Swept, Error> {
        let began = Instant::now();
        let sweep = match unless_stopped(&self.shutdown, self.slurm.sweep()).await? {
            Ok(sweep) => sweep,
            Err(error) => {
                return self
                    .slurmctld
                    .down(Weight::Heavy, &error)
                    .await
                    .map(Swept::Again);
            }
        };
        let answer = began.elapsed();
        let number = self.collector.core().await.meta.sweep + 1;
        if sweep.rows.is_empty() && !self.collector.core().await.book.is_empty() {
            // An empty answer with status 0 proves nothing; a controller that is up confirms it.
            match unless_stopped(&self.shutdown, self.slurm.ping()).await? {
                Ok(ping) if ping.up => {}
                Ok(_) => return Ok(Swept::Again(self.collector.config.sweep_interval)),
                Err(error) => {
                    return self
                        .slurmctld
                        .down(Weight::Heavy, &error)
                        .await
                        .map(Swept::Again);
                }
            }
        }
        self.slurmctld.up(Weight::Heavy).await?;
        let now = sweep.started_at.as_secs();
        let rows: BTreeSet<u32> = sweep.rows.iter().map(|row| row.job_id.get()).collect();
        self.collector.touch(&rows, now).await;
        let (changed, missing, arrays) = {
            let core = self.collector.core().await;
            (
                changed(&core.book, &sweep),
                missing(
                    &core.book,
                    &sweep,
                    &rows,
                    self.asked.load(Ordering::Relaxed),
                ),
                arrays(&core.book, &sweep),
            )
        };
        if let Some(last) = missing.last() {
            self.asked.store(last.get(), Ordering::Relaxed);
        }
        let cause = Cause::Sweep(number);
        metrics::sweep(began.elapsed(), sweep.rows.len(), changed.len());
        if let Some(pause) = self.read(&cause, &sweep, &changed).await? {
            return Ok(Swept::Again(pause));
        }
        // Also if a line could not be read: whose job that was, the question by id settles.
        if let Some(pause) = self.look_for(&cause, &missing).await? {
            return Ok(Swept::Again(pause));
        }
        if let Some(pause) = self.settle(&cause, arrays).await? {
            return Ok(Swept::Again(pause));
        }
        self.collector.swept(number, now).await;
        self.collector.forget().await;
        self.collector.flush().await?;
        {
            let core = self.collector.core().await;
            let chunks = queue::snapshot(&self.collector.cluster, &core.book, &sweep);
            drop(core);
            queue::publish(&self.bus, &self.collector.cluster, chunks).await;
        }
        Ok(Swept::Done { answer })
    }

    /// Reads the full records of changed jobs and takes them in. Returns how long to wait if Slurm did not answer.
    async fn read(
        &self,
        cause: &Cause,
        sweep: &Sweep,
        changed: &[&SweepRow],
    ) -> Result<Option<Duration>, Error> {
        if changed.is_empty() {
            return Ok(None);
        }
        let ids: BTreeSet<JobId> = changed.iter().map(|row| row.job_id).collect();
        let ids: Vec<JobId> = ids.into_iter().collect();
        let answer = match unless_stopped(&self.shutdown, self.slurm.jobs(&ids)).await? {
            Ok(answer) => answer,
            Err(error) => return self.slurmctld.down(Weight::Heavy, &error).await.map(Some),
        };
        for (id, problem) in &answer.unclear {
            tracing::debug!(
                job.id = id.get(),
                problem,
                "no clear answer, read again at the next sweep"
            );
        }
        let digests: Digests = sweep
            .rows
            .iter()
            .map(|row| {
                (
                    (
                        row.job_id.get(),
                        row.submit.map(slurm_types::UnixTime::as_secs),
                    ),
                    row.digest,
                )
            })
            .collect();
        let wanted: BTreeSet<JobId> = ids.into_iter().collect();
        let mut records = answer.found;
        records.retain(|record| record.job_id.is_some_and(|id| wanted.contains(&id)));
        // An array before its tasks, an earlier id before a later one.
        records.sort_by_key(|record| {
            let task = record.array_tasks.as_ref().and_then(ArrayTasks::task);
            (record.submit, record.array_job_id.or(record.job_id), task)
        });
        let mut records = records.into_iter().peekable();
        while records.peek().is_some() {
            let some = records.by_ref().take(READ_AT_ONCE);
            let readings = some.filter_map(|record| self.reading(&record, &digests));
            let asks = self.collector.absorb(cause, readings.collect()).await?;
            // What happened before this process began tells nothing about hooks.
            if self.live.load(Ordering::Relaxed) {
                self.hooks.found_by_sweep(asks.starts);
            }
            for id in asks.accounting {
                self.ask(id).await;
            }
        }
        Ok(None)
    }

    /// A record on its way into the books, with the digest of its row.
    fn reading(&self, record: &JobRecord, digests: &Digests) -> Option<Reading> {
        if !record.state.unknown.is_empty() {
            metrics::drift("job_state");
        }
        let Some(sighting) = Sighting::from_controller(&self.collector.cluster, record) else {
            metrics::drift("record");
            return None;
        };
        let row = (sighting.raw_id, Some(sighting.run.submit_time));
        Some(Reading {
            digest: digests.get(&row).copied(),
            ..Reading::new(sighting)
        })
    }

    /// Proves what became of jobs that are not in the answer.
    async fn look_for(&self, cause: &Cause, missing: &[JobId]) -> Result<Option<Duration>, Error> {
        if missing.is_empty() {
            return Ok(None);
        }
        let answer = match unless_stopped(&self.shutdown, self.slurm.jobs(missing)).await? {
            Ok(answer) => answer,
            Err(error) => return self.slurmctld.down(Weight::Heavy, &error).await.map(Some),
        };
        let found = answer
            .found
            .iter()
            .filter_map(|record| Sighting::from_controller(&self.collector.cluster, record));
        let wanted: BTreeSet<u32> = missing.iter().map(|id| id.get()).collect();
        let readings = found
            .filter(|sighting| wanted.contains(&sighting.raw_id))
            .map(Reading::new)
            .collect();
        self.collector.absorb(cause, readings).await?;
        // Accounting's record of an end is proof enough; without one they are asked for by id in their turn.
        for id in answer.unlisted {
            self.ask(id.get()).await;
        }
        for id in answer.missing {
            if self.collector.missing(id.get()).await? {
                self.ask(id.get()).await;
            }
        }
        Ok(None)
    }

    /// Settles tasks that left their arrays' records. Whether a record that no row shows is gone, the controller is asked by id.
    async fn settle(
        &self,
        cause: &Cause,
        arrays: Vec<OpenArray>,
    ) -> Result<Option<Duration>, Error> {
        let absent = arrays
            .iter()
            .filter(|array| array.record == ArrayRecord::Absent);
        let absent: Vec<JobId> = absent
            .filter_map(|array| JobId::new(array.run.job_id))
            .take(MISSING_AT_ONCE)
            .collect();
        let answer = match unless_stopped(&self.shutdown, self.slurm.jobs(&absent)).await? {
            Ok(answer) => answer,
            Err(error) => return self.slurmctld.down(Weight::Heavy, &error).await.map(Some),
        };
        for OpenArray { run, record } in arrays {
            let gone = match record {
                ArrayRecord::There => Some(false),
                ArrayRecord::Gone => Some(true),
                ArrayRecord::Absent => self.gone(&run, &answer),
            };
            // What is not clear is asked again at the next sweep.
            if let Some(gone) = gone
                && self.collector.settle_array(cause, &run, gone).await?
            {
                self.ask(run.job_id).await;
            }
        }
        Ok(None)
    }

    /// Whether an array has no record of its own any more; `None` if the answer does not say.
    fn gone(&self, array: &RunKey, answer: &JobsAnswer) -> Option<bool> {
        let of_array = |record: &&JobRecord| {
            let ids = [record.job_id, record.array_job_id];
            ids.contains(&JobId::new(array.job_id))
        };
        let mut records = answer.found.iter().filter(of_array).peekable();
        if records.peek().is_none() {
            let missing = answer.missing.iter();
            return missing
                .into_iter()
                .any(|id| id.get() == array.job_id)
                .then_some(true);
        }
        let own = |record: &JobRecord| {
            let sighting = Sighting::from_controller(&self.collector.cluster, record);
            sighting.is_some_and(|sighting| sighting.run == *array)
        };
        Some(!records.any(own))
    }

    async fn ask(&self, job_id: u32) {
        if self
            .questions
            .send(Question {
                job_id,
                evidence: Vec::new(),
                rings: Vec::new(),
            })
            .await
            .is_err()
        {
            tracing::debug!("stopping, the question is asked again at the next start");
        }
    }

    /// Keeps up with who people are.
    pub async fn watch_identities(
        identities: Arc<IdentityMap>,
        every: Duration,
        shutdown: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep(every) => {}
            }
            identities.refresh().await;
        }
    }
}

/// A slow answer means a busy controller: never more than a tenth of the time is spent asking it, and a twentieth while hooks tell
/// nearly everything.
fn politeness(answer: Duration, hooks_ring: bool, config: &Config) -> Duration {
    let longest = config.sweep_interval_max.max(config.sweep_interval);
    let answers = if hooks_ring { 19 } else { 9 };
    answer.saturating_mul(answers).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_answers_and_ringing_hooks_make_sweeps_rare() {
        let config = Config::default();
        let seconds = |answer, hooks_ring| {
            politeness(Duration::from_millis(answer), hooks_ring, &config).as_secs_f64()
        };
        assert!((seconds(100, false) - 0.9).abs() < 1e-9);
        assert!((seconds(2_000, false) - 18.0).abs() < 1e-9);
        assert!((seconds(2_000, true) - 38.0).abs() < 1e-9);
        assert!((seconds(30_000, true) - 60.0).abs() < 1e-9);
    }
}
