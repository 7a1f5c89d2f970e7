//! Reconciles what no observation shows: tasks that left their array, and runs to be purged.

use std::collections::BTreeSet;

use chrono::Utc;
use mesh_events::{EventType, RunKey};

use super::accounting_backlog::MAX_CLOCK_AHEAD_SECS;
use super::gaps::{gap_event, owner_suffix};
use super::open_lookups::{OpenLookup, TaskWave, tasks_of};
use super::outbox::{OutboxEvent, PreviousRunStates};
use super::unseen_ids::MAX_CLOCK_SKEW_SECS;
use super::{Collector, CollectorState, TracedObservation};
use crate::adapters::shards::{shard_of, shard_of_record};
use crate::config::Config;
use crate::domain::{
    DepartedTasks, EndLookup, Observation, Resolution, RunState, resolve_departed_tasks, run_of,
};
use crate::envelope::Cause;
use crate::sources::SLURMDBD;
use crate::{Error, metrics};

/// Whether an array has a record of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayPresence {
    /// It has one.
    There,
    /// It has none.
    Absent,
    /// A list of all jobs has none. It was not read by id, which would prove more.
    Unlisted,
}

impl CollectorState {
    /// Stores an array after tasks of it were resolved, with the waits for the others.
    fn put_array(&mut self, array: &RunKey, next: RunState, now: i64, config: &Config) {
        self.usage_backlog.note(array, &next, now, config);
        self.dirty.insert(shard_of(&next));
        self.run_store.put(array.clone(), next);
        self.store_task_lookup(array);
    }

    fn put_back(&mut self, array: &RunKey, waves: Vec<TaskWave>) {
        let lookups = self.task_lookups.entry(array.clone()).or_default();
        lookups.put_back(waves);
    }
}

impl Collector {
    /// Counts the runs among these that were unknown, or not known to have ended.
    pub async fn count_new(&self, readings: &[TracedObservation]) -> u64 {
        let state = self.state.lock().await;
        let new = readings.iter().filter(|reading| {
            !state
                .run_store
                .get(&reading.observation.run)
                .is_some_and(RunState::over)
        });
        u64::try_from(new.count()).unwrap_or(u64::MAX)
    }

    /// Leaves out runs that were published so long ago that they were removed. A clock that was wrong makes accounting list them again.
    pub async fn without_removed(&self, ended: Vec<Observation>) -> Vec<Observation> {
        let state = self.state.lock().await;
        let until = state.capture.removed_until;
        let is_removed = |run: &Observation| {
            run.end.is_some_and(|end| end <= until)
                && state
                    .run_store
                    .get(&run_of(&state.run_store, run))
                    .is_none()
        };
        let (removed, left): (Vec<_>, Vec<_>) = ended.into_iter().partition(is_removed);
        if !removed.is_empty() {
            tracing::info!(
                runs = removed.len(),
                until,
                "runs in accounting were published before, and not again"
            );
        }
        left
    }

    /// Resolves tasks that left the array's record without becoming jobs. Returns whether the array must be looked up.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn reconcile_array(
        &self,
        cause: &Cause,
        array: &RunKey,
        presence: ArrayPresence,
    ) -> Result<bool, Error> {
        let mut state = self.state.lock().await;
        state.must_not_be_ahead()?;
        let record_absent = presence != ArrayPresence::There;
        let lookup = match presence {
            ArrayPresence::Unlisted => EndLookup::TasksOfUnlisted,
            _ => EndLookup::Tasks { record_absent },
        };
        for resolution in [Resolution::Absent, Resolution::Unknowable] {
            let is_stored = self
                .give_up(&mut state, cause, array, lookup, resolution)
                .await?;
            if !is_stored {
                return Ok(false);
            }
        }
        let now = Utc::now().timestamp();
        let left = resolve_departed_tasks(&state.run_store, array, record_absent, None, now);
        let next = match left {
            Some(DepartedTasks::Missing(next)) => *next,
            Some(DepartedTasks::Settled(next) | DepartedTasks::Cancelled(next, _)) => {
                state.task_lookups.remove(array);
                state.put_array(array, *next, now, &self.config);
                return Ok(false);
            }
            None => {
                state.task_lookups.remove(array);
                state.store_task_lookup(array);
                return Ok(false);
            }
        };
        let missing = next.left_tasks().unwrap_or_default();
        let lookups = state.task_lookups.entry(array.clone()).or_default();
        let has_new = lookups.wait_for(&missing, OpenLookup::now());
        let must_ask = |wave: &TaskWave| {
            self.settled(lookup, Some(&wave.open)) == Resolution::Open { ask: true }
        };
        let ask = has_new || lookups.waves().iter().any(must_ask);
        state.dirty.insert(shard_of(&next));
        state.run_store.put(array.clone(), next);
        state.store_task_lookup(array);
        Ok(ask)
    }

    /// Publishes what became of the missing tasks whose waits have this result. Returns whether it is stored; otherwise they are still missing.
    async fn give_up(
        &self,
        state: &mut CollectorState,
        cause: &Cause,
        array: &RunKey,
        lookup: EndLookup,
        resolution: Resolution,
    ) -> Result<bool, Error> {
        let now = Utc::now();
        let Some(lookups) = state.task_lookups.get_mut(array) else {
            return Ok(true);
        };
        let is_published = resolution == Resolution::Absent;
        let waves = lookups.take(|wave| self.settled(lookup, Some(&wave.open)) == resolution);
        let Some(first) = waves.first() else {
            return Ok(true);
        };
        let accounting = self.accounting_result(Some(&first.open));
        let resolved = resolve_departed_tasks(
            &state.run_store,
            array,
            lookup.is_record_absent(),
            Some(&tasks_of(&waves)),
            now.timestamp(),
        );
        let Some(DepartedTasks::Cancelled(next, fact)) = resolved else {
            // They have turned up, or the array's record has to be read first.
            state.put_back(array, waves);
            return Ok(true);
        };
        let mut next = *next;
        let before = (array.clone(), state.run_store.get(array).cloned());
        let last = state.last.get(array).filter(|_| is_published);
        // The last payload is not stored, or Slurm contradicts itself.
        let is_gap = last.is_none();
        if let Some(end) = next.end.as_mut().filter(|end| is_gap && end.inferred) {
            // A record that comes later is published in full.
            end.event = None;
            next.canceller_pending = false;
        }
        let owner = state.known_owner(array).unwrap_or_default();
        state.put_array(array, next, now.timestamp(), &self.config);
        let before = PreviousRunStates::from([before]);
        let is_stored = if let Some((job, owner)) = last {
            let event_context = self.event_context(now, cause);
            let event = event_context.event_without_reading(&fact, job, &owner);
            let events = vec![OutboxEvent::new(&fact, event, array.job_id, &[])];
            let not_stored = self.publish(state, events, before.into()).await?;
            not_stored.is_empty()
        } else {
            let tasks = format!("tasks {} of {}", fact.array_tasks, array.entity_key());
            let message = format!(
                "slurmctld no longer has {tasks}{}, and {accounting}",
                owner_suffix(&owner)
            );
            let not_recoverable = format!("whether and when {tasks} were cancelled");
            let gap = gap_event(message, not_recoverable);
            self.gap(state, array, gap, before).await?
        };
        if !is_stored {
            state.put_back(array, waves);
        }
        Ok(is_stored)
    }

    /// Records that Slurm still has these jobs.
    pub async fn touch(&self, raw_ids: &BTreeSet<u32>, now: i64) {
        let mut state = self.state.lock().await;
        state.run_store.touch(raw_ids, now);
        state.end_waits_of_shown(raw_ids);
    }

    /// Removes runs that ended long ago and that Slurm has purged, too.
    pub async fn expire(&self) {
        let mut state = self.state.lock().await;
        let state = &mut *state;
        // Runs in the accounting backlog must be recognized as published.
        let published_until = state.capture.watermark;
        // Also those of an outage of accounting, which is read when it is over.
        let outage = state.capture.down_since.get(SLURMDBD).copied();
        let outage = outage.filter(|_| self.config.accounting);
        let unread = state.capture.backlog_from.into_iter().chain(outage).min();
        let caught_up_until =
            unread.map_or(published_until, |pending| pending.min(published_until));
        state.expire_waiting(caught_up_until, &self.config);
        let oldest = caught_up_until
            - i64::try_from(self.config.ended_run_retention.as_secs()).unwrap_or(i64::MAX);
        // Runs seen while the clock was ahead count as seen at this poll.
        let newest = published_until.saturating_add(MAX_CLOCK_SKEW_SECS);
        for raw_id in state.run_store.clamp_last_seen(newest, published_until) {
            state.dirty.insert(shard_of_record(raw_id));
        }
        // A clock that is behind will be put right, so these runs must be known then.
        let future = newest.saturating_add(MAX_CLOCK_AHEAD_SECS);
        let live_arrays: BTreeSet<u32> = state
            .run_store
            .iter()
            .filter(|(_, tracked)| !tracked.over() && tracked.is_task)
            .map(|(run, _)| run.job_id)
            .collect();
        let old: Vec<RunKey> = state
            .run_store
            .iter()
            .filter(|(run, tracked)| {
                let ended = match &tracked.end {
                    Some(end) => {
                        (end.at < oldest || end.at > future)
                            && !(self.config.accounting && tracked.accounting_pending())
                    }
                    // An array has no end of its own once its last task has become a job.
                    None => {
                        tracked.is_array
                            && tracked.rare.remaining.is_none()
                            && tracked.rare.left.is_none()
                            && !live_arrays.contains(&run.job_id)
                    }
                };
                ended && tracked.last_seen < oldest
            })
            .map(|(run, _)| run.clone())
            .collect();
        for run in old {
            let Some(tracked) = state.run_store.get(&run) else {
                continue;
            };
            // Slurm has no time of the end of a revoked job.
            let end = tracked
                .end
                .as_ref()
                .filter(|end| end.at < oldest && end.event != Some(EventType::JobRevoked));
            if let Some(end) = end.filter(|_| tracked.has_certain_end()) {
                state.capture.removed_until = state.capture.removed_until.max(end.at);
                if !state.stored.may_remove(end.at) {
                    continue;
                }
            }
            state.dirty.insert(shard_of(tracked));
            state.run_store.remove(&run);
            state.last.remove(&run);
        }
        metrics::runs(state.run_store.len());
    }
}
