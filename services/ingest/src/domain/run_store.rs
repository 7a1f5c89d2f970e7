//! In-memory store of all runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use mesh_events::RunKey;

use super::run_state::RunState;

/// Run key without the cluster, which is the same for all. For 100,000 runs the name would take as much memory as their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalRunKey {
    job_id: u32,
    task_id: Option<u32>,
    submit_time: i64,
    attempt: u32,
}

impl From<&RunKey> for LocalRunKey {
    fn from(run: &RunKey) -> Self {
        Self {
            job_id: run.job_id,
            task_id: run.task_id,
            submit_time: run.submit_time,
            attempt: run.attempt,
        }
    }
}

impl LocalRunKey {
    const MIN: Self = Self {
        job_id: 0,
        task_id: None,
        submit_time: i64::MIN,
        attempt: 0,
    };
    const MAX: Self = Self {
        job_id: u32::MAX,
        task_id: Some(u32::MAX),
        submit_time: i64::MAX,
        attempt: u32::MAX,
    };

    /// Whether the key contains this job id of Slurm.
    const fn is_named(&self, raw_id: u32) -> bool {
        self.task_id.is_none() && self.job_id == raw_id
    }

    fn of_cluster(self, cluster: &str) -> RunKey {
        RunKey {
            cluster: cluster.to_owned(),
            job_id: self.job_id,
            task_id: self.task_id,
            submit_time: self.submit_time,
            attempt: self.attempt,
        }
    }
}

/// Runs in the order of their keys: the runs of one job are adjacent, oldest first.
#[derive(Clone, Debug, Default)]
pub struct RunStore {
    /// Cluster of the runs, once there is one.
    cluster: String,
    /// Boxed, because the nodes of a map that grows at its end are half empty.
    runs: BTreeMap<LocalRunKey, Box<RunState>>,
    /// Index by Slurm's job id, for ids that differ from the key's: tasks of arrays.
    by_raw_id: BTreeSet<(u32, LocalRunKey)>,
}

impl RunStore {
    /// Returns the state of a run.
    pub fn get(&self, run: &RunKey) -> Option<&RunState> {
        self.runs.get(&run.into()).map(|tracked| &**tracked)
    }

    /// Returns a run by its key without the cluster.
    pub fn entry(&self, run: LocalRunKey) -> Option<(RunKey, &RunState)> {
        self.runs
            .get_key_value(&run)
            .map(|(key, tracked)| self.named(key, tracked))
    }

    /// Inserts or replaces a run.
    pub fn put(&mut self, run: RunKey, mut tracked: RunState) {
        tracked.rare.shrink();
        let key = LocalRunKey::from(&run);
        self.cluster = run.cluster;
        if !key.is_named(tracked.raw_id) {
            self.by_raw_id.insert((tracked.raw_id, key));
        }
        self.runs.insert(key, Box::new(tracked));
    }

    /// Removes a run.
    pub fn remove(&mut self, run: &RunKey) -> Option<RunState> {
        let key = LocalRunKey::from(run);
        let tracked = self.runs.remove(&key)?;
        self.by_raw_id.remove(&(tracked.raw_id, key));
        Some(*tracked)
    }

    /// Returns the state of a run for changes in place.
    pub fn get_mut(&mut self, run: &RunKey) -> Option<&mut RunState> {
        self.runs.get_mut(&run.into()).map(|tracked| &mut **tracked)
    }

    /// Records that these jobs were seen.
    pub fn touch(&mut self, raw_ids: &BTreeSet<u32>, now: i64) {
        for raw_id in raw_ids {
            let tasks = self.by_raw_id.range(known_as(*raw_id)).map(|(_, key)| *key);
            let own = self.runs.range(named(*raw_id));
            let own = own.filter(|(_, tracked)| tracked.raw_id == *raw_id);
            let own = own.map(|(key, _)| *key);
            for key in own.chain(tasks).collect::<Vec<_>>() {
                if let Some(tracked) = self.runs.get_mut(&key) {
                    tracked.last_seen = now;
                }
            }
        }
    }

    /// Sets `last_seen` to `to` for runs whose `last_seen` is later than `newest`, due to a clock that was ahead. Returns
    /// Slurm's ids of their jobs.
    pub fn clamp_last_seen(&mut self, newest: i64, to: i64) -> Vec<u32> {
        let ahead = self
            .runs
            .values_mut()
            .filter(|tracked| tracked.last_seen > newest);
        ahead
            .map(|tracked| {
                tracked.last_seen = to;
                tracked.raw_id
            })
            .collect()
    }

    /// Returns the runs with this job id of Slurm: first those whose key contains it, then tasks.
    fn known_as(&self, raw_id: u32) -> impl DoubleEndedIterator<Item = (&LocalRunKey, &RunState)> {
        let own = self.runs.range(named(raw_id));
        let own = own.filter(move |(_, tracked)| tracked.raw_id == raw_id);
        let tasks = self.by_raw_id.range(known_as(raw_id));
        let tasks = tasks.filter_map(|(_, key)| self.runs.get_key_value(key));
        own.chain(tasks).map(|(key, tracked)| (key, &**tracked))
    }

    /// Returns all runs.
    pub fn iter(&self) -> impl Iterator<Item = (RunKey, &RunState)> {
        self.runs
            .iter()
            .map(|(key, tracked)| self.named(key, tracked))
    }

    fn named<'a>(&self, key: &LocalRunKey, tracked: &'a RunState) -> (RunKey, &'a RunState) {
        (key.of_cluster(&self.cluster), tracked)
    }

    /// Returns the runs whose job id of Slurm is accepted by `matches_id`.
    pub fn of_records(
        &self,
        matches_id: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (RunKey, &RunState)> {
        let runs = self.runs.iter();
        runs.filter(move |(_, tracked)| matches_id(tracked.raw_id))
            .map(|(key, tracked)| self.named(key, tracked))
    }

    /// Returns the runs with this job id of Slurm and this submit time, an earlier attempt before a later one.
    pub fn submitted_as(
        &self,
        raw_id: u32,
        submit_time: i64,
    ) -> impl DoubleEndedIterator<Item = (RunKey, &RunState)> {
        self.known_as(raw_id)
            .filter(move |(key, _)| key.submit_time == submit_time)
            .map(|(key, tracked)| self.named(key, tracked))
    }

    /// Returns the newest of Slurm's times that is not after `now`.
    pub fn newest_time(&self, now: i64) -> Option<i64> {
        let times = self.runs.iter().flat_map(|(key, tracked)| {
            let end = tracked.end.as_ref().map(|end| end.at);
            [Some(key.submit_time), tracked.started, end]
        });
        times.flatten().filter(|at| *at <= now).max()
    }

    /// Returns the number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the runs of one job, task or array, oldest first.
    pub fn runs_of(&self, like: &RunKey) -> impl DoubleEndedIterator<Item = (RunKey, &RunState)> {
        let (job_id, task_id) = (like.job_id, like.task_id);
        let first = LocalRunKey {
            job_id,
            task_id,
            ..LocalRunKey::MIN
        };
        let last = LocalRunKey {
            job_id,
            task_id,
            ..LocalRunKey::MAX
        };
        let runs = self.runs.range(first..=last);
        runs.map(|(key, tracked)| self.named(key, tracked))
    }

    /// Returns the runs of an array's tasks.
    pub fn tasks_of(&self, array: &RunKey) -> impl Iterator<Item = (RunKey, &RunState)> {
        let job_id = array.job_id;
        let first = LocalRunKey {
            job_id,
            task_id: Some(0),
            ..LocalRunKey::MIN
        };
        let last = LocalRunKey {
            job_id,
            ..LocalRunKey::MAX
        };
        let runs = self.runs.range(first..=last);
        runs.map(|(key, tracked)| self.named(key, tracked))
    }

    /// Whether any run has this job id of Slurm.
    pub fn knows(&self, raw_id: u32) -> bool {
        self.known_as(raw_id).next().is_some()
    }

    /// Returns the keys of the runs with this job id of Slurm, oldest first.
    pub fn by_raw_id(&self, raw_id: u32) -> Vec<RunKey> {
        let runs = self.known_as(raw_id);
        let mut runs: Vec<RunKey> = runs.map(|(key, _)| key.of_cluster(&self.cluster)).collect();
        runs.sort_by_key(|run| (run.submit_time, run.attempt));
        runs
    }
}

/// Key range of a job or array.
const fn named(job_id: u32) -> RangeInclusive<LocalRunKey> {
    let first = LocalRunKey {
        job_id,
        task_id: None,
        ..LocalRunKey::MIN
    };
    let last = LocalRunKey {
        job_id,
        task_id: None,
        ..LocalRunKey::MAX
    };
    first..=last
}

const fn known_as(raw_id: u32) -> RangeInclusive<(u32, LocalRunKey)> {
    (raw_id, LocalRunKey::MIN)..=(raw_id, LocalRunKey::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_with_a_clock_ahead_are_not_stored_longer() {
        let mut run_store = RunStore::default();
        for (raw_id, last_seen) in [(1, 1_000), (2, 1_100), (3, 90_000)] {
            let run = RunKey {
                cluster: "c".to_owned(),
                job_id: raw_id,
                task_id: None,
                submit_time: 100,
                attempt: 0,
            };
            let state = RunState {
                raw_id,
                last_seen,
                ..RunState::default()
            };
            run_store.put(run, state);
        }
        assert_eq!(run_store.clamp_last_seen(1_300, 1_000), [3]);
        let seen: Vec<i64> = run_store.iter().map(|(_, state)| state.last_seen).collect();
        assert_eq!(seen, [1_000, 1_100, 1_000]);
        assert!(run_store.clamp_last_seen(1_300, 1_000).is_empty());
    }
}
