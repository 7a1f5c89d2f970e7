//! The conservative plan: every job, in order of priority, at the first gap in the profile of free resources. It assumes that jobs use
//! their whole time limit and that nothing overtakes.

use crate::queue::{Pool, Resources, Seconds};

/// A job to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What it asks for.
    pub size: Resources,
    /// Its time limit.
    pub limit: Seconds,
}

/// Free resources over time: each step lasts until the next, the last one forever.
#[derive(Clone, Debug)]
pub struct ResourceProfile {
    steps: Vec<(Seconds, Resources)>,
    now: Seconds,
}

impl ResourceProfile {
    /// The profile of a pool with these running jobs: (size, end by time limit).
    pub fn new(pool: &Pool, now: Seconds, running: &[(Resources, Seconds)]) -> Self {
        // Changes of the free amount: what is held now comes back at the limit's end.
        let mut free = pool.capacity;
        let mut changes = Vec::with_capacity(running.len() + 2 * pool.reservations.len());
        for (size, end) in running {
            free = free.minus(*size);
            // A job past its limit ends at any moment.
            changes.push(((*end).max(now + 1), *size));
        }
        let none = Resources::default();
        for reservation in pool
            .reservations
            .iter()
            .filter(|reservation| reservation.end > now)
        {
            if reservation.start <= now {
                free = free.minus(reservation.size);
            } else {
                changes.push((reservation.start, none.minus(reservation.size)));
            }
            changes.push((reservation.end, reservation.size));
        }
        changes.sort_by_key(|(time, _)| *time);
        let mut steps = vec![(now, free)];
        for (time, size) in changes {
            free = free.plus(size);
            match steps.last_mut() {
                Some(last) if last.0 == time => last.1 = free,
                _ => steps.push((time, free)),
            }
        }
        Self { steps, now }
    }

    /// Places a job at its first gap, and returns its start. `None` if it is larger than the pool ever is.
    pub fn place(&mut self, request: Request) -> Option<Seconds> {
        let Request { size, limit } = request;
        let mut candidate = 0;
        let mut at = candidate;
        // The first step from which on it fits for the whole limit.
        while at < self.steps.len() {
            let (time, free) = self.steps[at];
            if time >= self.steps[candidate].0.saturating_add(limit) {
                break;
            }
            if !size.fits(free) {
                candidate = at + 1;
            }
            at += 1;
        }
        let start = self.steps.get(candidate)?.0.max(self.now);
        let end = start.saturating_add(limit);
        let last = match self.steps[candidate..].binary_search_by_key(&end, |(time, _)| *time) {
            Ok(found) => candidate + found,
            Err(insert) => {
                let insert = candidate + insert;
                let free = self.steps[insert - 1].1;
                self.steps.insert(insert, (end, free));
                insert
            }
        };
        for (_, free) in &mut self.steps[candidate..last] {
            *free = free.minus(size);
        }
        Some(start)
    }
}
