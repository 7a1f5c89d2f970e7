//! The safety net: one cheap look at the whole queue every few seconds, and full records of what has changed.
//!
//! Nothing follows from absence alone. A job that is tracked as alive and not in the answer is asked for by its id, then accounting is
//! asked, and only a record ends it.

mod choice;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mesh_bus::Bus;
use slurm_client::{Slurm, Sweep, SweepRow};
use slurm_types::JobId;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::choice::{arrays, changed, missing};
use crate::collector::{Collector, Reading};
use crate::domain::Sighting;
use crate::envelope::Cause;
use crate::identity::IdentityMap;
use crate::proof::Question;
use crate::sources::SlurmSource;
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
    /// The last of the missing jobs that were asked for.
    pub asked: AtomicU32,
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

/// Longest pause between two sweeps, however slow the controller is.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Sweeper {
    /// Sweeps until one succeeds: what lives is known afterwards.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn first(&self) -> Result<(), Error> {
        loop {
            let Swept::Again(pause) = self.sweep().await? else {
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
        let interval = self.collector.config.sweep_interval;
        let mut pause = interval;
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
            let began = Instant::now();
            pause = match self.sweep().await {
                Ok(Swept::Again(pause)) => pause.max(interval),
                // A slow answer means a busy controller: never more than a tenth of the time is spent asking it. How long publishing took
                // says nothing about Slurm.
                Ok(Swept::Done { answer }) => interval
                    .saturating_sub(began.elapsed())
                    .max(answer.saturating_mul(9).min(LONGEST_PAUSE)),
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    /// One sweep.
    async fn sweep(&self) -> Result<Swept, Error> {
        let began = Instant::now();
        let sweep = match self.slurm.sweep().await {
            Ok(sweep) => sweep,
            Err(error) => return self.slurmctld.down(&error).await.map(Swept::Again),
        };
        let answer = began.elapsed();
        let number = self.collector.core().await.meta.sweep + 1;
        if sweep.rows.is_empty() && !self.collector.core().await.book.is_empty() {
            // An empty answer with status 0 proves nothing; a controller that is up confirms it.
            match self.slurm.ping().await {
                Ok(ping) if ping.up => {}
                Ok(_) => return Ok(Swept::Again(self.collector.config.sweep_interval)),
                Err(error) => return self.slurmctld.down(&error).await.map(Swept::Again),
            }
        }
        self.slurmctld.up().await?;
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
        if sweep.unread_lines == 0
            && let Some(pause) = self.look_for(&cause, &missing).await?
        {
            return Ok(Swept::Again(pause));
        }
        for (array, record_gone) in arrays {
            if self
                .collector
                .settle_array(&cause, &array, record_gone)
                .await?
            {
                self.ask(array.job_id).await;
            }
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
        let answer = match self.slurm.jobs(&ids).await {
            Ok(answer) => answer,
            Err(error) => return self.slurmctld.down(&error).await.map(Some),
        };
        for (id, problem) in &answer.unclear {
            tracing::debug!(
                job.id = id.get(),
                problem,
                "no clear answer, read again at the next sweep"
            );
        }
        let digests: std::collections::HashMap<(u32, Option<i64>), u64> = sweep
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
        let mut readings: Vec<Reading> = Vec::new();
        for record in answer
            .found
            .iter()
            .filter(|record| record.job_id.is_some_and(|id| wanted.contains(&id)))
        {
            if !record.state.unknown.is_empty() {
                metrics::drift("job_state");
            }
            let Some(sighting) = Sighting::from_controller(&self.collector.cluster, record) else {
                metrics::drift("record");
                continue;
            };
            let digest = digests
                .get(&(sighting.raw_id, Some(sighting.run.submit_time)))
                .copied();
            readings.push(Reading {
                digest,
                ..Reading::new(sighting)
            });
        }
        // An array before its tasks, an earlier id before a later one.
        readings.sort_by_key(|reading| {
            (
                reading.sighting.run.submit_time,
                reading.sighting.run.job_id,
                reading.sighting.run.task_id,
            )
        });
        let asks = self.collector.absorb(cause, readings).await?;
        for id in asks.accounting {
            self.ask(id).await;
        }
        Ok(None)
    }

    /// Proves what became of jobs that are not in the answer.
    async fn look_for(&self, cause: &Cause, missing: &[JobId]) -> Result<Option<Duration>, Error> {
        if missing.is_empty() {
            return Ok(None);
        }
        let answer = match self.slurm.jobs(missing).await {
            Ok(answer) => answer,
            Err(error) => return self.slurmctld.down(&error).await.map(Some),
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
        for id in answer.missing {
            if self.collector.missing(id.get()).await? {
                self.ask(id.get()).await;
            }
        }
        Ok(None)
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

    /// Reads the identity map again whenever it has changed.
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
            let identities = Arc::clone(&identities);
            if let Err(error) = tokio::task::spawn_blocking(move || identities.reload()).await {
                tracing::warn!(%error, "reload identity map");
            }
        }
    }
}
