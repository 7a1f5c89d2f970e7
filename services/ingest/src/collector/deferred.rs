//! Deferred observations: a waiting run whose earlier run's end is still looked up. They are applied in order once that end is known, so
//! that a hold or reason is published even if it is over by then.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::RunKey;

use super::TracedObservation;
use crate::domain::Observation;
use crate::envelope::Cause;

/// Maximum number of observations per run. Later changes of such a run are not published.
const MAX_PER_RUN: usize = 8;
/// Maximum number of observations in total, at a few kilobytes each.
const MAX_TOTAL: usize = 2_048;
/// Age at which a run's observations may be dropped. Every lookup has finished by then, so no source shows the run any more.
const MAX_AGE: TimeDelta = TimeDelta::hours(1);

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
    /// Stores an observation if it shows a change, or confirms the previous one for the first time.
    pub(super) fn push(&mut self, run: &RunKey, deferred: DeferredObservation) {
        if self.total() >= MAX_TOTAL {
            self.remove_older_than(deferred.at - MAX_AGE);
        }
        let earlier = self.runs.get(run).map_or(&[][..], Vec::as_slice);
        let same_content = |other: &DeferredObservation| {
            is_same(&other.reading.observation, &deferred.reading.observation)
        };
        let confirmed = earlier.len() >= 2 && earlier.iter().rev().take(2).all(same_content);
        if confirmed || earlier.len() >= MAX_PER_RUN || self.total() >= MAX_TOTAL {
            return;
        }
        self.runs.entry(run.clone()).or_default().push(deferred);
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

    fn remove_older_than(&mut self, time: DateTime<Utc>) {
        self.runs
            .retain(|_, waiting| waiting.iter().any(|deferred| deferred.at > time));
    }
}

/// Whether two observations of a waiting run agree on hold and reason class, the facts published while it waits.
fn is_same(one: &Observation, other: &Observation) -> bool {
    one.held == other.held && one.class == other.class
}
