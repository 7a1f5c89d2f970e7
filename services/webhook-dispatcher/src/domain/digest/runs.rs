//! Which run each task of an array is in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Tasks;

/// Tasks in other runs than most that are told apart.
const MOST_RERUNS: usize = 100_000;

/// The last run of each task, by a number that orders runs. Most tasks run once, all submitted with the array: only the others take room.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TaskRuns {
    /// The run most tasks are in.
    base: i64,
    /// Tasks that are known.
    seen: Tasks,
    /// Tasks in other runs, and which.
    reruns: BTreeMap<u32, i64>,
}

/// How a run relates to what was known of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunOrder {
    /// The task is known to be in a later one.
    Older,
    /// It is the run the task is in.
    Same,
    /// It is the first, or a later one.
    Newer,
}

impl TaskRuns {
    /// A task was seen in a run.
    pub fn enter(&mut self, task: u32, run: i64) -> RunOrder {
        if self.seen.is_empty() {
            self.base = run;
        } else if run < self.base {
            // What came first was no first run: those seen so far are the exceptions.
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
        } else if rerun.is_some() || self.reruns.len() < MOST_RERUNS {
            self.reruns.insert(task, run);
        } else if current.is_some() {
            // Too many to tell apart: such a task stays in the run it is known in.
            return RunOrder::Older;
        }
        self.seen.insert(task);
        RunOrder::Newer
    }
}
