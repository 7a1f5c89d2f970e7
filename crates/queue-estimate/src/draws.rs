//! Forward runs of the present queue with drawn run times, without new arrivals: the median of a plan is not the plan of medians, so
//! whole queues are drawn.

use crate::forward::{Forward, Held, Queued};
use crate::history::RunTimes;
use crate::plan::{Profile, Request};
use crate::queue::{Seconds, Snapshot};
use crate::random::Random;

/// Forward runs.
pub const DRAWS: usize = 32;
/// Waiting jobs per pool that are looked at, in order of priority.
pub const MAX_DRAWN: usize = 500;
/// Waiting jobs per pool that the conservative plan places.
pub const MAX_PLANNED: usize = 5_000;

/// Starts of the jobs asked about, by their place in the snapshot.
#[derive(Debug, Default)]
pub struct Starts {
    /// Planned start: Slurm's own, else the conservative plan's.
    pub plan: Vec<Option<Seconds>>,
    /// Start in each forward run, sorted. Empty if the job was not reached.
    pub draws: Vec<Vec<Seconds>>,
}

/// Plans and draws the queue until the jobs asked about, given by their index, have started.
pub fn starts(snapshot: &Snapshot, asked: &[usize], runs: &RunTimes, draws: usize) -> Starts {
    let mut found = Starts {
        plan: vec![None; snapshot.waiting.len()],
        draws: vec![Vec::new(); snapshot.waiting.len()],
    };
    let mut is_asked = vec![false; snapshot.waiting.len()];
    for index in asked {
        is_asked[*index] = true;
    }
    let mut earliest: Vec<Vec<Option<Seconds>>> = Vec::new();
    earliest.resize_with(draws, || vec![None; snapshot.waiting.len()]);
    for pool in 0..snapshot.pools.len() {
        let queue: Vec<usize> = (0..snapshot.waiting.len())
            .filter(|index| snapshot.waiting[*index].pools.contains(&pool))
            .collect();
        plan(snapshot, pool, &queue, &is_asked, &mut found.plan);
        draw(
            snapshot,
            pool,
            &queue[..queue.len().min(MAX_DRAWN)],
            &is_asked,
            runs,
            &mut earliest,
        );
    }
    for index in asked {
        if let Some(planned) = snapshot.waiting[*index].planned {
            found.plan[*index] = Some(planned.max(snapshot.at));
        }
        let mut starts: Vec<Seconds> = earliest.iter().filter_map(|draw| draw[*index]).collect();
        starts.sort_unstable();
        if starts.len() == draws {
            found.draws[*index] = starts;
        }
    }
    found
}

fn plan(
    snapshot: &Snapshot,
    pool: usize,
    queue: &[usize],
    is_asked: &[bool],
    starts: &mut [Option<Seconds>],
) {
    // Nobody behind the last job without a plan of Slurm's is looked at.
    let needs = |index: &usize| is_asked[*index] && snapshot.waiting[*index].planned.is_none();
    let Some(last) = queue.iter().rposition(needs) else {
        return;
    };
    let running = snapshot.running.iter().filter(|job| job.pool == pool);
    let running: Vec<_> = running
        .map(|job| (job.size, job.start.saturating_add(job.limit)))
        .collect();
    let mut profile = Profile::new(&snapshot.pools[pool], snapshot.at, &running);
    for index in queue.iter().take(MAX_PLANNED.min(last + 1)) {
        let job = &snapshot.waiting[*index];
        let start = profile.place(Request {
            size: job.size,
            limit: job.limit,
        });
        starts[*index] = match (starts[*index], start) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
}

fn draw(
    snapshot: &Snapshot,
    pool: usize,
    queue: &[usize],
    is_asked: &[bool],
    runs: &RunTimes,
    earliest: &mut [Vec<Option<Seconds>>],
) {
    if !queue.iter().any(|index| is_asked[*index]) {
        return;
    }
    let now = snapshot.at;
    let running: Vec<_> = snapshot
        .running
        .iter()
        .filter(|job| job.pool == pool)
        .collect();
    let mut forward = Forward::default();
    let mut queued = Vec::with_capacity(queue.len());
    let mut starts = Vec::new();
    for (number, earliest) in earliest.iter_mut().enumerate() {
        let random = |job: u64| Random::seeded(&[now as u64, job, number as u64]);
        let held = running.iter().map(|job| {
            let elapsed = (now - job.start).max(0);
            let run = runs
                .of(job.user)
                .run_given(job.limit, elapsed, &mut random(job.job.0));
            let limit_end = job.start.saturating_add(job.limit).max(now + 1);
            Held {
                size: job.size,
                end: job.start.saturating_add(run).max(now + 1),
                limit_end,
            }
        });
        queued.clear();
        queued.extend(queue.iter().map(|index| {
            let job = &snapshot.waiting[*index];
            let run = runs.of(job.user).run(job.limit, &mut random(job.job.0));
            Queued {
                size: job.size,
                limit: job.limit,
                run,
                submit: now,
            }
        }));
        let is_awaited = |place: usize| is_asked[queue[place]];
        forward.run(
            &snapshot.pools[pool],
            now,
            held,
            &queued,
            is_awaited,
            &mut starts,
        );
        for (place, start) in starts.iter().enumerate() {
            let earliest = &mut earliest[queue[place]];
            *earliest = match (*earliest, *start) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Pool, Resources};

    const JOBS: [(i64, Seconds, Seconds); 3] =
        [(8, 7_200, 5_000), (4, 3_000, 1_200), (2, 600, 300)];

    #[test]
    fn plan_of_limits_in_order_of_priority() {
        let pool = Pool {
            capacity: Resources::cpus(10),
            ..Pool::default()
        };
        let running = [(Resources::cpus(6), 3_600), (Resources::cpus(4), 600)];
        let mut profile = Profile::new(&pool, 0, &running);
        let starts = JOBS.map(|(size, limit, _)| {
            profile.place(Request {
                size: Resources::cpus(size),
                limit,
            })
        });
        assert_eq!(starts, [Some(3_600), Some(600), Some(3_600)]);
    }

    #[test]
    fn forward_run_backfills_what_its_limit_ends_before_the_reservation() {
        let pool = Pool {
            capacity: Resources::cpus(10),
            ..Pool::default()
        };
        let held = |size, end, limit_end| Held {
            size: Resources::cpus(size),
            end,
            limit_end,
        };
        let queue = JOBS.map(|(size, limit, run)| Queued {
            size: Resources::cpus(size),
            limit,
            run,
            submit: 0,
        });
        let mut starts = Vec::new();
        let running = [held(6, 900, 3_600), held(4, 600, 600)].into_iter();
        Forward::default().run(&pool, 0, running, &queue, |_| true, &mut starts);
        assert_eq!(starts, [Some(1_800), Some(600), Some(900)]);
    }

    #[test]
    fn a_limit_that_reaches_into_a_reservation_waits_for_its_end() {
        let reserved = crate::queue::Reserved {
            start: 1_000,
            end: 5_000,
            size: Resources::cpus(10),
        };
        let pool = Pool {
            capacity: Resources::cpus(10),
            reserved: vec![reserved],
        };
        let mut profile = Profile::new(&pool, 0, &[]);
        let mut place = |limit| {
            profile.place(Request {
                size: Resources::cpus(5),
                limit,
            })
        };
        assert_eq!([place(1_001), place(1_000)], [Some(5_000), Some(0)]);
        let queued = |limit| Queued {
            size: Resources::cpus(5),
            limit,
            run: 100,
            submit: 0,
        };
        let mut starts = Vec::new();
        let queue = [queued(1_001), queued(1_000)];
        Forward::default().run(&pool, 0, [].into_iter(), &queue, |_| true, &mut starts);
        assert_eq!(starts, [Some(5_000), Some(0)]);
    }

    #[test]
    fn what_never_fits_has_no_start() {
        let pool = Pool {
            capacity: Resources::cpus(10),
            ..Pool::default()
        };
        let mut profile = Profile::new(&pool, 0, &[]);
        assert_eq!(
            profile.place(Request {
                size: Resources::cpus(11),
                limit: 60
            }),
            None
        );
        let queue = [Queued {
            size: Resources::cpus(11),
            limit: 60,
            run: 60,
            submit: 0,
        }];
        let mut starts = Vec::new();
        Forward::default().run(&pool, 0, [].into_iter(), &queue, |_| true, &mut starts);
        assert_eq!(starts, [None]);
    }
}
