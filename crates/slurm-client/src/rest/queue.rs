//! Polls the whole queue over REST.
//!
//! Only the list of all jobs is complete, and it is expensive, so the request asks for changes since the last response. Slurm compares with
//! the last change of the whole queue: it returns everything, or "nothing changed" as HTTP 304 (22.05), or 200 with an empty list and a
//! warning (v0.0.40 and later). The time to compare with is the controller's clock, never ours.
//!
//! `/jobs/state/` (24.11) would be cheaper, but returns only an id and a state of each job (seen on 24.11.5 and 26.05.5). It lacks the
//! submit time, which distinguishes runs, and the reason, hold and limits that a poll has to detect.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slurm_types::UnixTime;

use super::{DIAG, Family, JOBS, Response, Rest, envelope, or_keys, read_rows};
use crate::cli::now;
use crate::parse::{StringInterner, count_record};
use crate::{Error, JobCounts, QueueListing, QueueRow, RunningRow, json};

/// The queue as of the last response.
#[derive(Debug, Default)]
pub(super) struct CachedQueue {
    /// Its rows; `None` before the first answer.
    rows: Option<Arc<Vec<QueueRow>>>,
    /// The jobs of that answer that hold an allocation.
    running: Vec<RunningRow>,
    /// The same jobs, counted.
    counts: JobCounts,
    unread: usize,
    /// The controller's clock at that response.
    clock: Option<UnixTime>,
}

impl CachedQueue {
    /// Jobs that hold an allocation; `None` before the first answer.
    pub(super) fn running(&self) -> Option<Vec<RunningRow>> {
        self.rows.as_ref().map(|_| self.running.clone())
    }

    /// Number of jobs.
    pub(super) fn rows(&self) -> usize {
        self.rows.as_ref().map_or(0, |rows| rows.len())
    }
}

impl Rest {
    pub(super) fn cached_queue(&self) -> MutexGuard<'_, CachedQueue> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every job in the controller's memory.
    pub(crate) async fn list_queue(&self) -> Result<QueueListing, Error> {
        let started_at = now();
        let before = self.newest();
        let (since, last) = {
            let known = self.cached_queue();
            // One second earlier: changes may follow within the second of the last response.
            let since = known.clock.map(|time| time.as_secs() - 1);
            (
                since,
                known
                    .rows
                    .clone()
                    .map(|rows| (rows, known.counts.clone(), known.unread)),
            )
        };
        // 22.05 does not send its clock with the jobs.
        let clock = match self.sends_clock().await? {
            true => None,
            false => self.clock().await,
        };
        for since in [since.filter(|_| last.is_some()), None] {
            let argument = since.map_or_else(String::new, |since| format!("update_time={since}"));
            let mut strings = StringInterner::default();
            // Each record becomes a row at once: the records of a long queue are not held.
            let counts = Arc::new(Mutex::new(JobCounts::default()));
            let counted = Arc::clone(&counts);
            let read = or_keys(move |job| {
                let job = json::job(job).ok()?;
                let row = json::queue_row(&job, &mut strings)?;
                let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
                count_record(&job, &mut strings, &mut counted);
                Some((row, json::running_row(&job)))
            });
            let response = self
                .list(JOBS, Family::Controller, "jobs", &argument, read)
                .await?;
            let unchanged = match &response {
                None => true,
                Some((_, envelope)) => envelope.nothing_changed(),
            };
            if let (true, Some(_), Some((rows, counts, unread_lines))) = (unchanged, since, &last) {
                return Ok(QueueListing {
                    started_at,
                    rows: rows.as_ref().clone(),
                    counts: counts.clone(),
                    unread_lines: *unread_lines,
                });
            }
            // An empty list of changes may mean that nothing changed: retried without a time.
            let Some((records, envelope)) = response
                .filter(|(records, _)| !unchanged && (since.is_none() || !records.is_empty()))
            else {
                if since.is_some() {
                    continue;
                }
                return Err(super::nothing(JOBS));
            };
            self.check_age(JOBS, before, &envelope)?;
            let (records, unread) = read_rows(records);
            let (rows, running): (Vec<QueueRow>, Vec<Option<RunningRow>>) =
                records.into_iter().unzip();
            self.drifts.unread(JOBS, &unread);
            let unread = unread.count;
            let counts =
                std::mem::take(&mut *counts.lock().unwrap_or_else(PoisonError::into_inner));
            let mut known = self.cached_queue();
            known.clock = envelope.last_update.or(clock);
            known.unread = unread;
            known.running = running.into_iter().flatten().collect();
            known.rows = Some(Arc::new(rows.clone()));
            known.counts = counts.clone();
            return Ok(QueueListing {
                started_at,
                rows,
                counts,
                unread_lines: unread,
            });
        }
        Err(super::nothing(JOBS))
    }

    async fn sends_clock(&self) -> Result<bool, Error> {
        let version = self.api().await?.version(Family::Controller);
        Ok(version.is_none_or(|version| version >= 40))
    }

    /// The controller's clock; without it the next poll requests everything.
    async fn clock(&self) -> Option<UnixTime> {
        match self.get(DIAG, Family::Controller, "diag", "").await.ok()? {
            Response::Document(body) => envelope(DIAG, &body).ok()?.clock,
            _ => None,
        }
    }
}
