//! What no reading shows: runs nobody knows any more, tasks that vanished from an array, and what may be forgotten.

use std::collections::BTreeSet;
use std::time::Instant;

use chrono::Utc;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::{EventType, RunKey, timestamp};

use super::outbox::Told;
use super::{Collector, Reading, Unproven};
use crate::adapters::store::Store;
use crate::domain::{self, End, Remainder, settle_remainder};
use crate::envelope::{Cause, Frame};
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

    /// Notes an answer of accounting about these jobs.
    pub async fn accounting_answered(&self, ids: &[u32]) {
        let mut core = self.core.lock().await;
        for id in ids {
            if let Some(unproven) = core.unproven.get_mut(id) {
                unproven.answers += 1;
            }
        }
    }

    /// A run that no source knows: asked for again until it is settled as a gap. Returns whether it must still be asked for.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn missing(&self, raw_id: u32) -> Result<bool, Error> {
        let mut core = self.core.lock().await;
        let unproven = core.unproven.entry(raw_id).or_insert_with(|| Unproven {
            since: Instant::now(),
            answers: 0,
        });
        if unproven.since.elapsed() < self.config.settle_within {
            return Ok(true);
        }
        core.unproven.remove(&raw_id);
        let now = Utc::now().timestamp();
        let mut lost = Vec::new();
        for run in core.book.by_raw_id(raw_id) {
            if let Some(tracked) = core
                .book
                .get_mut(&run)
                .filter(|tracked| !tracked.over() && !tracked.is_array)
            {
                tracked.end = Some(End {
                    event: String::new(),
                    at: now,
                    inferred: true,
                });
                let shard = Store::shard_of(tracked);
                lost.push((run.clone(), shard));
            }
        }
        for (run, shard) in lost {
            metrics::lost();
            core.last.remove(&run);
            core.dirty.insert(shard);
            let what = CaptureEvent {
                source: "slurmctld".to_owned(),
                message: format!(
                    "{} is gone from the controller and not in accounting",
                    run.entity_key()
                ),
                to: Some(timestamp(Utc::now())),
                not_recoverable: format!("how and when {} ended", run.entity_key()),
                ..CaptureEvent::default()
            };
            self.capture_locked(&mut core, EventType::CaptureGapClosed, what)
                .await?;
        }
        Ok(false)
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
        let given_up = self.given_up(&core, array.job_id);
        let now = Utc::now();
        let (next, fact, ask) =
            match settle_remainder(&core.book, array, record_gone, given_up, now.timestamp()) {
                None => return Ok(false),
                Some(Remainder::Settled(next)) => (*next, None, false),
                Some(Remainder::Missing(next)) => (*next, None, true),
                Some(Remainder::Cancelled(next, fact)) => (*next, Some(*fact), false),
            };
        if ask {
            core.unproven
                .entry(array.job_id)
                .or_insert_with(|| Unproven {
                    since: Instant::now(),
                    answers: 0,
                });
        } else {
            core.unproven.remove(&array.job_id);
        }
        core.dirty.insert(Store::shard_of(&next));
        core.book.put(array.clone(), next);
        if let Some(fact) = fact
            && let Some((job, owner)) = core.last.get(array).cloned()
        {
            let frame = Frame {
                now,
                cause,
                late_after: self.late_after(),
                identities: &self.identities,
            };
            let event = frame.event_without_reading(&fact, job, &owner);
            let told = vec![Told::new(&fact, event, array.job_id, &[])];
            self.publish(&mut core, told).await?;
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
                    Some(end) => end.at < oldest,
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
