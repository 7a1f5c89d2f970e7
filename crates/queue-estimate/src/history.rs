//! Waits and run times that were seen: what is known about policies that nobody can model.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::queue::{Key, Resources, Seconds, Snapshot, Waiting};
use crate::random::Random;

/// Waits per class.
const MAX_WAITS: usize = 300;
/// Waits of all classes together.
const MAX_ALL_WAITS: usize = 1_000;
/// Fewest waits that give a quantile.
const MIN_WAITS: usize = 8;
/// Run times per user.
const MAX_USER_RUNS: usize = 40;
/// Run times of the cluster.
const MAX_RUNS: usize = 1_000;
/// Weight of the cluster's run times against those of a user, in jobs.
const USER_PRIOR: usize = 8;
/// Users whose run times are stored; the one that was seen last the longest ago goes first.
const MAX_USERS: usize = 500;
/// Share that stands for a whole time limit.
pub const WHOLE_LIMIT: u32 = 1_000_000;

/// Class of a job: partition, size as a share of the pool (log2), time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Class {
    partition: Key,
    size: i8,
    limit: i8,
}

impl Class {
    /// The class of a job.
    pub fn of(partition: Key, size: Resources, capacity: Resources, limit: Seconds) -> Self {
        let share = size.share(capacity).unsigned_abs();
        let bounds = [900, 3_600, 4 * 3_600, 12 * 3_600, 24 * 3_600];
        Self {
            partition,
            size: share.ilog2() as i8,
            limit: bounds.iter().filter(|bound| limit > **bound).count() as i8,
        }
    }

    fn is_near(self, other: Self) -> bool {
        self.partition == other.partition
            && (self.size - other.size).abs() <= 1
            && (self.limit - other.limit).abs() <= 1
    }
}

impl Snapshot {
    /// The class of a waiting job, for the history of waits.
    pub fn class(&self, job: &Waiting) -> Class {
        let pool = job.pools.first().and_then(|pool| self.pools.get(*pool));
        let capacity = pool.map_or(Resources::default(), |pool| pool.capacity);
        Class::of(job.partition, job.size, capacity, job.limit)
    }
}

/// Waits of jobs that started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    #[serde(with = "crate::map_as_pairs")]
    classes: BTreeMap<Class, VecDeque<Seconds>>,
    all: VecDeque<Seconds>,
}

impl Waits {
    /// Records the wait of a job that started.
    pub fn record(&mut self, class: Class, wait: Seconds) {
        push(self.classes.entry(class).or_default(), wait, MAX_WAITS);
        push(&mut self.all, wait, MAX_ALL_WAITS);
    }

    /// Remaining waits of jobs of this class that had waited for longer than `waited`, sorted. Fewer than eight: those of neighbouring
    /// classes, then of all. Empty if there are none.
    pub fn remaining(&self, class: Class, waited: Seconds) -> Vec<Seconds> {
        let longer = |waits: &mut dyn Iterator<Item = &Seconds>| {
            let mut remaining: Vec<Seconds> = waits
                .filter(|wait| **wait > waited)
                .map(|wait| wait - waited)
                .collect();
            remaining.sort_unstable();
            remaining
        };
        let own = longer(&mut self.classes.get(&class).into_iter().flatten());
        if own.len() >= MIN_WAITS {
            return own;
        }
        let near = self
            .classes
            .iter()
            .filter(|(other, _)| class.is_near(**other));
        let near = longer(&mut near.flat_map(|(_, waits)| waits));
        if near.len() >= MIN_WAITS {
            return near;
        }
        longer(&mut self.all.iter())
    }

    /// The longest of the last 1,000 waits.
    pub fn longest(&self) -> Seconds {
        self.all.iter().copied().max().unwrap_or(0)
    }
}

/// Run times as shares of the time limit, in millionths.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunTimes {
    #[serde(with = "crate::map_as_pairs")]
    users: BTreeMap<Key, UserRuns>,
    all: VecDeque<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct UserRuns {
    last: Seconds,
    shares: VecDeque<u32>,
}

impl RunTimes {
    /// Records a job that ran.
    pub fn record(&mut self, user: Key, share: u32, at: Seconds) {
        if self.users.len() >= MAX_USERS && !self.users.contains_key(&user) {
            let oldest = self.users.iter().min_by_key(|(_, runs)| runs.last);
            if let Some(oldest) = oldest.map(|(user, _)| *user) {
                self.users.remove(&oldest);
            }
        }
        let runs = self.users.entry(user).or_default();
        runs.last = at;
        push(&mut runs.shares, share, MAX_USER_RUNS);
        push(&mut self.all, share, MAX_RUNS);
    }

    /// The last run times of a user, oldest first. Empty if none is known.
    pub fn last_of(&self, user: Key) -> impl ExactSizeIterator<Item = u32> {
        static NONE: VecDeque<u32> = VecDeque::new();
        let shares = self.users.get(&user).map_or(&NONE, |runs| &runs.shares);
        shares.iter().copied()
    }

    /// What is known of a user's run times.
    pub fn of(&self, user: Key) -> Shares<'_> {
        Shares {
            own: self.users.get(&user).map(|runs| &runs.shares),
            all: &self.all,
        }
    }
}

/// Shares of time limits to draw from.
#[derive(Clone, Copy, Debug)]
pub struct Shares<'a> {
    own: Option<&'a VecDeque<u32>>,
    all: &'a VecDeque<u32>,
}

impl Shares<'_> {
    /// Draws a share. Before any job has ended: the whole limit.
    fn draw(self, random: &mut Random) -> i64 {
        if let Some(own) = self.own {
            let drawn = random.below(own.len() + USER_PRIOR);
            if let Some(share) = own.get(drawn) {
                return i64::from(*share);
            }
        }
        if self.all.is_empty() {
            return i64::from(WHOLE_LIMIT);
        }
        i64::from(self.all[random.below(self.all.len())])
    }

    /// Draws the run time of a job that has not started.
    pub fn run(self, limit: Seconds, random: &mut Random) -> Seconds {
        part(limit, self.draw(random)).max(1)
    }

    /// Draws the run time of a job that has already run for `elapsed`.
    pub fn run_given(self, limit: Seconds, elapsed: Seconds, random: &mut Random) -> Seconds {
        for _ in 0..8 {
            let run = part(limit, self.draw(random));
            if run > elapsed {
                return run;
            }
        }
        let u = random.millionths();
        // Past its limit: it is being ended, or the site lets it run on.
        let rest = (limit - elapsed).max(limit / 10).max(60);
        elapsed + part(part(rest, u), u).max(1)
    }
}

fn part(of: Seconds, millionths: i64) -> Seconds {
    (i128::from(of) * i128::from(millionths) / 1_000_000) as Seconds
}

fn push<T>(window: &mut VecDeque<T>, value: T, most: usize) {
    if window.len() == most {
        window.pop_front();
    }
    window.push_back(value);
}

/// The quantile of sorted values by nearest rank, `share` in percent.
pub fn quantile(sorted: &[Seconds], share: usize) -> Option<Seconds> {
    let rank = (sorted.len() * share).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_waits_are_those_of_jobs_that_waited_longer() {
        let class = Class::of(Key(1), Resources::cpus(1), Resources::cpus(10), 3_600);
        let mut waits = Waits::default();
        for _ in 0..8 {
            for wait in [60, 300, 900, 4_000] {
                waits.record(class, wait);
            }
        }
        assert_eq!(waits.remaining(class, 1_000), [3_000; 8]);
        assert_eq!(waits.longest(), 4_000);
    }

    #[test]
    fn few_waits_of_a_class_are_completed_by_its_neighbours_and_then_by_all() {
        let class =
            |cpus, limit| Class::of(Key(1), Resources::cpus(cpus), Resources::cpus(64), limit);
        let mut waits = Waits::default();
        waits.record(class(1, 3_600), 100);
        for wait in 0..7 {
            waits.record(class(2, 3_600), 200 + wait);
        }
        assert_eq!(waits.remaining(class(1, 3_600), 0).len(), 8);
        assert_eq!(waits.remaining(class(64, 600), 0).len(), 8);
        for wait in 0..8 {
            waits.record(class(64, 600), 1_000 + wait);
        }
        assert_eq!(waits.remaining(class(1, 3_600), 0).len(), 8);
    }

    #[test]
    fn quantiles_are_those_of_the_nearest_rank() {
        let boots: Vec<Seconds> = (9..=18).map(|boot| boot * 10).collect();
        let remaining: Vec<Seconds> = boots
            .iter()
            .filter(|boot| **boot > 120)
            .map(|boot| boot - 120)
            .collect();
        assert_eq!(
            [50, 90].map(|share| quantile(&remaining, share)),
            [Some(30), Some(60)]
        );
        assert_eq!(quantile(&[], 50), None);
    }

    #[test]
    fn a_run_time_is_longer_than_the_job_has_run() {
        let mut runs = RunTimes::default();
        for share in 0..50 {
            runs.record(Key(share), 10_000 * u32::try_from(share).expect("small"), 0);
        }
        let mut random = Random::seeded(&[1]);
        for elapsed in [0, 100, 3_500, 3_600, 9_000] {
            for _ in 0..100 {
                assert!(runs.of(Key(1)).run_given(3_600, elapsed, &mut random) > elapsed);
            }
        }
    }
}
