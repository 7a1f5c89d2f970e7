//! One forward run of a queue, deciding starts as Slurm does: in order of priority; the first job that does not fit gets a planned
//! start computed from time limits; others are backfilled if their time limit ends before it, or if they leave that job enough.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::queue::{Pool, Resources, Seconds};

/// An allocation of a job.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    /// What it has of the pool.
    pub size: Resources,
    /// When it ends.
    pub end: Seconds,
    /// When it ends at the latest, as the scheduler knows.
    pub limit_end: Seconds,
}

/// A job that waits, or will be submitted.
#[derive(Clone, Copy, Debug)]
pub struct Queued {
    /// What it asks for.
    pub size: Resources,
    /// Its time limit.
    pub limit: Seconds,
    /// How long it will run.
    pub run: Seconds,
    /// When it is submitted; jobs of the present queue: any time up to now.
    pub submit: Seconds,
}

/// The run. Its buffers are used again by the next one.
#[derive(Debug, Default)]
pub struct ForwardSimulation {
    /// Allocations by their number: those of the beginning, then those of the queue.
    allocations: Vec<Allocation>,
    ends: BinaryHeap<Reverse<(Seconds, u32)>>,
    /// (End by time limit, number), sorted.
    limits: Vec<(Seconds, u32)>,
    /// Jobs of the queue that wait, in order of priority.
    waiting: Vec<u32>,
}

impl ForwardSimulation {
    /// Runs the queue, which is in order of priority, until all awaited jobs have started. `starts` gets the start of each job, or `None`
    /// for those that do not fit into the pool or had not started by then.
    pub fn run(
        &mut self,
        pool: &Pool,
        now: Seconds,
        running: impl Iterator<Item = Allocation>,
        queue: &[Queued],
        is_awaited: impl Fn(usize) -> bool,
        starts: &mut Vec<Option<Seconds>>,
    ) {
        let mut awaited = (0..queue.len()).filter(|index| is_awaited(*index)).count();
        starts.clear();
        starts.resize(queue.len(), None);
        self.allocations.clear();
        self.ends.clear();
        self.limits.clear();
        self.waiting.clear();
        let mut free = pool.capacity;
        for allocation in running {
            let number = self.allocations.len() as u32;
            free = free.minus(allocation.size);
            self.ends.push(Reverse((allocation.end, number)));
            self.limits.push((allocation.limit_end, number));
            self.allocations.push(allocation);
        }
        self.limits.sort_unstable();
        let mut submits: Vec<(Seconds, u32)> = Vec::new();
        for (index, job) in queue.iter().enumerate() {
            if !job.size.fits(pool.capacity) {
                awaited -= usize::from(is_awaited(index));
            } else if job.submit <= now {
                self.waiting.push(index as u32);
            } else {
                submits.push((job.submit, index as u32));
            }
        }
        submits.sort_unstable();
        let mut submits = submits.into_iter().peekable();
        let mut ended_reservations: Vec<Seconds> =
            pool.reservations.iter().map(|one| one.end).collect();
        ended_reservations.sort_unstable();
        let mut ended_reservations = ended_reservations
            .into_iter()
            .filter(|end| *end > now)
            .peekable();
        let mut time = now;
        loop {
            while let Some((_, index)) = submits.next_if(|(submit, _)| *submit <= time) {
                let position = self.waiting.partition_point(|other| *other < index);
                self.waiting.insert(position, index);
            }
            while self
                .ends
                .peek()
                .is_some_and(|Reverse((end, _))| *end <= time)
            {
                let Some(Reverse((_, number))) = self.ends.pop() else {
                    break;
                };
                let allocation = self.allocations[number as usize];
                free = free.plus(allocation.size);
                if let Ok(found) = self.limits.binary_search(&(allocation.limit_end, number)) {
                    self.limits.remove(found);
                }
            }
            self.schedule(pool, time, &mut free, queue, |index| {
                starts[index] = Some(time);
                awaited -= usize::from(is_awaited(index));
            });
            if awaited == 0 {
                return;
            }
            let end = self.ends.peek().map(|Reverse((end, _))| *end);
            let submit = submits.peek().map(|(submit, _)| *submit);
            while ended_reservations.next_if(|end| *end <= time).is_some() {}
            let ended_reservation = ended_reservations.peek().copied();
            match [end, submit, ended_reservation].into_iter().flatten().min() {
                Some(next) => time = next.max(time),
                None => return,
            }
        }
    }

    /// One pass of the scheduler.
    fn schedule(
        &mut self,
        pool: &Pool,
        time: Seconds,
        free: &mut Resources,
        queue: &[Queued],
        mut started: impl FnMut(usize),
    ) {
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut plan: Option<(Seconds, Resources)> = None;
        let mut first: Option<&Queued> = None;
        waiting.retain(|index| {
            if free.0[0] <= 0 {
                return true;
            }
            let job = &queue[*index as usize];
            let end = time.saturating_add(job.limit);
            let usable = if pool.reservations.is_empty() {
                *free
            } else {
                free.minus(pool.reserved(time, end))
            };
            if !job.size.fits(usable) {
                first = first.or(Some(job));
                return true;
            }
            if let Some(head) = first {
                let (planned_start, spare) =
                    plan.get_or_insert_with(|| self.planned_start(head, time, *free));
                if end > *planned_start {
                    if !job.size.fits(*spare) {
                        return true;
                    }
                    *spare = spare.minus(job.size);
                }
            }
            *free = free.minus(job.size);
            let number = self.allocations.len() as u32;
            let allocation = Allocation {
                size: job.size,
                end: time + job.run,
                limit_end: end,
            };
            self.allocations.push(allocation);
            self.ends.push(Reverse((allocation.end, number)));
            let position = self.limits.partition_point(|limit| *limit < (end, number));
            self.limits.insert(position, (end, number));
            started(*index as usize);
            false
        });
        self.waiting = waiting;
    }

    /// When the job could start if all running ones used their time limits, and what it would leave then.
    fn planned_start(
        &self,
        job: &Queued,
        time: Seconds,
        mut free: Resources,
    ) -> (Seconds, Resources) {
        for (end, number) in &self.limits {
            free = free.plus(self.allocations[*number as usize].size);
            if job.size.fits(free) {
                return ((*end).max(time), free.minus(job.size));
            }
        }
        // Only a reservation keeps it back.
        (Seconds::MAX, free.minus(job.size))
    }
}
