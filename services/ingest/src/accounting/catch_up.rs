//! Catches up from accounting with runs that began and ended while ingest did not poll. `capture.caught_up` marks the end of each catch-up.
//!
//! The backlog is part of the stored state. A window leaves it only after its facts are stored, so neither a restart nor an outage of
//! accounting loses it.

mod request;
mod unseen_ids;
mod window_size;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::OptionFuture;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::{EventType, timestamp};
use slurm_client::{AccountingQuery, AccountingRecord, Slurm};
use slurm_types::{JobFlag, UnixTime};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::request::{Answer, FailurePause};
pub(crate) use self::unseen_ids::MAX_IDS_PER_LOOKUP;
use self::unseen_ids::UnseenIds;
use self::window_size::WindowSize;
use crate::accounting::batch_step_ends::BatchStepEnds;
use crate::accounting::exit_codes::{CompletedRuns, ExitCodeReader};
use crate::accounting::resolver::LookupQueue;
use crate::collector::{BacklogWindow, Collector, TracedObservation};
use crate::domain::{Observation, fold, parts_of_jobs, provisional};
use crate::envelope::Cause;
use crate::job_queries::JobQueries;
use crate::sources::{SLURMDBD, SlurmSource, unless_stopped};
use crate::{Error, metrics};

/// Maximum number of rows per batch. All facts of a batch are in memory at once, and polls wait meanwhile.
pub(crate) const MAX_ROWS_PER_BATCH: usize = 500;
/// Maximum number of ended runs with unpublished usage before more rows are requested: about 20 MB.
const MAX_USAGE_BACKLOG: usize = 20_000;
/// Pause between two requests, or between two checks of the backlog.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);
/// Longest pause between two attempts of a failing request.
const MAX_LOOKUP_INTERVAL: Duration = Duration::from_secs(8);

/// Works off the accounting backlog.
#[derive(Clone)]
pub struct CatchUp<S = Slurm> {
    /// Slurm client with the timeout for long answers.
    pub slurm: S,
    /// Applies observations and holds the run store.
    pub collector: Collector,
    /// Availability of slurmdbd.
    pub slurmdbd: Arc<SlurmSource>,
    /// Queue of accounting lookups.
    pub lookups: LookupQueue,
    /// Signals shutdown.
    pub shutdown: CancellationToken,
}

/// Accounting's rows of one window of the backlog.
struct BacklogPart {
    /// Start of the next window in Unix seconds; `None` for the last one.
    next: Option<i64>,
    rows: Vec<AccountingRecord>,
}

/// Reads accounting's rows of a time range, window by window.
pub(crate) struct BacklogParts<'a, S> {
    catch_up: &'a CatchUp<S>,
    next: Option<i64>,
    to: i64,
    stride: WindowSize,
}

impl<S: JobQueries> BacklogParts<'_, S> {
    /// Returns the next rows, sorted by job; `None` after the last window, or if it lies in the future.
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

impl<S: JobQueries> CatchUp<S> {
    /// Catches up whenever the backlog is not empty.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn run(self) -> Result<(), Error> {
        let mut unseen = UnseenIds::default();
        loop {
            // The time windows come first, so that only jobs they do not list are looked up by id. A long catch-up goes on for hours.
            let ids_from = Instant::now() + self.collector.config.backlog_priority();
            loop {
                // Also between two windows: a further outage extends the backlog, and slurmctld sends what it had queued only after it.
                if let Some(at) = self.collector.take_backlog_delay().await {
                    self.pause(at.saturating_duration_since(Instant::now()))
                        .await?;
                }
                let Some(backlog) = self.collector.backlog().await else {
                    break;
                };
                self.read_backlog(backlog, &mut unseen, ids_from).await?;
            }
            let next_lookup = self.look_up(&mut unseen).await?;
            let next_lookup = OptionFuture::from(next_lookup.map(sleep_until));
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = self.collector.backlog_changed() => {}
                Some(()) = next_lookup => {}
            }
        }
    }

    /// Works off the backlog. Unseen ids are looked up meanwhile from the given time on.
    async fn read_backlog(
        &self,
        backlog: BacklogWindow,
        unseen: &mut UnseenIds,
        ids_from: Instant,
    ) -> Result<(), Error> {
        let accounting = self.collector.config.accounting;
        let recovered = match accounting {
            true => self.read_windows(&backlog, unseen, ids_from).await?,
            false => Some(0),
        };
        // The clock was set back, so the backlog window has moved.
        let Some(recovered) = recovered else {
            return Ok(());
        };
        tracing::info!(
            recovered,
            since = backlog.from,
            "accounting catch-up completed"
        );
        let (message, not_recoverable) = if accounting {
            ("caught up with accounting", "")
        } else {
            (
                "caught up without accounting",
                "jobs that started and ended in this time and that slurmctld has purged",
            )
        };
        let event = CaptureEvent {
            source: SLURMDBD.to_owned(),
            message: message.to_owned(),
            from: DateTime::from_timestamp(backlog.from, 0).map(timestamp),
            to: Some(timestamp(Utc::now())),
            recovered,
            not_recoverable: not_recoverable.to_owned(),
        };
        // The next write stores this together with the event.
        self.collector.record_caught_up(&backlog, None).await;
        self.collector
            .capture(EventType::CaptureCaughtUp, event)
            .await
    }

    /// Reads the whole backlog, window by window. Returns the number of ends that were new; `None` if the clock was set back meanwhile.
    async fn read_windows(
        &self,
        backlog: &BacklogWindow,
        unseen: &mut UnseenIds,
        ids_from: Instant,
    ) -> Result<Option<u64>, Error> {
        let since = self.since(backlog).await;
        let (mut start, mut stride, mut recovered) = (backlog.from, WindowSize::new(), 0);
        // A resize is two rows; the second may be in the next window.
        let mut resized: Vec<AccountingRecord> = Vec::new();
        loop {
            let Some(part) = self.part(start, &mut stride).await? else {
                return Ok(None);
            };
            for job_id in provisional(&part.rows) {
                self.lookups.ask(job_id).await;
            }
            let mut rows = resized;
            rows.extend(part.rows);
            rows.sort_by_key(|row| (row.job_id, row.submit, row.db_index));
            rows.dedup_by_key(|row| (row.job_id, row.submit, row.db_index));
            for some in parts_of_jobs(&rows, MAX_ROWS_PER_BATCH) {
                let ended = fold(&self.collector.cluster, some)
                    .into_iter()
                    .filter(|run| {
                        run.end_kind().is_some() && run.end.is_some_and(|end| end >= since)
                    });
                let ended = self.collector.without_removed(ended.collect()).await;
                self.count_restarts(&ended).await?;
                let ended = self.with_codes(ended, false).await?;
                let readings: Vec<TracedObservation> =
                    ended.into_iter().map(TracedObservation::new).collect();
                recovered += self.collector.count_new(&readings).await;
                self.collector
                    .apply_until_stored(&Cause::Accounting, readings)
                    .await?;
                self.look_up_from(ids_from, unseen).await?;
            }
            self.collector.flush().await?;
            self.look_up_from(ids_from, unseen).await?;
            let Some(next) = part.next else {
                return Ok(Some(recovered));
            };
            self.collector.record_caught_up(backlog, Some(next)).await;
            // Each ended run stays in memory until its usage is published, so wait for that.
            while self.collector.usage_backlog_len().await > MAX_USAGE_BACKLOG {
                self.pause(LOOKUP_INTERVAL).await?;
                self.look_up_from(ids_from, unseen).await?;
            }
            rows.retain(|row| row.state.has(JobFlag::Resizing));
            resized = rows;
            start = next;
        }
    }

    /// Looks up the unseen ids that are due, unless it is too early.
    async fn look_up_from(&self, from: Instant, unseen: &mut UnseenIds) -> Result<(), Error> {
        if Instant::now() >= from {
            self.look_up(unseen).await?;
        }
        Ok(())
    }

    /// Asks slurmctld whether runs that may continue another one of their job do so: accounting does not count restarts, and a run after an
    /// end that returns no job to the queue is either a requeue by a user or another job with the same id.
    async fn count_restarts(&self, ended: &[Observation]) -> Result<(), Error> {
        let ids = self.collector.may_be_requeued(ended).await;
        for some in ids.chunks(MAX_IDS_PER_LOOKUP) {
            match unless_stopped(&self.shutdown, self.slurm.jobs(some)).await? {
                Ok(answer) => self.collector.restarts_counted(&answer.found).await,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, jobs = some.len(), "restarts of jobs not read");
                }
            }
        }
        Ok(())
    }

    /// Reads accounting's rows of a time range.
    pub(crate) const fn parts(&self, from: i64, to: i64) -> BacklogParts<'_, S> {
        BacklogParts {
            catch_up: self,
            next: Some(from),
            to,
            stride: WindowSize::new(),
        }
    }

    /// Returns the earliest end to publish, in Unix seconds. Runs that ended before capture began are published only if history is
    /// configured.
    async fn since(&self, backlog: &BacklogWindow) -> i64 {
        let capture_since = self.collector.state().await.capture.capture_since;
        let history = self.collector.config.history_since(capture_since);
        let history = history.ok().flatten().unwrap_or(i64::MAX);
        capture_since.min(history).max(backlog.from)
    }

    /// Requests the next window until accounting answers; `None` if it lies in the future, which accounting refuses.
    async fn part(
        &self,
        start: i64,
        stride: &mut WindowSize,
    ) -> Result<Option<BacklogPart>, Error> {
        loop {
            let ask = || self.window(start, stride.secs());
            // Slurm's commands also fail this way if the answer exceeds their output limit.
            let is_too_large = |error: &slurm_client::Error| {
                let is_cut = matches!(error, slurm_client::Error::Suspicious { .. });
                (error.is_too_much() || is_cut) && stride.can_be_shorter()
            };
            let asked = self.ask_until_answered(ask, is_too_large, FailurePause::Full);
            match asked.await? {
                Answer::Complete {
                    answer,
                    after_outage,
                } => {
                    if after_outage {
                        *stride = WindowSize::new();
                    }
                    metrics::provisional(provisional(&answer.rows).len());
                    stride.answered(answer.rows.iter().filter(|row| row.ended()).count());
                    return Ok(Some(answer));
                }
                Answer::TooLarge(error) => {
                    stride.shorten();
                    tracing::warn!(
                        seconds = stride.secs(),
                        error = &error as &dyn std::error::Error,
                        "accounting window shortened"
                    );
                }
                Answer::Pointless => return Ok(None),
            }
        }
    }

    /// Requests a window of this many seconds; `None` if it lies in the future.
    async fn window(
        &self,
        start: i64,
        seconds: i64,
    ) -> Option<Result<BacklogPart, slurm_client::Error>> {
        let now = self.collector.clock().await;
        if start > now {
            return None;
        }
        let end = start.saturating_add(seconds);
        let next = (end < now).then_some(end);
        let window = AccountingQuery::Window {
            start: UnixTime::from_secs(start),
            end: next.map(UnixTime::from_secs),
        };
        let rows = self.slurm.accounting(&window).await;
        Some(rows.map(|rows| BacklogPart { next, rows }))
    }

    /// Completes ends with what accounting has lost. Waits a limited time for slurmctld or a doorbell to report it. `republish`: also completes
    /// ends that were already published.
    pub(crate) async fn with_codes(
        &self,
        ended: Vec<Observation>,
        republish: bool,
    ) -> Result<Vec<Observation>, Error> {
        let codes = ExitCodeReader {
            slurm: &self.slurm,
            collector: &self.collector,
            shutdown: &self.shutdown,
            republish,
        };
        let own_ends = BatchStepEnds {
            slurm: &self.slurm,
            collector: &self.collector,
            rate_limit: None,
            shutdown: &self.shutdown,
            republish,
        };
        let config = &self.collector.config;
        let begin = Instant::now();
        // slurmdbd may have gone away between the rows and their steps. What is published then, steps that are read later do not correct.
        let limit = |open: &[Observation]| match open.iter().any(Observation::has_unread_steps) {
            true => config.resolution_timeout,
            false => config.missing_record_timeout,
        };
        let completed = codes.complete(ended).await?;
        let CompletedRuns { mut runs, mut open } = own_ends.complete(completed, &[]).await?;
        let mut pause = LOOKUP_INTERVAL;
        while !open.is_empty() && begin.elapsed() < limit(&open) {
            self.pause(pause).await?;
            pause = (pause * 2).min(MAX_LOOKUP_INTERVAL);
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
