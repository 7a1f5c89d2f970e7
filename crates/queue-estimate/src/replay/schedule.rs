//! Replaces the starts of a trace by those of EASY backfilling with three priority groups. A group costs a job some hours of age, as the
//! parts of Slurm's multifactor priority do.

use crate::forward::{ForwardSimulation, Queued};
use crate::queue::{Key, Pool, Seconds};

use super::Trace;

/// Groups of users.
const GROUPS: u64 = 3;
/// Age that a group costs.
const GROUP_AGE: Seconds = 6 * 3_600;

/// Schedules the jobs of the trace that ran. Jobs end at their time limit. Jobs that were cancelled while they waited are left out.
pub fn easy(trace: &mut Trace) {
    trace
        .jobs
        .retain(|job| !job.cancelled && job.size.fits(trace.capacity));
    trace.group_age = GROUP_AGE;
    let jobs = &mut trace.jobs;
    for job in jobs.iter_mut() {
        job.group = (Key::of(&job.user).0 % GROUPS) as i64;
    }
    let mut order: Vec<usize> = (0..trace.jobs.len()).collect();
    order.sort_by_key(|index| trace.order(*index));
    let jobs = &mut trace.jobs;
    let queue: Vec<Queued> = order
        .iter()
        .map(|index| {
            let job = &jobs[*index];
            let run = job.run.unwrap_or(job.limit).min(job.limit).max(1);
            Queued {
                size: job.size,
                limit: job.limit,
                run,
                submit: job.eligible,
            }
        })
        .collect();
    let pool = Pool {
        capacity: trace.capacity,
        ..Pool::default()
    };
    let mut starts = Vec::new();
    ForwardSimulation::default().run(
        &pool,
        Seconds::MIN / 2,
        [].into_iter(),
        &queue,
        |_| true,
        &mut starts,
    );
    for (place, index) in order.iter().enumerate() {
        jobs[*index].left = starts[place];
        jobs[*index].run = Some(queue[place].run);
    }
}
