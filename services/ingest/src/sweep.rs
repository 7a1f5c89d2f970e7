//! The safety net: one cheap look at the whole queue every few seconds, and full records of what has changed.
//!
//! Nothing follows from absence alone. A job that is tracked as alive and not in the answer is asked for by its id, then accounting is
//! asked, and only a record ends it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mesh_bus::Bus;
use mesh_events::RunKey;
use slurm_client::{Slurm, Sweep, SweepRow};
use slurm_types::JobId;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::collector::{Collector, Reading};
use crate::domain::{Book, Sighting};
use crate::envelope::Cause;
use crate::identity::IdentityMap;
use crate::proof::Question;
use crate::sources::SlurmSource;
use crate::{Error, metrics, queue};

/// Missing jobs asked for by id per sweep; the others wait for the next one.
const MISSING_AT_ONCE: usize = 64;

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
    /// Stop.
    pub shutdown: CancellationToken,
}

impl Sweeper {
    /// Sweeps until one succeeds: what lives is known afterwards.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn first(&self) -> Result<(), Error> {
        loop {
            if let Some(pause) = self.sweep().await? {
                tokio::select! {
                    () = self.shutdown.cancelled() => return Err(Error::Stopped),
                    () = sleep(pause) => {}
                }
            } else {
                return Ok(());
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
                Ok(Some(pause)) => pause.max(interval),
                // A slow answer means a busy controller: never more than a tenth of the time is spent sweeping.
                Ok(None) => interval.saturating_sub(began.elapsed()).max(
                    began
                        .elapsed()
                        .saturating_mul(9)
                        .min(Duration::from_secs(60)),
                ),
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    /// One sweep. Returns how long to wait if Slurm did not answer.
    async fn sweep(&self) -> Result<Option<Duration>, Error> {
        let began = Instant::now();
        let sweep = match self.slurm.sweep().await {
            Ok(sweep) => sweep,
            Err(error) => return self.slurmctld.down(&error).await.map(Some),
        };
        let number = self.collector.core().await.meta.sweep + 1;
        if sweep.rows.is_empty() && !self.collector.core().await.book.is_empty() {
            // An empty answer with status 0 proves nothing; a controller that is up confirms it.
            match self.slurm.ping().await {
                Ok(ping) if ping.up => {}
                Ok(_) => return Ok(Some(self.collector.config.sweep_interval)),
                Err(error) => return self.slurmctld.down(&error).await.map(Some),
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
                missing(&core.book, &sweep, &rows),
                arrays(&core.book, &sweep),
            )
        };
        let cause = Cause::Sweep(number);
        metrics::sweep(began.elapsed(), sweep.rows.len(), changed.len());
        if let Some(pause) = self.read(&cause, &sweep, &changed).await? {
            return Ok(Some(pause));
        }
        if sweep.unread_lines == 0
            && let Some(pause) = self.look_for(&cause, &missing).await?
        {
            return Ok(Some(pause));
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
        Ok(None)
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

/// Rows whose full record is worth reading.
fn changed<'a>(book: &Book, sweep: &'a Sweep) -> Vec<&'a SweepRow> {
    let unchanged = |row: &SweepRow| {
        let submit = row.submit.map(slurm_types::UnixTime::as_secs);
        let mut known = false;
        for run in book.by_raw_id(row.job_id.get()) {
            let Some(tracked) = book.get(&run).filter(|_| Some(run.submit_time) == submit) else {
                continue;
            };
            if tracked.unsettled() {
                return false;
            }
            known |= tracked.digest == row.digest;
        }
        known
    };
    sweep.rows.iter().filter(|row| !unchanged(row)).collect()
}

/// Jobs that are tracked as alive and not in the answer.
fn missing(book: &Book, sweep: &Sweep, rows: &BTreeSet<u32>) -> Vec<JobId> {
    let alive = book.iter().filter(|(run, tracked)| {
        !tracked.over()
            && !tracked.is_array
            && run.submit_time < sweep.started_at.as_secs()
            && !rows.contains(&tracked.raw_id)
    });
    let ids: BTreeSet<JobId> = alive
        .filter_map(|(_, tracked)| JobId::new(tracked.raw_id))
        .collect();
    ids.into_iter().take(MISSING_AT_ONCE).collect()
}

/// Arrays with tasks to settle, and whether their own record is gone.
fn arrays(book: &Book, sweep: &Sweep) -> Vec<(RunKey, bool)> {
    let with_record: BTreeSet<(u32, i64)> = sweep
        .rows
        .iter()
        .filter(|row| row.nodes.is_empty() && row.array_job_id == Some(row.job_id))
        .filter_map(|row| Some((row.job_id.get(), row.submit?.as_secs())))
        .collect();
    book.iter()
        .filter(|(_, tracked)| {
            tracked.is_array
                && !tracked.over()
                && (tracked.remaining.is_some() || tracked.left.is_some())
        })
        .map(|(run, _)| {
            (
                run.clone(),
                !with_record.contains(&(run.job_id, run.submit_time)),
            )
        })
        .filter(|(run, gone)| *gone || book.get(run).is_some_and(|tracked| tracked.left.is_some()))
        .collect()
}
