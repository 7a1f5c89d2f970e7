//! Replaces the starts of a trace by those of EASY backfilling with its priority groups, as Slurm's scheduler would decide.

use crate::forward::{Forward, Queued};
use crate::queue::{Key, Pool, Seconds};

use super::Trace;

/// Schedules the jobs of the trace that ran. Jobs end at their time limit. Jobs that were cancelled while they waited are left out.
pub fn easy(trace: &mut Trace) {
    trace.jobs.retain(|job| !job.cancelled && job.size.fits(trace.capacity));
    let jobs = &mut trace.jobs;
    trace.by_group = true;
    if jobs.windows(2).all(|pair| pair[0].group == pair[1].group) {
        // Without queues: three groups of users.
        for job in jobs.iter_mut() {
            job.group = (Key::of(&job.user).0 % 3) as i64;
        }
    }
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|index| (jobs[*index].group, jobs[*index].eligible, *index));
    let queue: Vec<Queued> = order
        .iter()
        .map(|index| {
            let job = &jobs[*index];
            let run = job.run.unwrap_or(job.limit).min(job.limit).max(1);
            Queued { size: job.size, limit: job.limit, run, submit: job.eligible }
        })
        .collect();
    let pool = Pool { capacity: trace.capacity, ..Pool::default() };
    let mut starts = Vec::new();
    let all = queue.len();
    Forward::default().run(&pool, Seconds::MIN / 2, [].into_iter(), &queue, all, |_| true, &mut starts);
    for (place, index) in order.iter().enumerate() {
        jobs[*index].left = starts[place];
        jobs[*index].run = Some(queue[place].run);
    }
}
