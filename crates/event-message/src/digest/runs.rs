//! The current run of each task of an array.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Tasks;

/// Maximum tasks whose runs differ from the base run.
const MAX_RERUNS: usize = 100_000;

/// The last run of each task, as a number that orders runs. Most tasks run once, submitted with the array: only the
/// others take space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TaskRuns {
    /// The run of most tasks.
    base: i64,
    /// Known tasks.
    seen: Tasks,
    /// Tasks in other runs, with their run.
    reruns: BTreeMap<u32, i64>,
}

/// How a run compares with the known run of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunOrder {
    /// A later run is known.
    Older,
    /// It is the known run.
    Same,
    /// It is the first or a later run.
    Newer,
}

impl TaskRuns {
    /// Records a task's run.
    pub fn enter(&mut self, task: u32, run: i64) -> RunOrder {
        if self.seen.is_empty() {
            self.base = run;
        } else if run < self.base {
            // The base was not the first run: the tasks seen so far become exceptions.
            for other in self.seen.iter() {
                self.reruns.entry(other).or_insert(self.base);
            }
            self.base = run;
        }
        let rerun = self.reruns.get(&task).copied();
        let current = rerun.or(self.seen.contains(task).then_some(self.base));
        match current {
            Some(current) if current > run => return RunOrder::Older,
            Some(current) if current == run => return RunOrder::Same,
            _ => {}
        }
        if run == self.base {
            self.reruns.remove(&task);
        } else if rerun.is_some() || self.reruns.len() < MAX_RERUNS {
            self.reruns.insert(task, run);
        } else if current.is_some() {
            // The limit is reached: the task stays in its known run.
            return RunOrder::Older;
        }
        self.seen.insert(task);
        RunOrder::Newer
    }
}
