//! What no reading shows: tasks that vanished from an array, and what may be forgotten.

use std::collections::BTreeSet;

use chrono::Utc;
use mesh_events::RunKey;

use super::gaps::not_shown;
use super::outbox::{Before, Told};
use super::{Collector, Core, Reading, Unproven, UnprovenTasks};
use crate::adapters::store::Store;
use crate::domain::{self, Remainder, settle_remainder};
use crate::envelope::Cause;
use crate::{Error, metrics};

impl Collector {
    /// How many of these runs were not known, or not known to be over.
    pub async fn count_new(&self, readings: &[Reading]) -> u64 {
        let core = self.core.lock().await;
        let new = readings.iter().filter(|reading| {
            !core
                .book
                .get(&reading.sighting.run)
                .is_some_and(domain::Tracked::over)
        });
        u64::try_from(new.count()).unwrap_or(u64::MAX)
    }

    /// Notes an answer of accounting about these jobs, and which of their runs it has as alive.
    pub async fn accounting_answered(&self, ids: &BTreeSet<u32>, alive: &BTreeSet<RunKey>) {
        let mut core = self.core.lock().await;
        for (array, missing) in &mut core.unproven_tasks {
            if ids.contains(&array.job_id) {
                missing.unproven.answers += 1;
                missing.unproven.alive = alive.contains(array);
            }
        }
        let Core { book, unproven, .. } = &mut *core;
        for id in ids {
            if let Some(unproven) = unproven.get_mut(id) {
                unproven.answers += 1;
                unproven.alive = book.by_raw_id(*id).iter().any(|known| {
                    alive.iter().any(|run| {
                        (run.job_id, run.task_id, run.submit_time)
                            == (known.job_id, known.task_id, known.submit_time)
                    })
                });
            }
        }
    }

    /// Settles the tasks that left an array's record without turning up. Returns whether the array must be asked for.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn settle_array(
        &self,
        cause: &Cause,
        array: &RunKey,
        record_gone: bool,
    ) -> Result<bool, Error> {
        let mut core = self.core.lock().await;
        core.must_not_be_ahead()?;
        let waiting = core.unproven_tasks.get(array);
        let given_up = waiting
            .filter(|missing| {
                // A record that is gone here and alive there is a contradiction, and proves nothing.
                self.given_up(&missing.unproven)
                    && self.was_answered(&missing.unproven)
                    && !(record_gone && missing.unproven.alive)
            })
            .map(|missing| missing.tasks.clone());
        let answered = waiting.is_some_and(|missing| self.asked_in_vain(&missing.unproven));
        let accounting = self.accounting_says(waiting.map(|missing| &missing.unproven));
        let now = Utc::now();
        let settled = settle_remainder(
            &core.book,
            array,
            record_gone,
            given_up.as_ref(),
            now.timestamp(),
        );
        let (next, fact, ask) = match settled {
            None => {
                core.unproven_tasks.remove(array);
                return Ok(false);
            }
            Some(Remainder::Settled(next)) => {
                core.unproven_tasks.remove(array);
                (*next, None, false)
            }
            Some(Remainder::Missing(next)) => {
                // Who was waited for has turned up: the others' wait begins now.
                let of_others = given_up.is_some();
                let tasks = next.left_tasks().unwrap_or_default();
                if of_others || !core.unproven_tasks.contains_key(array) {
                    let unproven = Unproven::now();
                    core.unproven_tasks
                        .insert(array.clone(), UnprovenTasks { unproven, tasks });
                }
                (*next, None, !answered || of_others)
            }
            Some(Remainder::Cancelled(next, fact)) => {
                core.unproven_tasks.remove(array);
                (*next, Some(*fact), false)
            }
        };
        core.dirty.insert(Store::shard_of(&next));
        let before = (array.clone(), core.book.get(array).cloned());
        core.book.put(array.clone(), next);
        let Some(fact) = fact else { return Ok(ask) };
        if let Some((job, owner)) = core.last.get(array) {
            let frame = self.frame(now, cause);
            let event = frame.event_without_reading(&fact, job, &owner);
            let told = vec![Told::new(&fact, event, array.job_id, &[])];
            self.publish(&mut core, told, Before::from([before]))
                .await?;
        } else {
            // The array's record went away during an absence, so there is nothing to show of it.
            let tasks = format!("tasks {} of {}", fact.array_tasks, array.entity_key());
            let message = format!("{tasks} are gone from the controller, and {accounting}");
            let not_recoverable = format!("whether {tasks} were cancelled, and when");
            let what = not_shown(message, not_recoverable);
            let before = Before::from([before]);
            return Ok(!self.gap(&mut core, array, what, before).await? || ask);
        }
        Ok(ask)
    }

    /// Notes that Slurm still knows these records.
    pub async fn touch(&self, raw_ids: &BTreeSet<u32>, now: i64) {
        let mut core = self.core.lock().await;
        core.book.touch(raw_ids, now);
    }

    /// Forgets runs that ended long ago and that Slurm has forgotten, too.
    pub async fn forget(&self) {
        let mut core = self.core.lock().await;
        // What accounting will be asked about must be known to have been told.
        let told = core.meta.watermark;
        let oldest = core.meta.owed_from.map_or(told, |owed| owed.min(told))
            - i64::try_from(self.config.forget_after.as_secs()).unwrap_or(i64::MAX);
        let live_arrays: BTreeSet<u32> = core
            .book
            .iter()
            .filter(|(_, tracked)| !tracked.over() && tracked.is_task)
            .map(|(run, _)| run.job_id)
            .collect();
        let old: Vec<RunKey> = core
            .book
            .iter()
            .filter(|(run, tracked)| {
                let ended = match &tracked.end {
                    Some(end) => end.at < oldest && !(self.config.accounting && tracked.owes_usage),
                    // An array has no end of its own once its last task has become a job.
                    None => {
                        tracked.is_array
                            && tracked.remaining.is_none()
                            && tracked.left.is_none()
                            && !live_arrays.contains(&run.job_id)
                    }
                };
                ended && tracked.last_seen < oldest
            })
            .map(|(run, _)| run.clone())
            .collect();
        for run in old {
            if let Some(tracked) = core.book.remove(&run) {
                core.dirty.insert(Store::shard_of(&tracked));
                core.last.remove(&run);
            }
        }
        metrics::runs(core.book.len());
    }
}
