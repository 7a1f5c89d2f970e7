//! A trace: the jobs of a machine, with what became of them.

use crate::queue::{Key, Pool, Resources, Running, Seconds, Snapshot, Waiting};

/// A job of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceJob {
    /// Its id.
    pub id: String,
    /// Since when it is eligible.
    pub eligible: Seconds,
    /// When it started, or was cancelled. `None` if it still waits at the end of the trace.
    pub left: Option<Seconds>,
    /// Run time. `None` if it never started, or still runs at the end of the trace.
    pub run: Option<Seconds>,
    /// True if it was cancelled while it waited.
    pub cancelled: bool,
    /// What it asked for.
    pub size: Resources,
    /// Time limit.
    pub limit: Seconds,
    /// Owner.
    pub user: String,
    /// Partition or queue.
    pub partition: String,
    /// Priority group, from 0 for the highest.
    pub group: i64,
}

/// A trace.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// What the machine has.
    pub capacity: Resources,
    /// Jobs in the order of their eligible times.
    pub jobs: Vec<TraceJob>,
    /// How many seconds of age a group costs: the scheduler takes the jobs by `eligible + group × group_age`. 0 if its order is unknown,
    /// and taken to be that of submission.
    pub group_age: Seconds,
    /// When the trace was cut. `None` if it goes on to its last event.
    pub cut_at: Option<Seconds>,
}

impl Trace {
    /// Time of the last event.
    pub(super) fn end(&self) -> Seconds {
        let last = |job: &TraceJob| {
            job.left
                .map_or(job.eligible, |left| left + job.run.unwrap_or(0))
        };
        self.cut_at
            .unwrap_or_else(|| self.jobs.iter().map(last).max().unwrap_or(0))
    }

    /// Where the job stands in the order in which the scheduler looks at jobs.
    pub(super) fn order(&self, index: usize) -> (Seconds, usize) {
        let job = &self.jobs[index];
        (job.eligible + job.group * self.group_age, index)
    }

    /// The queue at a time: the running jobs with their starts, and the waiting jobs in the order in which the scheduler looks at them.
    pub(super) fn snapshot(
        &self,
        at: Seconds,
        running: impl Iterator<Item = (usize, Seconds)>,
        waiting: impl Iterator<Item = usize>,
    ) -> Snapshot {
        let running = running.map(|(index, start)| {
            let job = &self.jobs[index];
            Running {
                job: Self::key(index),
                user: Key::of(&job.user),
                pool: 0,
                size: job.size,
                start,
                limit: job.limit,
            }
        });
        let waiting = waiting.map(|index| {
            let job = &self.jobs[index];
            Waiting {
                job: Self::key(index),
                user: Key::of(&job.user),
                partition: Key::of(&job.partition),
                pools: vec![0],
                size: job.size,
                eligible: job.eligible,
                limit: job.limit,
                planned: None,
            }
        });
        Snapshot {
            at,
            pools: vec![Pool {
                capacity: self.capacity,
                ..Pool::default()
            }],
            running: running.collect(),
            waiting: waiting.collect(),
        }
    }

    pub(super) fn key(index: usize) -> Key {
        Key(index as u64)
    }

    /// What is known at `time`: later submissions are missing, later starts and ends have not happened.
    #[must_use]
    pub fn until(&self, time: Seconds) -> Self {
        let jobs = self.jobs.iter().filter(|job| job.eligible <= time).cloned();
        let jobs = jobs.map(|mut job| {
            let end = job.left.zip(job.run).map(|(start, run)| start + run);
            if end.is_some_and(|end| end > time) {
                job.run = None;
            }
            if job.left.is_some_and(|left| left > time) {
                (job.left, job.run, job.cancelled) = (None, None, false);
            }
            job
        });
        Self {
            capacity: self.capacity,
            jobs: jobs.collect(),
            group_age: self.group_age,
            cut_at: Some(time),
        }
    }
}
