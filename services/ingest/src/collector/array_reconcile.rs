//! Reconciles what no observation shows: tasks that left their array, and runs to be purged.

use std::collections::BTreeSet;

use chrono::Utc;
use mesh_events::{EventType, RunKey};

use super::accounting_backlog::MAX_CLOCK_AHEAD_SECS;
use super::gaps::{gap_event, owner_suffix};
use super::open_lookups::{OpenLookup, OpenTaskLookup};
use super::outbox::{OutboxEvent, PreviousRunStates};
use super::unseen_ids::MAX_CLOCK_SKEW_SECS;
use super::{Collector, TracedObservation};
use crate::adapters::store::Store;
use crate::domain::{
    self, DepartedTasks, EndLookup, Observation, Resolution, resolve_departed_tasks, run_of,
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

impl Collector {
    /// Counts the runs among these that were unknown, or not known to have ended.
    pub async fn count_new(&self, readings: &[TracedObservation]) -> u64 {
        let core = self.core.lock().await;
        let new = readings.iter().filter(|reading| {
            !core
                .run_store
                .get(&reading.observation.run)
                .is_some_and(domain::RunState::over)
        });
        u64::try_from(new.count()).unwrap_or(u64::MAX)
    }

    /// Leaves out runs that were published so long ago that they were removed. A clock that was wrong makes accounting list them again.
    pub async fn without_removed(&self, ended: Vec<Observation>) -> Vec<Observation> {
        let core = self.core.lock().await;
        let until = core.meta.removed_until;
        let is_removed = |run: &Observation| {
            run.end.is_some_and(|end| end <= until)
                && core.run_store.get(&run_of(&core.run_store, run)).is_none()
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
        let mut core = self.core.lock().await;
        core.must_not_be_ahead()?;
        let waiting = core.task_lookups.get(array);
        let record_absent = presence != ArrayPresence::There;
        let lookup = match presence {
            ArrayPresence::Unlisted => EndLookup::TasksOfUnlisted,
            _ => EndLookup::Tasks { record_absent },
        };
        let settlement = self.settled(lookup, waiting.map(|waiting| &waiting.open));
        let accounting = self.accounting_result(waiting.map(|waiting| &waiting.open));
        let given_up = waiting
            .filter(|_| !matches!(settlement, Resolution::Open { .. }))
            .map(|waiting| waiting.tasks.clone());
        let now = Utc::now();
        let settled = resolve_departed_tasks(
            &core.run_store,
            array,
            record_absent,
            given_up.as_ref(),
            now.timestamp(),
        );
        let before = (array.clone(), core.run_store.get(array).cloned());
        let (mut next, fact) = match settled {
            None => {
                core.task_lookups.remove(array);
                return Ok(false);
            }
            Some(DepartedTasks::Settled(next)) => (*next, None),
            Some(DepartedTasks::Missing(next)) => {
                // The tasks waited for have turned up, so the wait for the others begins now.
                let of_others = given_up.is_some();
                let tasks = next.left_tasks().unwrap_or_default();
                if of_others || !core.task_lookups.contains_key(array) {
                    let open = OpenLookup::now();
                    core.task_lookups
                        .insert(array.clone(), OpenTaskLookup { open, tasks });
                }
                core.dirty.insert(Store::shard_of(&next));
                core.run_store.put(array.clone(), *next);
                core.store_task_question(array);
                return Ok(of_others || settlement == Resolution::Open { ask: true });
            }
            Some(DepartedTasks::Cancelled(next, fact)) => (*next, Some(*fact)),
        };
        core.task_lookups.remove(array);
        next.lookup = None;
        let last = core.last.get(array);
        let last = last.filter(|_| settlement == Resolution::Absent);
        if let (Some(end), None, Some(_)) = (&mut next.end, &last, &fact)
            && end.inferred
        {
            // A record that comes later is published in full.
            end.event = None;
            next.canceller_pending = false;
        }
        core.usage_backlog
            .note(array, &next, now.timestamp(), &self.config);
        core.dirty.insert(Store::shard_of(&next));
        core.run_store.put(array.clone(), next);
        let Some(fact) = fact else { return Ok(false) };
        match last {
            Some((job, owner)) => {
                let frame = self.frame(now, cause);
                let event = frame.event_without_reading(&fact, job, &owner);
                let events = vec![OutboxEvent::new(&fact, event, array.job_id, &[])];
                let before = PreviousRunStates::from([before]);
                self.publish(&mut core, events, before.into()).await?;
                Ok(false)
            }
            // The last payload is not stored, or Slurm contradicts itself.
            None => {
                let owner = core.owner_then(array).unwrap_or_default();
                let tasks = format!("tasks {} of {}", fact.array_tasks, array.entity_key());
                let message = format!(
                    "slurmctld no longer has {tasks}{}, and {accounting}",
                    owner_suffix(&owner)
                );
                let not_recoverable = format!("whether and when {tasks} were cancelled");
                let gap = gap_event(message, not_recoverable);
                let before = PreviousRunStates::from([before]);
                Ok(!self.gap(&mut core, array, gap, before).await?)
            }
        }
    }

    /// Records that Slurm still has these jobs.
    pub async fn touch(&self, raw_ids: &BTreeSet<u32>, now: i64) {
        let mut core = self.core.lock().await;
        core.run_store.touch(raw_ids, now);
        core.end_waits_of_shown(raw_ids);
    }

    /// Removes runs that ended long ago and that Slurm has purged, too.
    pub async fn expire(&self) {
        let mut core = self.core.lock().await;
        let core = &mut *core;
        // Runs in the accounting backlog must be recognized as published.
        let published_until = core.meta.watermark;
        // Also those of an outage of accounting, which is read when it is over.
        let outage = core.meta.down_since.get(SLURMDBD).copied();
        let outage = outage.filter(|_| self.config.accounting);
        let unread = core.meta.backlog_from.into_iter().chain(outage).min();
        let caught_up_until =
            unread.map_or(published_until, |pending| pending.min(published_until));
        core.expire_waiting(caught_up_until, &self.config);
        let oldest = caught_up_until
            - i64::try_from(self.config.ended_run_retention.as_secs()).unwrap_or(i64::MAX);
        // Runs seen while the clock was ahead count as seen at this poll.
        let newest = published_until.saturating_add(MAX_CLOCK_SKEW_SECS);
        for raw_id in core.run_store.clamp_last_seen(newest, published_until) {
            core.dirty.insert(Store::shard_of_record(raw_id));
        }
        // A clock that is behind will be put right, so these runs must be known then.
        let future = newest.saturating_add(MAX_CLOCK_AHEAD_SECS);
        let live_arrays: BTreeSet<u32> = core
            .run_store
            .iter()
            .filter(|(_, tracked)| !tracked.over() && tracked.is_task)
            .map(|(run, _)| run.job_id)
            .collect();
        let old: Vec<RunKey> = core
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
            let Some(tracked) = core.run_store.get(&run) else {
                continue;
            };
            // Slurm has no time of the end of a revoked job.
            let end = tracked
                .end
                .as_ref()
                .filter(|end| end.at < oldest && end.event != Some(EventType::JobRevoked));
            if let Some(end) = end.filter(|_| tracked.has_certain_end()) {
                core.meta.removed_until = core.meta.removed_until.max(end.at);
                if !core.stored.may_remove(end.at) {
                    continue;
                }
            }
            core.dirty.insert(Store::shard_of(tracked));
            core.run_store.remove(&run);
            core.last.remove(&run);
        }
        metrics::runs(core.run_store.len());
    }
}
