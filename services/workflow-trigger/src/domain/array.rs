//! Retries of arrays: the tasks that failed run again together.
//!
//! The first failure of an array makes the run, and later ones join it until it acts. Each task goes back into the queue, held, soon after it
//! failed, as the controller purges it after `MinJobAge`. Once nothing of the array is left to run, or after a limit, all of them are changed
//! and released. Which tasks that are follows from what is stored and what the controller shows, so that every step may be repeated.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::EventType;
use mesh_events::proto::mesh::job::v1::Job;
use serde::{Deserialize, Serialize};
use slurm_submit::{ArrayRecord, JobUpdate};
use slurm_types::{JobBaseState, JobFlag, JobId, JobRef, TaskSet};

/// How long after a task's end its event may come: one that a process had read when it was killed comes again after a minute, the `ack_wait`
/// of the catalogue.
const EVENT_DELAY: TimeDelta = TimeDelta::seconds(90);
/// Tasks that one request names: the text stays well below the longest argument of a command.
const MAX_TASKS_PER_REQUEST: usize = 1_000;

/// A task of an array that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedTask {
    /// The array.
    pub array: JobId,
    /// The task's index.
    pub task: u32,
    /// The task's own job. That of the last task is the array, so a request names tasks by their indexes.
    pub job_id: JobId,
    /// Its restarts at that time. A task that Slurm or somebody has requeued has more.
    pub restarts: u32,
    /// Type of the event.
    pub cause: String,
    /// What changes before it runs again.
    pub changes: JobUpdate,
}

/// A task of an array as requests name it: the job id of an array's last task is the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayTask {
    /// The array.
    pub array: JobId,
    /// The task's index.
    pub task: u32,
}

impl ArrayTask {
    /// The task that a job is. `None` for other jobs.
    pub fn of(job: &Job) -> Option<Self> {
        let array = job.array.as_ref()?;
        Some(Self {
            array: JobId::new(array.job_id)?,
            task: array.task_id?,
        })
    }

    /// Its name in requests.
    pub const fn reference(self) -> JobRef {
        JobRef::ArrayTask {
            array: self.array,
            task: self.task,
        }
    }
}

impl FailedTask {
    /// The task of an array that an event is about, without changes. `None` for other jobs.
    pub fn of(kind: EventType, job: &Job) -> Option<Self> {
        let ArrayTask { array, task } = ArrayTask::of(job)?;
        Some(Self {
            array,
            task,
            job_id: JobId::new(job.job_id)?,
            restarts: job.restarts.unwrap_or(0),
            cause: kind.to_string(),
            changes: JobUpdate::default(),
        })
    }
}

/// A task of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTask {
    /// The task.
    pub failed: FailedTask,
    /// Whether a requeue of it may have been sent.
    pub is_sent: bool,
}

/// A run's tasks beside what the controller shows of the array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Tasks that are as they failed: to be requeued.
    pub failed: BTreeSet<u32>,
    /// Tasks that the run has requeued: held, to be changed and released.
    pub held: BTreeSet<u32>,
    /// Tasks whose epilog still runs: they cannot be requeued yet.
    pub ending: BTreeSet<u32>,
    /// Tasks that run again without doing of this run, or after it.
    pub running_again: BTreeSet<u32>,
    /// Tasks that the controller no longer has.
    pub absent: BTreeSet<u32>,
    /// Records of the array that have not ended, besides the run's tasks.
    pub unfinished: usize,
    /// Whether the event of another failure may be on its way.
    pub awaits_events: bool,
}

impl Comparison {
    /// Compares. `since`: when the run was made or this process was started, whichever is later. Events of tasks that ended before may still
    /// come: the run may be made of the first of many old events, and what an earlier process had read comes again.
    pub fn new(
        tasks: &[StoredTask],
        shown: &[ArrayRecord],
        since: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Self {
        let mut comparison = Self::default();
        // One that failed twice before the run acted is the later one.
        let mut stored: BTreeMap<u32, &StoredTask> = BTreeMap::new();
        for task in tasks {
            let known = stored.entry(task.failed.task).or_insert(task);
            if task.failed.restarts > known.failed.restarts {
                *known = task;
            }
        }
        for record in shown {
            match record.task.and_then(|task| stored.remove(&task)) {
                Some(task) => comparison.add_own(task, record),
                None => comparison.add_other(record, since, now),
            }
        }
        comparison.absent = stored.into_keys().collect();
        comparison
    }

    fn add_own(&mut self, task: &StoredTask, record: &ArrayRecord) {
        let (before, now) = (task.failed.restarts, record.restarts);
        let place = if record.state.has(JobFlag::Completing) {
            &mut self.ending
        } else if record.state.finished() && now == before {
            &mut self.failed
        } else if task.is_sent && record.held && now == before.saturating_add(1) {
            &mut self.held
        } else {
            &mut self.running_again
        };
        place.insert(task.failed.task);
    }

    fn add_other(&mut self, record: &ArrayRecord, since: DateTime<Utc>, now: DateTime<Utc>) {
        if !record.state.is_terminal() {
            // What is held does not run: another run may hold it until this one has acted.
            self.unfinished += usize::from(!record.held);
            return;
        }
        let is_no_failure = [JobBaseState::Completed, JobBaseState::Cancelled]
            .into_iter()
            .any(|state| record.state.is(state));
        let end = record.end.map_or(0, |end| end.as_secs());
        let age = now.timestamp().saturating_sub(end.max(since.timestamp()));
        self.awaits_events |= !is_no_failure && age < EVENT_DELAY.num_seconds();
    }

    /// True if no other task of the array can fail any more.
    pub const fn is_complete(&self) -> bool {
        self.unfinished == 0 && !self.awaits_events
    }

    /// What the run waits for.
    pub fn awaited(&self) -> String {
        match self.unfinished {
            0 if !self.ending.is_empty() => "waits for the epilogs of its tasks".to_owned(),
            0 => "waits for events of tasks that failed just now".to_owned(),
            number => format!("waits for {number} other tasks of the array"),
        }
    }

    /// What was not retried, and why. Empty if everything was.
    pub fn not_retried(&self) -> String {
        let named = |tasks: &BTreeSet<u32>, why: &str| {
            let set = TaskSet::new(tasks.iter().copied());
            (!tasks.is_empty()).then(|| format!("tasks {set}: {why}"))
        };
        let problems = [
            named(&self.failed, "not requeued"),
            named(&self.ending, "their epilogs have not ended"),
            named(&self.running_again, "run again already"),
            named(
                &self.absent,
                "the controller no longer has them (MinJobAge)",
            ),
        ];
        let problems: Vec<String> = problems.into_iter().flatten().collect();
        problems.join("; ")
    }
}

/// The changes of these tasks by their cause: of each cause, the most that one of its tasks needs.
pub fn changes_by_cause(
    tasks: &[StoredTask],
    numbers: &BTreeSet<u32>,
) -> Vec<(BTreeSet<u32>, JobUpdate)> {
    let mut by_cause: BTreeMap<&str, (BTreeSet<u32>, JobUpdate)> = BTreeMap::new();
    for StoredTask { failed, .. } in tasks {
        if !numbers.contains(&failed.task) {
            continue;
        }
        let (of_cause, changes) = by_cause.entry(&failed.cause).or_default();
        of_cause.insert(failed.task);
        let JobUpdate {
            time,
            memory,
            nodes,
            partition,
            exclude,
        } = failed.changes.clone();
        changes.time = changes.time.max(time);
        changes.memory = changes.memory.max(memory);
        changes.nodes = changes.nodes.max(nodes);
        changes.partition = partition.or(changes.partition.take());
        changes.exclude = match (changes.exclude.take(), exclude) {
            (Some(some), Some(more)) if !some.split(',').any(|node| node == more) => {
                Some(format!("{some},{more}"))
            }
            (some, more) => some.or(more),
        };
    }
    let mut changed: Vec<_> = by_cause.into_values().collect();
    changed.retain(|(_, changes)| *changes != JobUpdate::default());
    changed
}

/// References to tasks of an array, each short enough for one request.
pub fn references(array: JobId, numbers: &BTreeSet<u32>) -> Vec<JobRef> {
    let numbers: Vec<u32> = numbers.iter().copied().collect();
    let chunks = numbers.chunks(MAX_TASKS_PER_REQUEST);
    let named = chunks.map(|chunk| JobRef::ArrayTasks {
        array,
        tasks: TaskSet::new(chunk.iter().copied()),
    });
    named.collect()
}

#[cfg(test)]
mod tests;
