//! A trace of jobs through the estimator, in the order of its events: an estimate never sees what happened later.

pub mod generate;
pub mod report;
pub mod sacct;
pub mod schedule;
pub mod swf;
pub mod what_if_scores;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use crate::estimator::{Estimate, Estimator, MIN_WAIT};
use crate::history::Class;
use crate::quality::Outcome;
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
    fn end(&self) -> Seconds {
        let last = |job: &TraceJob| {
            job.left
                .map_or(job.eligible, |left| left + job.run.unwrap_or(0))
        };
        self.cut_at
            .unwrap_or_else(|| self.jobs.iter().map(last).max().unwrap_or(0))
    }

    /// Where the job stands in the order in which the scheduler looks at jobs.
    fn order(&self, index: usize) -> (Seconds, usize) {
        let job = &self.jobs[index];
        (job.eligible + job.group * self.group_age, index)
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

/// One estimate of a replay, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index of the job in the trace.
    pub job: usize,
    /// The estimate.
    pub estimate: Estimate,
    /// Starts of jobs that had waited, when it was made.
    pub starts: u64,
    /// When the job started. `None` if it had not by the end, or was cancelled.
    pub started_at: Option<Seconds>,
}

impl Row {
    /// The scored estimate, if its job started.
    pub fn outcome(&self) -> Option<Outcome> {
        Some(Outcome::of(&self.estimate, self.started_at?))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    End,
    Leave,
    Submit,
    Estimate,
}

/// Replays a trace with a first estimate of each job that waits for longer than 30 s, and another at each multiple of `every` while it
/// waits. `progress` gets the number of jobs submitted so far, and ends the replay by returning false.
pub fn replay(trace: &Trace, every: Seconds, mut progress: impl FnMut(usize) -> bool) -> Vec<Row> {
    let mut replay = Replay::new(trace);
    let mut events = BinaryHeap::new();
    for (index, job) in trace.jobs.iter().enumerate() {
        events.push(Reverse((job.eligible, EventKind::Submit, index)));
    }
    let mut asked: Vec<usize> = Vec::new();
    let mut submitted = 0;
    let end = trace.end();
    while let Some(Reverse((time, kind, index))) = events.pop() {
        let job = &trace.jobs[index];
        match kind {
            EventKind::Submit => {
                replay.waiting.insert(trace.order(index));
                if time + MIN_WAIT <= end {
                    events.push(Reverse((time + MIN_WAIT, EventKind::Estimate, index)));
                }
                if let Some(left) = job.left {
                    events.push(Reverse((left, EventKind::Leave, index)));
                }
                submitted += 1;
                if !progress(submitted) {
                    return replay.rows;
                }
            }
            EventKind::Leave => {
                if replay.leave(index, time)
                    && let Some(run) = job.run
                {
                    events.push(Reverse((time + run, EventKind::End, index)));
                }
            }
            EventKind::End => replay.end(index, time),
            EventKind::Estimate => {
                if replay.waits(index) {
                    asked.push(index);
                    // Later estimates are asked for together, like those of a snapshot.
                    let next = (time / every + 1) * every;
                    let next = if next - time < every / 2 {
                        next + every
                    } else {
                        next
                    };
                    if next <= end {
                        events.push(Reverse((next, EventKind::Estimate, index)));
                    }
                }
            }
        }
        let more =
            matches!(events.peek(), Some(Reverse((at, EventKind::Estimate, _))) if *at == time);
        if !asked.is_empty() && !more {
            replay.ask(time, &std::mem::take(&mut asked));
        }
    }
    replay.rows
}

struct Replay<'a> {
    trace: &'a Trace,
    estimator: Estimator,
    /// Waiting jobs in the order in which the scheduler looks at them.
    waiting: BTreeSet<(Seconds, usize)>,
    running: BTreeMap<usize, Seconds>,
    rows: Vec<Row>,
    /// Rows of open estimates by job.
    open: HashMap<usize, Vec<usize>>,
}

impl<'a> Replay<'a> {
    fn new(trace: &'a Trace) -> Self {
        Self {
            trace,
            estimator: Estimator::default(),
            waiting: BTreeSet::new(),
            running: BTreeMap::new(),
            rows: Vec::new(),
            open: HashMap::new(),
        }
    }

    fn waits(&self, index: usize) -> bool {
        self.waiting.contains(&self.trace.order(index))
    }

    fn key(index: usize) -> Key {
        Key(index as u64)
    }

    /// A job starts, or is cancelled. True if it starts.
    fn leave(&mut self, index: usize, time: Seconds) -> bool {
        self.waiting.remove(&self.trace.order(index));
        let job = &self.trace.jobs[index];
        let rows = self.open.remove(&index).unwrap_or_default();
        if job.cancelled {
            self.estimator.cancelled(Self::key(index), time);
            return false;
        }
        let class = Class::of(
            Key::of(&job.partition),
            job.size,
            self.trace.capacity,
            job.limit,
        );
        self.estimator
            .started(Self::key(index), class, time - job.eligible, time);
        for row in rows {
            self.rows[row].started_at = Some(time);
        }
        self.running.insert(index, time);
        true
    }

    fn end(&mut self, index: usize, time: Seconds) {
        let start = self.running.remove(&index);
        let job = &self.trace.jobs[index];
        if let Some(start) = start {
            self.estimator
                .ended(Key::of(&job.user), time - start, job.limit, time);
        }
    }

    fn ask(&mut self, time: Seconds, asked: &[usize]) {
        let jobs = &self.trace.jobs;
        let running = self.running.iter().map(|(index, start)| Running {
            job: Self::key(*index),
            user: Key::of(&jobs[*index].user),
            pool: 0,
            size: jobs[*index].size,
            start: *start,
            limit: jobs[*index].limit,
        });
        let waiting = self.waiting.iter().map(|(_, index)| {
            let job = &jobs[*index];
            Waiting {
                job: Self::key(*index),
                user: Key::of(&job.user),
                partition: Key::of(&job.partition),
                pools: vec![0],
                size: job.size,
                eligible: job.eligible,
                limit: job.limit,
                planned: None,
            }
        });
        let snapshot = Snapshot {
            at: time,
            pools: vec![Pool {
                capacity: self.trace.capacity,
                ..Pool::default()
            }],
            running: running.collect(),
            waiting: waiting.collect(),
        };
        let is_asked: BTreeSet<usize> = asked.iter().copied().collect();
        let positions = self
            .waiting
            .iter()
            .enumerate()
            .map(|(position, (_, index))| (position, *index));
        let positions: Vec<(usize, usize)> = positions
            .filter(|(_, index)| is_asked.contains(index))
            .collect();
        let indices: Vec<usize> = positions.iter().map(|(position, _)| *position).collect();
        let estimates = self.estimator.estimate(&snapshot, &indices);
        for ((_, job), estimate) in positions.into_iter().zip(estimates) {
            self.open.entry(job).or_default().push(self.rows.len());
            self.estimator.record(estimate.clone());
            self.rows.push(Row {
                job,
                estimate,
                starts: self.estimator.starts(),
                started_at: None,
            });
        }
    }
}
