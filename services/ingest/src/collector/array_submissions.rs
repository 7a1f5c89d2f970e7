//! Schedule of arrays whose submitted tasks are read from accounting: each once, soon after it was first seen.

use std::collections::HashMap;
use std::time::Duration;

use mesh_events::RunKey;
use slurm_client::ArraySubmission;
use slurm_types::JobId;
use tokio::time::Instant;

use super::accounting_wait::AccountingWait;
use super::gaps::{gap_event, owner_suffix};
use super::open_lookups::OpenLookup;
use super::outbox::PreviousRunStates;
use super::{Collector, CollectorState};
use crate::Error;
use crate::adapters::shards::shard_of;
use crate::config::Config;
use crate::domain::{RunState, RunStore, compare_submitted};

/// slurmctld reports an array to slurmdbd within some seconds.
const INITIAL_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause between two lookups of one array.
const MAX_PAUSE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct PendingArrayLookup {
    due: Instant,
    wait: AccountingWait,
    pause: Duration,
}

/// Due times by array.
#[derive(Debug, Default)]
pub(super) struct ArraySubmissionBacklog(HashMap<RunKey, PendingArrayLookup>);

impl ArraySubmissionBacklog {
    /// Schedules the arrays of the run store.
    pub(super) fn of(run_store: &RunStore) -> Self {
        let mut array_submission_backlog = Self::default();
        for (run, tracked) in run_store.iter() {
            array_submission_backlog.note(&run, tracked);
        }
        array_submission_backlog
    }

    /// Schedules or removes a run according to its stored state.
    pub(super) fn note(&mut self, run: &RunKey, tracked: &RunState) {
        if !tracked.ask_submitted {
            self.0.remove(run);
            return;
        }
        let now = Instant::now();
        self.0.entry(run.clone()).or_insert(PendingArrayLookup {
            due: now + INITIAL_PAUSE,
            wait: AccountingWait::continued(
                Duration::from_secs(tracked.rare.waited_for_accounting),
                now,
            ),
            pause: INITIAL_PAUSE,
        });
    }

    /// Returns every wait.
    pub(super) fn waits(&mut self) -> impl Iterator<Item = &mut AccountingWait> {
        self.0.values_mut().map(|pending| &mut pending.wait)
    }
}

impl Collector {
    /// Returns at most `limit` arrays that are due now.
    pub async fn arrays_due(&self, limit: usize) -> Vec<RunKey> {
        let state = self.state.lock().await;
        let now = Instant::now();
        let due = state
            .array_submission_backlog
            .0
            .iter()
            .filter(|(_, asked)| asked.due <= now);
        due.map(|(run, _)| run.clone()).take(limit).collect()
    }

    /// Applies accounting's answer for arrays that were due. Arrays that it lacks are looked up again, for half of `resolution_timeout`.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn submitted(&self, due: &[RunKey], answer: &[ArraySubmission]) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        state.must_not_be_ahead()?;
        for run in due {
            // The other half is for the tasks that turn out to be missing.
            let is_last = state.postpone(run, self.config.resolution_timeout / 2, &self.config);
            let found = answer.iter().find(|array| {
                JobId::new(run.job_id) == Some(array.array)
                    && array.submit.as_secs() == run.submit_time
            });
            let next =
                found.and_then(|found| compare_submitted(&state.run_store, run, found, is_last));
            if next.is_none() && is_last {
                self.without_submission(&mut state, run).await?;
            }
            let Some(next) = next else {
                continue;
            };
            let pending = state.array_submission_backlog.0.remove(run);
            if next.closed() {
                state.last.remove(run);
            }
            state.look_up_missing_tasks(run, &next, pending);
            state.dirty.insert(shard_of(&next));
            state.run_store.put(run.clone(), next);
        }
        drop(state);
        self.flush().await
    }

    /// Publishes that accounting lacks an array. Without a confirmation it is looked up again.
    async fn without_submission(
        &self,
        state: &mut CollectorState,
        run: &RunKey,
    ) -> Result<(), Error> {
        let Some(known) = state.run_store.get(run).cloned() else {
            state.array_submission_backlog.0.remove(run);
            return Ok(());
        };
        let next = RunState {
            ask_submitted: false,
            ..known.clone()
        };
        let is_closed = next.closed();
        state.dirty.insert(shard_of(&next));
        state.run_store.put(run.clone(), next);
        let key = run.entity_key();
        let gap = gap_event(
            format!(
                "accounting does not have the array {key}{}",
                owner_suffix(&state.known_owner(run).unwrap_or_default())
            ),
            format!("whether tasks of {key} were cancelled before it was first read"),
        );
        let before = PreviousRunStates::from([(run.clone(), Some(known))]);
        if self.gap(state, run, gap, before).await? {
            state.array_submission_backlog.0.remove(run);
            if is_closed {
                state.last.remove(run);
            }
        }
        Ok(())
    }
}

impl CollectorState {
    /// Reschedules an array after a lookup. Returns whether that was the last one.
    fn postpone(&mut self, run: &RunKey, within: Duration, config: &Config) -> bool {
        let now = Instant::now();
        let Some(asked) = self.array_submission_backlog.0.get_mut(run) else {
            return true;
        };
        asked.wait.answered(now);
        let (left, waited) = (asked.wait.left(within, now, config), asked.wait.waited(now));
        asked.pause = (asked.pause * 2).min(MAX_PAUSE);
        asked.due = now + asked.pause.min(left.max(INITIAL_PAUSE));
        self.store_wait(run, waited);
        left.is_zero()
    }

    /// Begins the lookup of the tasks that accounting has shown to be missing. Both lookups of an array are one wait.
    fn look_up_missing_tasks(
        &mut self,
        run: &RunKey,
        next: &RunState,
        pending: Option<PendingArrayLookup>,
    ) {
        let (Some(tasks), Some(pending)) = (next.left_tasks(), pending) else {
            return;
        };
        let open = OpenLookup::continued(pending.wait.waited(Instant::now()));
        self.task_lookups
            .entry(run.clone())
            .or_default()
            .wait_for(&tasks, open);
    }

    /// Returns how long accounting was waited for, for each array that it lacks.
    pub(super) fn array_waits(&self, now: Instant) -> Vec<(RunKey, Duration)> {
        let pending = self.array_submission_backlog.0.iter();
        let pending = pending.filter(|(_, asked)| asked.wait.has_answered());
        pending
            .map(|(run, asked)| (run.clone(), asked.wait.waited(now)))
            .collect()
    }
}
