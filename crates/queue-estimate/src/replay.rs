//! A trace of jobs through the estimator, in the order of its events: an estimate never sees what happened later.

pub mod generate;
pub mod report;
pub mod sacct;
pub mod schedule;
pub mod swf;
mod trace;
pub mod what_if_scores;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use crate::estimator::{Estimate, Estimator, MIN_WAIT};
use crate::history::Class;
use crate::quality::Outcome;
use crate::queue::{Key, Seconds};

pub use trace::{Trace, TraceJob};

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

    /// A job starts, or is cancelled. True if it starts.
    fn leave(&mut self, index: usize, time: Seconds) -> bool {
        self.waiting.remove(&self.trace.order(index));
        let job = &self.trace.jobs[index];
        let rows = self.open.remove(&index).unwrap_or_default();
        if job.cancelled {
            self.estimator.cancelled(Trace::key(index), time);
            return false;
        }
        let class = Class::of(
            Key::of(&job.partition),
            job.size,
            self.trace.capacity,
            job.limit,
        );
        self.estimator
            .started(Trace::key(index), class, time - job.eligible, time);
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
        let running = self.running.iter().map(|(index, start)| (*index, *start));
        let waiting = self.waiting.iter().map(|(_, index)| *index);
        let snapshot = self.trace.snapshot(time, running, waiting);
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
