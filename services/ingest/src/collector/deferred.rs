//! Deferred observations: a waiting run whose earlier run's end is still looked up. They are applied in order once that end is known, so
//! that a hold or reason is published even if it is over by then.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::RunKey;
use prost::Message as _;

use super::TracedObservation;
use crate::adapters::store::Store;
use crate::domain::Observation;
use crate::envelope::Cause;

/// Maximum number of observations per run. Later changes of such a run are not published.
const MAX_PER_RUN: usize = 8;
/// Maximum number of observations in total, at a few kilobytes each.
const MAX_TOTAL: usize = 2_048;
/// Maximum size of the payloads of a shard, which share a bucket value of 1 MiB with its runs.
const MAX_BYTES_PER_SHARD: usize = 128 * 1_024;
/// Age at which a run's observations may be dropped. Every lookup has finished by then, so no source shows the run any more.
pub(super) const MAX_AGE: TimeDelta = TimeDelta::hours(1);

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
        if self.total() >= MAX_TOTAL {
            self.remove_older_than(deferred.at - MAX_AGE);
        }
        let earlier = self.runs.get(run).map_or(&[][..], Vec::as_slice);
        let same_content = |other: &DeferredObservation| {
            is_same(&other.reading.observation, &deferred.reading.observation)
        };
        let confirmed = earlier.len() >= 2 && earlier.iter().rev().take(2).all(same_content);
        if confirmed
            || earlier.len() >= MAX_PER_RUN
            || self.total() >= MAX_TOTAL
            || self.bytes_beside(&deferred) >= MAX_BYTES_PER_SHARD
        {
            return false;
        }
        self.runs.entry(run.clone()).or_default().push(deferred);
        true
    }

    /// Size of the payloads in the shard of an observation.
    fn bytes_beside(&self, deferred: &DeferredObservation) -> usize {
        let shard =
            |one: &DeferredObservation| Store::shard_of_record(one.reading.observation.raw_id);
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

    /// Removes and returns the observations of a run and of the job's earlier runs, in order. A job may be in its next run before an earlier
    /// one is seen again.
    pub(super) fn take_until(&mut self, run: &RunKey) -> Vec<DeferredObservation> {
        let first = RunKey {
            submit_time: i64::MIN,
            attempt: 0,
            ..run.clone()
        };
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

/// Whether two observations of a waiting run agree on hold and reason class, the facts published while it waits.
fn is_same(one: &Observation, other: &Observation) -> bool {
    one.held == other.held && one.class == other.class
}
