//! Jobs whose newest run is not published yet, because the end of an earlier run is looked up. No run state holds what is known of them, so
//! it is stored beside the runs: a hold that a restart lost would never be published, and each restart would begin the wait again.

mod stored;

use std::collections::BTreeSet;

use chrono::DateTime;
use mesh_events::{EventType, RunKey};
use slurm_client::JobRecord;
use slurm_types::JobId;

pub use self::stored::WaitingJobs;
use super::deferred::{DeferredKey, DeferredObservation, max_age, oldest_kept};
use super::{Collector, CollectorState};
use crate::adapters::shards::shard_of_record;
use crate::config::Config;
use crate::domain::{Observation, RunState};

impl Collector {
    /// Returns the jobs of runs that are not published yet and come after one whose end returns no job to the queue by itself.
    pub async fn may_be_requeued(&self, runs: &[Observation]) -> Vec<JobId> {
        let state = self.state.lock().await;
        let is_before = |run: &RunKey, (other, tracked): (RunKey, &RunState)| {
            let returns = |kind| {
                matches!(
                    kind,
                    EventType::JobRequeued | EventType::JobPreempted | EventType::JobNodeFail
                )
            };
            other < *run && tracked.end_kind().is_some_and(|kind| !returns(kind))
        };
        let unclear = runs.iter().filter(|observation| {
            let run = &observation.run;
            let counted = state.waiting.restarted.get(&observation.raw_id);
            observation.restarts.is_none()
                && state.run_store.get(run).is_none()
                && counted != Some(&run.submit_time)
                && state
                    .run_store
                    .runs_of(run)
                    .any(|other| is_before(run, other))
        });
        let ids: BTreeSet<u32> = unclear.map(|run| run.raw_id).collect();
        ids.into_iter().filter_map(JobId::new).collect()
    }

    /// Notes which of these records of the controller are of restarted runs.
    pub async fn restarts_counted(&self, records: &[JobRecord]) {
        let mut state = self.state.lock().await;
        for record in records.iter().filter(|record| record.restarts > 0) {
            if let (Some(id), Some(submit)) = (record.job_id, record.submit) {
                state.note_restarted(id.get(), submit.as_secs());
            }
        }
    }
}

impl CollectorState {
    /// Defers an observation. [`Self::store_deferred`] stores it.
    pub(super) fn defer(&mut self, run: &RunKey, deferred: DeferredObservation, config: &Config) {
        if self.waiting.deferred.is_full()
            && let Some(oldest) = oldest_kept(deferred.at, config)
        {
            let removed = self.waiting.deferred.remove_older_than(oldest);
            self.dirty.extend(removed.into_iter().map(shard_of_record));
        }
        self.waiting.deferred.push(run, deferred);
    }

    /// Removes and returns what is deferred of an observation's job until its run. Mostly nothing is, and no run has to be resolved for that.
    pub(super) fn take_deferred(&mut self, observation: &Observation) -> Vec<DeferredObservation> {
        if self.waiting.deferred.is_empty() {
            return Vec::new();
        }
        let run = crate::domain::run_of(&self.run_store, observation);
        self.waiting.deferred.take_until(&run)
    }

    /// Has the shards written in which other observations of a job are deferred than before. At most polls, the same ones are taken and
    /// deferred again.
    pub(super) fn store_deferred(&mut self, run: &RunKey, before: &[DeferredKey]) {
        let now = self.waiting.deferred.keys_of_job(run);
        let added = now.iter().filter(|key| !before.contains(key));
        self.waiting.unstored.extend(added.map(|(_, id, _)| id));
        if now != before {
            let ids = before.iter().chain(&now).map(|(_, id, _)| *id);
            self.dirty.extend(ids.map(shard_of_record));
        }
    }

    /// Records that the controller has shown a run as restarted.
    pub(super) fn note_restarted(&mut self, raw_id: u32, submit_time: i64) {
        if self.waiting.restarted.insert(raw_id, submit_time) != Some(submit_time) {
            self.dirty.insert(shard_of_record(raw_id));
        }
    }

    /// Closes the lookup of a job's end.
    pub(super) fn close_lookup(&mut self, raw_id: u32) {
        self.lookups.remove(&raw_id);
        if self.waiting.lookups.remove(&raw_id).is_some() {
            self.dirty.insert(shard_of_record(raw_id));
        }
    }

    /// Removes jobs that no source has shown for so long that every lookup of them has ended. `caught_up_until`, in Unix seconds, is the
    /// time until which everything was read: what waits during an outage stays.
    pub(super) fn expire_waiting(&mut self, caught_up_until: i64, config: &Config) {
        let max_age = max_age(config);
        let until = DateTime::from_timestamp(caught_up_until, 0);
        let Some(oldest) = until.and_then(|until| oldest_kept(until, config)) else {
            return;
        };
        let mut removed = self.waiting.deferred.remove_older_than(oldest);
        let oldest = oldest.timestamp();
        let lookups = &self.lookups;
        let is_old = |raw_id: &u32| {
            let lookup = lookups.get(raw_id);
            lookup.is_none_or(|open| open.age() > max_age)
        };
        let restarted = self
            .waiting
            .restarted
            .extract_if(|raw_id, submit_time| *submit_time < oldest && is_old(raw_id));
        removed.extend(restarted.map(|(raw_id, _)| raw_id));
        let old: Vec<u32> = self
            .waiting
            .lookups
            .keys()
            .copied()
            .filter(is_old)
            .collect();
        for raw_id in old {
            self.close_lookup(raw_id);
        }
        self.dirty.extend(removed.into_iter().map(shard_of_record));
    }
}

#[cfg(test)]
mod tests;
