//! Open lookups of tasks that left their array, one for each wave. If an array had one wait, tasks that go missing during it would begin
//! theirs after it, and be published long after `resolution_timeout`.

use std::time::Duration;

use mesh_events::RunKey;
use slurm_types::TaskSet;

use super::{OpenLookup, is_news};
use crate::adapters::shards::{pack, shard_of};
use crate::collector::CollectorState;
use crate::domain::{Owner, StoredLookup};

/// Minimum age of a wave before further tasks begin another one, so that an array whose tasks leave at every poll has few.
const WAVE_INTERVAL: Duration = Duration::from_secs(10);

/// Tasks of an array that were found missing together.
pub(in crate::collector) struct TaskWave {
    pub(in crate::collector) open: OpenLookup,
    pub(in crate::collector) tasks: TaskSet,
}

/// The waves of an array, the one that has waited longest first.
#[derive(Default)]
pub(in crate::collector) struct OpenTaskLookup {
    waves: Vec<TaskWave>,
}

impl OpenTaskLookup {
    pub(in crate::collector) fn waves(&self) -> &[TaskWave] {
        &self.waves
    }

    pub(super) fn open_lookups(&mut self) -> impl Iterator<Item = &mut OpenLookup> {
        self.waves.iter_mut().map(|wave| &mut wave.open)
    }

    /// Ends the waits for tasks that are not missing any more, and begins one for those that no wave has. Returns whether there are such.
    /// Tasks that join a wave end with it, but only what is answered from then on proves their absence.
    pub(in crate::collector) fn wait_for(&mut self, missing: &TaskSet, open: OpenLookup) -> bool {
        let mut new = missing.clone();
        for wave in &mut self.waves {
            wave.tasks = wave.tasks.intersection(&new);
            new = new.difference(&wave.tasks);
        }
        self.waves.retain(|wave| !wave.tasks.is_empty());
        let has_new = !new.is_empty();
        if !has_new {
            return false;
        }
        let ages = open.age()..open.age() + WAVE_INTERVAL;
        match self.waves.last_mut() {
            Some(newest) if ages.contains(&newest.open.age()) => {
                newest.tasks = TaskSet::new(newest.tasks.iter().chain(new.iter()));
                newest.open.restart_proof();
            }
            _ => {
                self.waves.push(TaskWave { open, tasks: new });
                self.sort();
            }
        }
        true
    }

    /// Takes out waves.
    pub(in crate::collector) fn take(
        &mut self,
        is_taken: impl Fn(&TaskWave) -> bool,
    ) -> Vec<TaskWave> {
        let waves = std::mem::take(&mut self.waves);
        let (taken, left) = waves.into_iter().partition(is_taken);
        self.waves = left;
        taken
    }

    /// Puts waves back.
    pub(in crate::collector) fn put_back(&mut self, waves: Vec<TaskWave>) {
        self.waves.extend(waves);
        self.sort();
    }

    fn sort(&mut self) {
        self.waves
            .sort_by_key(|wave| std::cmp::Reverse(wave.open.age()));
    }

    /// Restores the waves that a process before this one has stored.
    pub(super) fn of(stored: &StoredLookup) -> Self {
        let waves = std::iter::once(stored).chain(&stored.later);
        let waves = waves.map(|wave| TaskWave {
            open: OpenLookup::of(wave),
            tasks: wave.tasks.parse().unwrap_or_default(),
        });
        Self {
            waves: waves.collect(),
        }
    }

    /// The waves as stored with their array; `None` if there are none.
    fn stored(&self) -> Option<StoredLookup> {
        let mut waves = self.waves.iter().map(|wave| StoredLookup {
            tasks: wave.tasks.to_string(),
            ..wave.open.stored()
        });
        let first = waves.next()?;
        Some(StoredLookup {
            later: waves.collect(),
            ..first
        })
    }
}

/// Returns all tasks of these waves.
pub(in crate::collector) fn tasks_of<'a>(waves: impl IntoIterator<Item = &'a TaskWave>) -> TaskSet {
    TaskSet::new(waves.into_iter().flat_map(|wave| wave.tasks.iter()))
}

impl CollectorState {
    /// Stores the lookups of missing tasks with their array, and the array's last payload.
    pub(in crate::collector) fn store_task_lookup(&mut self, array: &RunKey) {
        let lookup = self.task_lookups.get(array);
        let stored = lookup.and_then(OpenTaskLookup::stored);
        let last = self.last.get(array);
        let Some(tracked) = self.run_store.get_mut(array) else {
            return;
        };
        let Some(stored) = stored else {
            if tracked.lookup.take().is_some() {
                self.dirty.insert(shard_of(tracked));
            }
            return;
        };
        if is_news(tracked.lookup.as_deref(), &stored) {
            let known = tracked.lookup.take();
            let (job, owner) = match (last, known) {
                (Some((job, owner)), _) => (pack(&job), owner),
                (None, Some(known)) => (known.job, known.owner),
                (None, None) => <(String, Owner)>::default(),
            };
            tracked.lookup = Some(Box::new(StoredLookup {
                job,
                owner,
                ..stored
            }));
            self.dirty.insert(shard_of(tracked));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    fn tasks(text: &str) -> TaskSet {
        text.parse().unwrap()
    }

    fn ages(lookup: &OpenTaskLookup) -> Vec<(String, u64)> {
        let waves = lookup.waves().iter();
        let ages = waves.map(|wave| (wave.tasks.to_string(), wave.open.age().as_secs()));
        ages.collect()
    }

    fn shown(ages: &[(&str, u64)]) -> Vec<(String, u64)> {
        let ages = ages.iter().map(|(tasks, age)| ((*tasks).to_owned(), *age));
        ages.collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_task_waits_from_when_it_went_missing_over_restarts_too() {
        let mut lookup = OpenTaskLookup::default();
        assert!(lookup.wait_for(&tasks("3"), OpenLookup::now()));
        advance(Duration::from_secs(60)).await;
        assert!(!lookup.wait_for(&tasks("3"), OpenLookup::now()));
        assert!(lookup.wait_for(&tasks("3,5,7"), OpenLookup::now()));
        advance(Duration::from_secs(40)).await;
        let stored = serde_json::to_string(&lookup.stored().unwrap()).unwrap();
        let mut lookup = OpenTaskLookup::of(&serde_json::from_str(&stored).unwrap());
        assert_eq!(ages(&lookup), shown(&[("3", 100), ("5,7", 40)]));
        // One turns up; what leaves again later waits from then on.
        assert!(!lookup.wait_for(&tasks("3,7"), OpenLookup::now()));
        advance(Duration::from_secs(10)).await;
        assert!(lookup.wait_for(&tasks("5,7"), OpenLookup::now()));
        assert_eq!(ages(&lookup), shown(&[("7", 50), ("5", 0)]));
        lookup.wait_for(&TaskSet::default(), OpenLookup::now());
        assert_eq!(lookup.stored(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_array_that_loses_a_task_every_second_has_few_waves() {
        let mut lookup = OpenTaskLookup::default();
        for last in 0..60 {
            let missing = TaskSet::new(0..=last);
            assert!(lookup.wait_for(&missing, OpenLookup::now()));
            advance(Duration::from_secs(1)).await;
        }
        let waves = (0..6).map(|n| (format!("{}-{}", n * 10, n * 10 + 9), 60 - 10 * n));
        assert_eq!(ages(&lookup), waves.collect::<Vec<_>>());
        // Its last task has been missing for a second, so nothing proves its absence before.
        let newest = lookup.waves().last().unwrap();
        assert_eq!(newest.open.waited(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_an_earlier_version_stored_is_continued() {
        let stored = r#"{"w":90,"n":2,"r":1,"t":"3-4","o":{"u":"alice"},"j":"AAA="}"#;
        let lookup = OpenTaskLookup::of(&serde_json::from_str(stored).unwrap());
        assert_eq!(ages(&lookup), shown(&[("3-4", 90)]));
        let again = lookup.stored().unwrap();
        assert_eq!((again.answers, again.restarts), (2, 2));
        assert!(again.later.is_empty());
    }
}
