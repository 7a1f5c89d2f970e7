//! Deferred observations: a waiting run whose earlier run's end is still looked up. They are applied in order once that end is known, so
//! that a hold or reason is published even if it is over by then.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::RunKey;
use prost::Message as _;

use super::TracedObservation;
use crate::adapters::shards::shard_of_record;
use crate::config::Config;
use crate::domain::Observation;
use crate::envelope::Cause;

/// Maximum number of observations per run. Later changes of such a run are not published.
const MAX_PER_RUN: usize = 8;
/// Maximum number of observations in total, at a few kilobytes each.
const MAX_TOTAL: usize = 2_048;
/// Maximum size of the payloads of a shard, which share a bucket value of 1 MiB with its runs.
const MAX_BYTES_PER_SHARD: usize = 128 * 1_024;
/// Minimum of [`max_age`].
const MIN_MAX_AGE: Duration = Duration::from_secs(3_600);

/// Age at which a run's observations may be dropped. Every lookup has finished by then, so no source shows the run any more.
pub(super) fn max_age(config: &Config) -> Duration {
    config.resolution_timeout.saturating_mul(2).max(MIN_MAX_AGE)
}

/// Time of the oldest observation that is kept at this time; `None` if there is no limit.
pub(super) fn oldest_kept(now: DateTime<Utc>, config: &Config) -> Option<DateTime<Utc>> {
    now.checked_sub_signed(TimeDelta::from_std(max_age(config)).ok()?)
}

/// Identifies a deferred observation: its run, Slurm's job id, and when it was read.
pub(super) type DeferredKey = (RunKey, u32, DateTime<Utc>);

#[derive(Clone)]
pub(super) struct DeferredObservation {
    /// What caused the read.
    pub cause: Cause,
    /// Time of the read.
    pub at: DateTime<Utc>,
    pub reading: TracedObservation,
}

/// Deferred observations by run.
#[derive(Default)]
pub(super) struct DeferredObservations {
    runs: BTreeMap<RunKey, Vec<DeferredObservation>>,
}

impl DeferredObservations {
    /// Adds an observation if it shows a change, or confirms the previous one for the first time. Returns whether it was added.
    pub(super) fn push(&mut self, run: &RunKey, deferred: DeferredObservation) -> bool {
        let earlier = self.runs.get(run).map_or(&[][..], Vec::as_slice);
        let same_content = |other: &DeferredObservation| {
            is_same(&other.reading.observation, &deferred.reading.observation)
        };
        let confirmed = earlier.len() >= 2 && earlier.iter().rev().take(2).all(same_content);
        if confirmed
            || earlier.len() >= MAX_PER_RUN
            || self.is_full()
            || self.bytes_beside(&deferred) >= MAX_BYTES_PER_SHARD
        {
            return false;
        }
        self.runs.entry(run.clone()).or_default().push(deferred);
        true
    }

    /// Whether there is no room for another one.
    pub(super) fn is_full(&self) -> bool {
        self.total() >= MAX_TOTAL
    }

    /// Size of the payloads in the shard of an observation.
    fn bytes_beside(&self, deferred: &DeferredObservation) -> usize {
        let shard = |one: &DeferredObservation| shard_of_record(one.reading.observation.raw_id);
        let all = self.runs.values().flatten();
        let beside = all.filter(|other| shard(other) == shard(deferred));
        beside
            .map(|other| other.reading.observation.job.encoded_len())
            .sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&RunKey, &DeferredObservation)> {
        let runs = self.runs.iter();
        runs.flat_map(|(run, observations)| observations.iter().map(move |one| (run, one)))
    }

    /// Identifies the observations of every run of a job.
    pub(super) fn keys_of_job(&self, run: &RunKey) -> Vec<DeferredKey> {
        if self.is_empty() {
            return Vec::new();
        }
        let last = RunKey {
            submit_time: i64::MAX,
            attempt: u32::MAX,
            ..run.clone()
        };
        let runs = self.runs.range(first_of_job(run)..=last);
        let all = runs.flat_map(|(run, all)| all.iter().map(move |one| (run, one)));
        all.map(|(run, one)| (run.clone(), one.reading.observation.raw_id, one.at))
            .collect()
    }

    /// Removes and returns the observations of a run and of the job's earlier runs, in order. A job may be in its next run before an earlier
    /// one is seen again.
    pub(super) fn take_until(&mut self, run: &RunKey) -> Vec<DeferredObservation> {
        let first = first_of_job(run);
        let taken = self.runs.extract_if(first..=run.clone(), |_, _| true);
        taken.flat_map(|(_, observations)| observations).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    fn total(&self) -> usize {
        self.runs.values().map(Vec::len).sum()
    }

    /// Removes the runs of which every observation is older. Returns their jobs, by Slurm's job id.
    pub(super) fn remove_older_than(&mut self, time: DateTime<Utc>) -> Vec<u32> {
        let is_old = |waiting: &mut Vec<DeferredObservation>| {
            waiting.iter().all(|deferred| deferred.at <= time)
        };
        let removed = self.runs.extract_if(.., |_, waiting| is_old(waiting));
        let removed = removed.flat_map(|(_, observations)| observations);
        removed
            .map(|deferred| deferred.reading.observation.raw_id)
            .collect()
    }
}

/// The smallest key of a job's runs.
fn first_of_job(run: &RunKey) -> RunKey {
    RunKey {
        submit_time: i64::MIN,
        attempt: 0,
        ..run.clone()
    }
}

/// Whether two observations of a waiting run agree on hold and reason class, the facts published while it waits.
fn is_same(one: &Observation, other: &Observation) -> bool {
    one.held == other.held && one.class == other.class
}
