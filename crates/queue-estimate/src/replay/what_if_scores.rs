//! Scores what-if: what a shorter time limit was said to do for a job, and what the scheduler does with it.

use crate::estimator::{Estimator, MIN_WAIT};
use crate::queue::{Key, Seconds, Snapshot, Waiting};
use crate::what_if::{Effect, MIN_GAIN, PROBABLE, Variant};

use super::{Trace, schedule};

/// The cut limit, as a part of the old one.
const PART: Seconds = 4;
/// Shortest wait of the jobs that are asked about.
const MIN_ASKED_WAIT: Seconds = 3_600;

/// One answer, and what was true.
#[derive(Clone, Copy, Debug)]
pub struct ScoredAnswer {
    /// What was said.
    pub effect: Effect,
    /// By how much the scheduler starts it earlier. Negative if later.
    pub gain: Seconds,
}

impl ScoredAnswer {
    /// True if it was said to start earlier.
    pub const fn is_said(&self) -> bool {
        self.effect.earlier >= PROBABLE
    }

    /// True if it does.
    pub const fn is_true(&self) -> bool {
        self.gain > MIN_GAIN
    }
}

/// Asks, for so many jobs that waited for more than an hour, what a quarter of their limits would do, and schedules the trace again for
/// each. The trace must be one of [`schedule::easy`].
pub fn score_shorter_limits(trace: &Trace, most: usize) -> Vec<ScoredAnswer> {
    // The first part only teaches run times.
    let late: Vec<usize> = (trace.jobs.len() / 10..trace.jobs.len())
        .filter(|index| waited(trace, *index) > MIN_ASKED_WAIT)
        .collect();
    let mut asked: Vec<usize> = late
        .iter()
        .step_by((late.len() / most.max(1)).max(1))
        .take(most)
        .copied()
        .collect();
    asked.sort_by_key(|index| trace.jobs[*index].eligible);
    let mut ends: Vec<(Seconds, usize)> = (0..trace.jobs.len())
        .filter_map(|index| {
            let job = &trace.jobs[index];
            Some((job.left? + job.run?, index))
        })
        .collect();
    ends.sort_unstable();
    let mut ends = ends.into_iter().peekable();
    let mut estimator = Estimator::default();
    let mut answers = Vec::new();
    for index in asked {
        let at = trace.jobs[index].eligible + MIN_WAIT;
        while let Some((end, index)) = ends.next_if(|(end, _)| *end <= at) {
            let job = &trace.jobs[index];
            let run = job.run.unwrap_or(0);
            estimator.ended(Key::of(&job.user), run, job.limit, end);
        }
        let (snapshot, position) = snapshot(trace, at, index);
        let job = snapshot.waiting[position].clone();
        let limit = (job.limit / PART).max(1);
        let variant = Variant {
            job: Waiting { limit, ..job },
            position,
        };
        let effects = estimator.what_if(&snapshot, position, &[variant]);
        let Some(effect) = effects.and_then(|mut effects| effects.pop().flatten()) else {
            continue;
        };
        let mut changed = trace.clone();
        changed.jobs[index].limit = limit;
        schedule::easy(&mut changed);
        if let (Some(before), Some(after)) = (trace.jobs[index].left, changed.jobs[index].left) {
            let gain = before - after;
            answers.push(ScoredAnswer { effect, gain });
        }
    }
    answers
}

fn waited(trace: &Trace, index: usize) -> Seconds {
    let job = &trace.jobs[index];
    job.left.map_or(0, |left| left - job.eligible)
}

/// The queue at a time, and the job's position in it.
fn snapshot(trace: &Trace, at: Seconds, asked: usize) -> (Snapshot, usize) {
    let mut waiting = Vec::new();
    let mut running = Vec::new();
    for (index, job) in trace.jobs.iter().enumerate() {
        let (Some(start), Some(run)) = (job.left, job.run) else {
            continue;
        };
        if job.eligible <= at && start > at {
            waiting.push(index);
        } else if start <= at && start + run > at {
            running.push((index, start));
        }
    }
    waiting.sort_by_key(|index| trace.order(*index));
    let position = waiting.iter().position(|index| *index == asked);
    let snapshot = trace.snapshot(at, running.into_iter(), waiting.into_iter());
    (snapshot, position.unwrap_or(0))
}
