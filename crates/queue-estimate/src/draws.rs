//! ForwardSimulation runs of the present queue with drawn run times, without new arrivals: the median of a plan is not the plan of medians, so
//! whole queues are drawn.

use std::collections::BTreeMap;

use crate::forward::{Allocation, ForwardSimulation, Queued};
use crate::history::RunTimes;
use crate::plan::{Request, ResourceProfile};
use crate::queue::{Running, Seconds, Snapshot};
use crate::random::Random;

/// ForwardSimulation runs.
pub const DRAWS: usize = 32;
/// Waiting jobs per pool that are looked at, in order of priority.
pub const MAX_DRAWN: usize = 500;
/// Waiting jobs per pool that the conservative plan places.
pub const MAX_PLANNED: usize = 5_000;

/// Start of a job that a run did not reach.
const NEVER: Seconds = Seconds::MAX;

/// Starts of the jobs asked about, by their index in the snapshot.
#[derive(Debug, Default)]
pub struct StartsByJob {
    /// Planned start: Slurm's own, else the conservative plan's.
    pub plan: Vec<Option<Seconds>>,
    /// Start in each forward run, sorted. Empty if the job was not reached.
    pub draws: Vec<Vec<Seconds>>,
}

/// Plans and draws the queue until the jobs asked about, given by their index, have started.
pub fn starts(snapshot: &Snapshot, asked: &[usize], runs: &RunTimes, draws: usize) -> StartsByJob {
    let mut found = StartsByJob {
        plan: vec![None; snapshot.waiting.len()],
        draws: vec![Vec::new(); snapshot.waiting.len()],
    };
    let mut drawn = DrawnStarts::new(snapshot, asked, draws);
    for pool in 0..snapshot.pools.len() {
        let queue: Vec<usize> = (0..snapshot.waiting.len())
            .filter(|index| snapshot.waiting[*index].pools.contains(&pool))
            .collect();
        plan(snapshot, pool, &queue, &drawn, &mut found.plan);
        let reached = &queue[..queue.len().min(MAX_DRAWN)];
        if reached.iter().any(|index| drawn.is_asked(*index)) {
            let running = running(snapshot, pool, runs, draws);
            draw(snapshot, pool, &running, reached, runs, &mut drawn);
        }
    }
    for index in asked {
        if let Some(planned) = snapshot.waiting[*index].planned {
            found.plan[*index] = Some(planned.max(snapshot.at));
        }
        if let Some(mut starts) = drawn.of(*index) {
            starts.sort_unstable();
            found.draws[*index] = starts;
        }
    }
    found
}

/// Drawn ends of the running jobs, by pool and run. They are the same for all queues of a snapshot.
pub type RunningDraws = BTreeMap<usize, Vec<Vec<Allocation>>>;

/// The start of one job in each forward run, by the run's number. `None` if not all runs reach it.
pub fn by_draw(
    snapshot: &Snapshot,
    asked: usize,
    runs: &RunTimes,
    draws: usize,
    known: &mut RunningDraws,
) -> Option<Vec<Seconds>> {
    let job = snapshot.waiting.get(asked)?;
    let mut drawn = DrawnStarts::new(snapshot, &[asked], draws);
    for pool in &job.pools {
        let queue: Vec<usize> = (0..snapshot.waiting.len())
            .filter(|index| snapshot.waiting[*index].pools.contains(pool))
            .take(MAX_DRAWN)
            .collect();
        if queue.contains(&asked) {
            let running = known
                .entry(*pool)
                .or_insert_with(|| running(snapshot, *pool, runs, draws));
            draw(snapshot, *pool, running, &queue, runs, &mut drawn);
        }
    }
    drawn.of(asked)
}

/// Earliest starts of the jobs asked about. Of the others none is stored, so that a question about one of 100,000 jobs is cheap.
struct DrawnStarts {
    /// Column of each job that is asked about.
    columns: Vec<Option<usize>>,
    /// By run and column; [`NEVER`] if it was not reached.
    earliest: Vec<Vec<Seconds>>,
}

impl DrawnStarts {
    fn new(snapshot: &Snapshot, asked: &[usize], draws: usize) -> Self {
        let mut columns = vec![None; snapshot.waiting.len()];
        for (column, index) in asked.iter().enumerate() {
            columns[*index] = Some(column);
        }
        Self {
            columns,
            earliest: vec![vec![NEVER; asked.len()]; draws],
        }
    }

    fn is_asked(&self, index: usize) -> bool {
        self.columns[index].is_some()
    }

    /// A job in several pools starts in the first one.
    fn note(&mut self, number: usize, index: usize, start: Option<Seconds>) {
        if let Some((column, start)) = self.columns[index].zip(start) {
            let earliest = &mut self.earliest[number][column];
            *earliest = start.min(*earliest);
        }
    }

    /// The start of a job in each run. `None` if not all reach it.
    fn of(&self, index: usize) -> Option<Vec<Seconds>> {
        let column = self.columns[index]?;
        let starts = self.earliest.iter().map(|draw| draw[column]);
        let starts: Vec<Seconds> = starts.take_while(|start| *start != NEVER).collect();
        (starts.len() == self.earliest.len()).then_some(starts)
    }
}

fn plan(
    snapshot: &Snapshot,
    pool: usize,
    queue: &[usize],
    drawn: &DrawnStarts,
    starts: &mut [Option<Seconds>],
) {
    // Nobody behind the last job without a plan of Slurm's is looked at.
    let needs =
        |index: &usize| drawn.is_asked(*index) && snapshot.waiting[*index].planned.is_none();
    let Some(last) = queue.iter().rposition(needs) else {
        return;
    };
    let running = snapshot.running.iter().filter(|job| job.pool == pool);
    let running: Vec<_> = running
        .map(|job| (job.size, job.start.saturating_add(job.limit)))
        .collect();
    let mut profile = ResourceProfile::new(&snapshot.pools[pool], snapshot.at, &running);
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

/// The allocations of the running jobs of a pool in each run.
fn running(
    snapshot: &Snapshot,
    pool: usize,
    runs: &RunTimes,
    draws: usize,
) -> Vec<Vec<Allocation>> {
    let now = snapshot.at;
    let jobs: Vec<&Running> = snapshot
        .running
        .iter()
        .filter(|job| job.pool == pool)
        .collect();
    let of_run = |number: usize| {
        let allocation = |job: &&Running| {
            let mut random = Random::seeded(&[now as u64, job.job.0, number as u64]);
            let elapsed = (now - job.start).max(0);
            let run = runs.of(job.user).run_given(job.limit, elapsed, &mut random);
            let limit_end = job.start.saturating_add(job.limit).max(now + 1);
            Allocation {
                size: job.size,
                end: job.start.saturating_add(run).max(now + 1),
                limit_end,
            }
        };
        jobs.iter().map(allocation).collect()
    };
    (0..draws).map(of_run).collect()
}

fn draw(
    snapshot: &Snapshot,
    pool: usize,
    running: &[Vec<Allocation>],
    queue: &[usize],
    runs: &RunTimes,
    drawn: &mut DrawnStarts,
) {
    let now = snapshot.at;
    let mut forward = ForwardSimulation::default();
    let mut queued = Vec::with_capacity(queue.len());
    let mut starts = Vec::new();
    for (number, allocations) in running.iter().enumerate() {
        let random = |job: u64| Random::seeded(&[now as u64, job, number as u64]);
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
        let is_awaited = |index: usize| drawn.is_asked(queue[index]);
        forward.run(
            &snapshot.pools[pool],
            now,
            allocations.iter().copied(),
            &queued,
            is_awaited,
            &mut starts,
        );
        for (index, start) in starts.iter().enumerate() {
            drawn.note(number, queue[index], *start);
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
        let mut profile = ResourceProfile::new(&pool, 0, &running);
        let starts = JOBS.map(|(size, limit, _)| {
            profile.place(Request {
                size: Resources::cpus(size),
                limit,
            })
        });
        assert_eq!(starts, [Some(3_600), Some(600), Some(3_600)]);
    }

    #[test]
    fn forward_run_backfills_what_its_limit_ends_before_the_planned_start() {
        let pool = Pool {
            capacity: Resources::cpus(10),
            ..Pool::default()
        };
        let allocation = |size, end, limit_end| Allocation {
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
        let running = [allocation(6, 900, 3_600), allocation(4, 600, 600)].into_iter();
        ForwardSimulation::default().run(&pool, 0, running, &queue, |_| true, &mut starts);
        assert_eq!(starts, [Some(1_800), Some(600), Some(900)]);
    }

    #[test]
    fn a_limit_that_reaches_into_a_reservation_waits_for_its_end() {
        let reservation = crate::queue::Reservation {
            start: 1_000,
            end: 5_000,
            size: Resources::cpus(10),
        };
        let pool = Pool {
            capacity: Resources::cpus(10),
            reservations: vec![reservation],
        };
        let mut profile = ResourceProfile::new(&pool, 0, &[]);
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
        ForwardSimulation::default().run(&pool, 0, [].into_iter(), &queue, |_| true, &mut starts);
        assert_eq!(starts, [Some(5_000), Some(0)]);
    }

    #[test]
    fn what_never_fits_has_no_start() {
        let pool = Pool {
            capacity: Resources::cpus(10),
            ..Pool::default()
        };
        let mut profile = ResourceProfile::new(&pool, 0, &[]);
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
        ForwardSimulation::default().run(&pool, 0, [].into_iter(), &queue, |_| true, &mut starts);
        assert_eq!(starts, [None]);
    }
}
