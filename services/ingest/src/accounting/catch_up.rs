//! What began and ended while nobody looked, from accounting; then `capture.caught_up` says that nothing more is coming.
//!
//! What is owed is in the stored state and is taken from it only once its facts are stored: neither a restart nor accounting being away
//! loses it.

mod unseen_ids;
mod window_size;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::{EventType, timestamp};
use slurm_client::{AccountingQuery, AccountingRecord, Drift, Slurm};
use slurm_types::{JobFlag, UnixTime};
use tokio_util::sync::CancellationToken;

pub(crate) use self::unseen_ids::AT_ONCE;
use self::window_size::WindowSize;
use crate::accounting::batch_step_ends::BatchStepEnds;
use crate::accounting::exit_codes::{CompletedRuns, ExitCodeReader};
use crate::accounting::resolver::LookupQueue;
use crate::collector::{BacklogWindow, Collector, TracedObservation};
use crate::domain::{Observation, fold, parts_of_jobs, provisional};
use crate::envelope::Cause;
use crate::sources::{RequestCost, SlurmSource, backoff, unless_stopped};
use crate::{Error, metrics};

/// Rows taken in at a time: what follows from them is in memory at once, and sweeps wait meanwhile.
pub(crate) const ROWS_AT_ONCE: usize = 500;
/// Ended runs whose use is not told yet, before more is asked for: some 20 MB.
const MOST_OWED: usize = 20_000;
/// Between two questions, or two looks at what is owed.
const APART: Duration = Duration::from_secs(1);
/// Between two questions for what is lacking.
const MOST_APART: Duration = Duration::from_secs(8);
/// What slurmctld kept for slurmdbd while that was away arrives after it has connected again, which it tries every 10 s (22.05).
const BACKLOG: Duration = Duration::from_secs(30);

/// Pays what is owed.
#[derive(Clone)]
pub struct CatchUp {
    /// Slurm, with a deadline for long answers.
    pub slurm: Slurm,
    /// The books.
    pub collector: Collector,
    /// Accounting's health.
    pub slurmdbd: Arc<SlurmSource>,
    /// Questions for accounting.
    pub questions: LookupQueue,
    /// Stop.
    pub shutdown: CancellationToken,
}

/// A part of what is owed, and accounting's rows about it.
struct BacklogPart {
    /// Where the next one begins; `None` for the last.
    next: Option<i64>,
    rows: Vec<AccountingRecord>,
}

/// What accounting has about a time.
pub(crate) struct BacklogParts<'a> {
    catch_up: &'a CatchUp,
    next: Option<i64>,
    to: i64,
    stride: WindowSize,
}

impl BacklogParts<'_> {
    /// The next rows, sorted by job; `None` after the last, and about the future.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<AccountingRecord>>, Error> {
        let Some(start) = self.next.filter(|start| *start < self.to) else {
            return Ok(None);
        };
        let Some(mut part) = self.catch_up.part(start, &mut self.stride).await? else {
            return Ok(None);
        };
        self.next = part.next;
        let order = |row: &AccountingRecord| (row.job_id, row.submit, row.db_index);
        part.rows.sort_by_key(order);
        Ok(Some(part.rows))
    }
}

impl CatchUp {
    /// Catches up whenever something is owed.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn run(self) -> Result<(), Error> {
        loop {
            while let Some(debt) = self.collector.debt().await {
                self.pay(debt).await?;
            }
            // After what accounting lists by time, so that only the others are asked for by id.
            if let Some(range) = self.collector.unseen().await {
                self.look_up(range).await?;
                continue;
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = self.collector.owing() => {}
            }
        }
    }

    async fn pay(&self, debt: BacklogWindow) -> Result<(), Error> {
        let accounting = self.collector.config.accounting;
        let recovered = match accounting {
            true => self.walk(&debt).await?,
            false => Some(0),
        };
        // The clock was set back: what is owed is another time.
        let Some(recovered) = recovered else {
            return Ok(());
        };
        tracing::info!(recovered, since = debt.from, "caught up");
        let (message, not_recoverable) = if accounting {
            ("caught up with accounting", "")
        } else {
            (
                "caught up without accounting",
                "jobs that began and ended meanwhile and that slurmctld has forgotten",
            )
        };
        let what = CaptureEvent {
            source: "slurmdbd".to_owned(),
            message: message.to_owned(),
            from: DateTime::from_timestamp(debt.from, 0).map(timestamp),
            to: Some(timestamp(Utc::now())),
            recovered,
            not_recoverable: not_recoverable.to_owned(),
        };
        // Stored together with the event.
        self.collector.paid(&debt, None).await;
        self.collector
            .capture(EventType::CaptureCaughtUp, what)
            .await
    }

    /// Asks about all of it, part by part. Returns how many ends were news; `None` if the clock was set back before all was asked.
    async fn walk(&self, debt: &BacklogWindow) -> Result<Option<u64>, Error> {
        let since = self.since(debt).await;
        let (mut start, mut stride, mut recovered) = (debt.from, WindowSize::new(), 0);
        // A resize is two rows; the second may be in the next part.
        let mut resized: Vec<AccountingRecord> = Vec::new();
        loop {
            let Some(part) = self.part(start, &mut stride).await? else {
                return Ok(None);
            };
            for job_id in provisional(&part.rows) {
                self.questions.ask(job_id).await;
            }
            let mut rows = resized;
            rows.extend(part.rows);
            rows.sort_by_key(|row| (row.job_id, row.submit, row.db_index));
            rows.dedup_by_key(|row| (row.job_id, row.submit, row.db_index));
            for some in parts_of_jobs(&rows, ROWS_AT_ONCE) {
                let ended = fold(&self.collector.cluster, some)
                    .into_iter()
                    .filter(|run| {
                        run.end_kind().is_some() && run.end.is_some_and(|end| end >= since)
                    });
                let ended = self.with_codes(ended.collect(), false).await?;
                let readings: Vec<TracedObservation> =
                    ended.into_iter().map(TracedObservation::new).collect();
                recovered += self.collector.count_new(&readings).await;
                self.collector.absorb(&Cause::Accounting, readings).await?;
            }
            self.collector.flush().await?;
            let Some(next) = part.next else {
                return Ok(Some(recovered));
            };
            self.collector.paid(debt, Some(next)).await;
            // Each is remembered until it is told what it used, so that is waited for.
            while self.collector.usage_owed().await > MOST_OWED {
                self.pause(APART).await?;
            }
            rows.retain(|row| row.state.has(JobFlag::Resizing));
            resized = rows;
            start = next;
        }
    }

    /// What accounting has about a time, part by part.
    pub(crate) const fn parts(&self, from: i64, to: i64) -> BacklogParts<'_> {
        BacklogParts {
            catch_up: self,
            next: Some(from),
            to,
            stride: WindowSize::new(),
        }
    }

    /// What ended before capture began is not told, unless history is asked for.
    async fn since(&self, debt: &BacklogWindow) -> i64 {
        let history = self.collector.config.history_since().ok().flatten();
        let history = history.map_or(i64::MAX, |time| time.timestamp());
        let capture_since = self.collector.core().await.meta.capture_since;
        capture_since.min(history).max(debt.from)
    }

    /// Asks accounting about the next part until it answers; `None` if that is in the future, about which it is not to be asked. The pauses are its own: a long answer that fails says nothing about
    /// short ones.
    async fn part(
        &self,
        start: i64,
        stride: &mut WindowSize,
    ) -> Result<Option<BacklogPart>, Error> {
        let (mut failures, mut away) = (0, false);
        loop {
            let now = self.collector.clock().await;
            if start > now {
                return Ok(None);
            }
            let end = start.saturating_add(stride.secs());
            let next = (end < now).then_some(end);
            let window = AccountingQuery::Window {
                start: UnixTime::from_secs(start),
                end: next.map(UnixTime::from_secs),
            };
            let pause = match unless_stopped(&self.shutdown, self.slurm.accounting(&window)).await?
            {
                Ok(_) if std::mem::take(&mut away) => {
                    self.slurmdbd.up(RequestCost::Heavy).await?;
                    *stride = WindowSize::new();
                    BACKLOG
                }
                Ok(rows) => {
                    self.slurmdbd.up(RequestCost::Heavy).await?;
                    metrics::provisional(provisional(&rows).len());
                    stride.answered(rows.iter().filter(|row| row.ended()).count());
                    self.collector
                        .drifted(rows.iter().flat_map(Drift::of_row))
                        .await?;
                    return Ok(Some(BacklogPart { next, rows }));
                }
                // Or the answer is longer than Slurm's commands may print.
                Err(
                    error @ (slurm_client::Error::TimedOut { .. }
                    | slurm_client::Error::Suspicious { .. }),
                ) if stride.shorten() => {
                    tracing::warn!(
                        seconds = stride.secs(),
                        error = &error as &dyn std::error::Error,
                        "asking accounting about less time at once"
                    );
                    Duration::ZERO
                }
                Err(error) => {
                    self.slurmdbd.down(RequestCost::Heavy, &error).await?;
                    away = true;
                    failures += 1;
                    backoff(failures)
                }
            };
            self.pause(pause).await?;
        }
    }

    /// Completes ends with what accounting has lost, as long as slurmctld or a doorbell may tell it, but not for ever. `again`: also those
    /// that were told.
    pub(crate) async fn with_codes(
        &self,
        ended: Vec<Observation>,
        again: bool,
    ) -> Result<Vec<Observation>, Error> {
        let codes = ExitCodeReader {
            slurm: &self.slurm,
            collector: &self.collector,
            shutdown: &self.shutdown,
            again,
        };
        let own_ends = BatchStepEnds {
            slurm: &self.slurm,
            collector: &self.collector,
            turns: None,
            shutdown: &self.shutdown,
            again,
        };
        let until = Instant::now() + self.collector.config.proof_patience;
        let completed = codes.complete(ended).await?;
        let CompletedRuns { mut runs, mut open } = own_ends.complete(completed, &[]).await?;
        let mut pause = APART;
        while !open.is_empty() && Instant::now() < until {
            self.pause(pause).await?;
            pause = (pause * 2).min(MOST_APART);
            let completed = codes.complete(open).await?;
            let completed = own_ends.complete(completed, &[]).await?;
            runs.extend(completed.runs);
            open = completed.open;
        }
        runs.extend(open.into_iter().map(Observation::with_own_end));
        runs.sort_by_key(|run| (run.raw_id, run.run.submit_time));
        Ok(runs)
    }

    async fn pause(&self, pause: Duration) -> Result<(), Error> {
        tokio::select! {
            () = self.shutdown.cancelled() => Err(Error::Stopped),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }
}
