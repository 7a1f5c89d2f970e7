//! Every run that is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use mesh_events::RunKey;

use super::run_state::RunState;

/// A run's key without its cluster, which is the same for all: for 100,000 runs the name would take as much memory as their state.
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

/// The runs, in the order of their keys: the runs of one job are neighbours, oldest first.
#[derive(Clone, Debug, Default)]
pub struct RunStore {
    /// Whose runs they are, once there is one.
    cluster: String,
    /// Boxed: the nodes of a map that grows at its end are half empty.
    runs: BTreeMap<LocalRunKey, Box<RunState>>,
    /// By Slurm's id of the record.
    by_raw_id: BTreeSet<(u32, LocalRunKey)>,
}

impl RunStore {
    /// A run's memory.
    pub fn get(&self, run: &RunKey) -> Option<&RunState> {
        self.runs.get(&run.into()).map(|tracked| &**tracked)
    }

    /// Records a run.
    pub fn put(&mut self, run: RunKey, tracked: RunState) {
        let key = LocalRunKey::from(&run);
        self.cluster = run.cluster;
        self.by_raw_id.insert((tracked.raw_id, key));
        self.runs.insert(key, Box::new(tracked));
    }

    /// Drops a run.
    pub fn remove(&mut self, run: &RunKey) -> Option<RunState> {
        let key = LocalRunKey::from(run);
        let tracked = self.runs.remove(&key)?;
        self.by_raw_id.remove(&(tracked.raw_id, key));
        Some(*tracked)
    }

    /// Changes a run's memory in place.
    pub fn get_mut(&mut self, run: &RunKey) -> Option<&mut RunState> {
        self.runs.get_mut(&run.into()).map(|tracked| &mut **tracked)
    }

    /// Notes that these records were seen.
    pub fn touch(&mut self, raw_ids: &BTreeSet<u32>, now: i64) {
        for raw_id in raw_ids {
            for (_, key) in self.by_raw_id.range(known_as(*raw_id)) {
                if let Some(tracked) = self.runs.get_mut(key) {
                    tracked.last_seen = now;
                }
            }
        }
    }

    /// Every run.
    pub fn iter(&self) -> impl Iterator<Item = (RunKey, &RunState)> {
        self.runs.iter().map(|entry| self.named(entry))
    }

    #[expect(clippy::borrowed_box, reason = "as the map's iterators have it")]
    fn named<'a>(
        &self,
        (key, tracked): (&LocalRunKey, &'a Box<RunState>),
    ) -> (RunKey, &'a RunState) {
        (key.of_cluster(&self.cluster), tracked)
    }

    /// The runs whose ids of a record are wanted.
    pub fn of_records(
        &self,
        wanted: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (RunKey, &RunState)> {
        let runs = self.by_raw_id.iter().filter(move |(id, _)| wanted(*id));
        runs.filter_map(|(_, key)| Some(self.named(self.runs.get_key_value(key)?)))
    }

    /// The runs Slurm knows by this id of a record that were submitted then, an earlier attempt before a later one.
    pub fn submitted_as(
        &self,
        raw_id: u32,
        submit_time: i64,
    ) -> impl DoubleEndedIterator<Item = (RunKey, &RunState)> {
        let keys = self.by_raw_id.range(known_as(raw_id)).map(|(_, key)| key);
        keys.filter(move |key| key.submit_time == submit_time)
            .filter_map(|key| Some(self.named(self.runs.get_key_value(key)?)))
    }

    /// The newest time that Slurm has of a run and that is not after this one.
    pub fn newest_time(&self, now: i64) -> Option<i64> {
        let times = self.runs.iter().flat_map(|(key, tracked)| {
            let end = tracked.end.as_ref().map(|end| end.at);
            [Some(key.submit_time), tracked.started, end]
        });
        times.flatten().filter(|at| *at <= now).max()
    }

    /// How many runs are stored.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs of one job, task or array, oldest first.
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
        runs.map(|entry| self.named(entry))
    }

    /// The runs of the tasks of an array.
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
        runs.map(|entry| self.named(entry))
    }

    /// Whether Slurm knew a run by this id of a record.
    pub fn knows(&self, raw_id: u32) -> bool {
        self.by_raw_id.range(known_as(raw_id)).next().is_some()
    }

    /// The runs Slurm knows by this id of a record, oldest first.
    pub fn by_raw_id(&self, raw_id: u32) -> Vec<RunKey> {
        let keys = self.by_raw_id.range(known_as(raw_id));
        let mut runs: Vec<RunKey> = keys.map(|(_, key)| key.of_cluster(&self.cluster)).collect();
        runs.sort_by_key(|run| (run.submit_time, run.attempt));
        runs
    }
}

const fn known_as(raw_id: u32) -> RangeInclusive<(u32, LocalRunKey)> {
    (raw_id, LocalRunKey::MIN)..=(raw_id, LocalRunKey::MAX)
}
