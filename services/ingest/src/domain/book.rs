//! Every run that is remembered.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mesh_events::RunKey;

use super::tracked::Tracked;

/// The runs, in the order of their keys: the runs of one job are neighbours, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Boxed: the nodes of a map that grows at its end are half empty.
    runs: BTreeMap<RunKey, Box<Tracked>>,
    /// In order. Nearly always one run, for which a set would take six times the memory.
    by_raw_id: HashMap<u32, Vec<RunKey>>,
}

impl Book {
    /// A run's memory.
    pub fn get(&self, run: &RunKey) -> Option<&Tracked> {
        self.runs.get(run).map(|tracked| &**tracked)
    }

    /// Remembers a run.
    pub fn put(&mut self, run: RunKey, tracked: Tracked) {
        let runs = self
            .by_raw_id
            .entry(tracked.raw_id)
            .or_insert_with(|| Vec::with_capacity(1));
        if let Err(place) = runs.binary_search(&run) {
            runs.insert(place, run.clone());
        }
        self.runs.insert(run, Box::new(tracked));
    }

    /// Forgets a run.
    pub fn remove(&mut self, run: &RunKey) -> Option<Tracked> {
        let tracked = self.runs.remove(run)?;
        if let Some(runs) = self.by_raw_id.get_mut(&tracked.raw_id) {
            runs.retain(|other| other != run);
            if runs.is_empty() {
                self.by_raw_id.remove(&tracked.raw_id);
            }
        }
        Some(*tracked)
    }

    /// Changes a run's memory in place.
    pub fn get_mut(&mut self, run: &RunKey) -> Option<&mut Tracked> {
        self.runs.get_mut(run).map(|tracked| &mut **tracked)
    }

    /// Notes that these records were seen.
    pub fn touch(&mut self, raw_ids: &BTreeSet<u32>, now: i64) {
        let seen = raw_ids.iter().filter_map(|id| self.by_raw_id.get(id));
        for run in seen.flatten() {
            if let Some(tracked) = self.runs.get_mut(run) {
                tracked.last_seen = now;
            }
        }
    }

    /// Every run.
    pub fn iter(&self) -> impl Iterator<Item = (&RunKey, &Tracked)> {
        self.runs.iter().map(unboxed)
    }

    /// The runs whose ids of a record are wanted.
    pub fn of_records(
        &self,
        wanted: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (&RunKey, &Tracked)> {
        let runs = self.by_raw_id.iter().filter(move |(id, _)| wanted(**id));
        let runs = runs.flat_map(|(_, runs)| runs);
        runs.filter_map(|run| self.runs.get_key_value(run).map(unboxed))
    }

    /// The runs Slurm knows by this id of a record that were submitted then, an earlier attempt before a later one.
    pub fn submitted_as(
        &self,
        raw_id: u32,
        submit_time: i64,
    ) -> impl DoubleEndedIterator<Item = (&RunKey, &Tracked)> {
        let runs = self.by_raw_id.get(&raw_id).into_iter().flatten();
        runs.filter(move |run| run.submit_time == submit_time)
            .filter_map(|run| self.runs.get_key_value(run).map(unboxed))
    }

    /// How many runs are remembered.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs of one job, task or array, oldest first.
    pub fn runs_of(&self, like: &RunKey) -> impl DoubleEndedIterator<Item = (&RunKey, &Tracked)> {
        let first = RunKey {
            submit_time: i64::MIN,
            attempt: 0,
            ..like.clone()
        };
        let last = RunKey {
            submit_time: i64::MAX,
            attempt: u32::MAX,
            ..like.clone()
        };
        self.runs.range(first..=last).map(unboxed)
    }

    /// The runs of the tasks of an array.
    pub fn tasks_of(&self, array: &RunKey) -> impl Iterator<Item = (&RunKey, &Tracked)> {
        let first = RunKey {
            task_id: Some(0),
            submit_time: i64::MIN,
            attempt: 0,
            ..array.clone()
        };
        let last = RunKey {
            task_id: Some(u32::MAX),
            submit_time: i64::MAX,
            attempt: u32::MAX,
            ..array.clone()
        };
        self.runs.range(first..=last).map(unboxed)
    }

    /// Whether Slurm knew a run by this id of a record.
    pub fn knows(&self, raw_id: u32) -> bool {
        self.by_raw_id.contains_key(&raw_id)
    }

    /// The runs Slurm knows by this id of a record, oldest first.
    pub fn by_raw_id(&self, raw_id: u32) -> Vec<RunKey> {
        let mut runs: Vec<RunKey> = self
            .by_raw_id
            .get(&raw_id)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        runs.sort_by_key(|run| (run.submit_time, run.attempt));
        runs
    }
}

#[expect(clippy::borrowed_box, reason = "as the map's iterators have it")]
fn unboxed<'a>((run, tracked): (&'a RunKey, &'a Box<Tracked>)) -> (&'a RunKey, &'a Tracked) {
    (run, tracked)
}
