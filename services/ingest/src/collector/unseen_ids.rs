//! Ids of jobs that no sweep has shown, by the ids of those that sweeps do show: Slurm gives them out one after the other.

use serde::{Deserialize, Serialize};

use super::{Collector, Core};
use crate::domain::{EntityKind, Observation, Record};

/// More ids between two jobs are no jobs that were missed: numbers of another cluster of a federation, or a restart of the count.
const MAX_UNSEEN_IDS: u32 = 100_000;
/// Slurm's clock may be so many seconds ahead of ours: munge allows no more.
pub(crate) const MAX_CLOCK_SKEW_SECS: i64 = 300;
/// Ranges stored separately while accounting is away: they are stored in one value.
const MAX_UNSEEN_RANGES: usize = 1_000;

/// The job that was submitted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Newest {
    /// When, in Unix seconds.
    pub submit: i64,
    /// Its id.
    pub id: u32,
}

/// Ids between two jobs that were seen, the first and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    /// First of them.
    pub first: u32,
    /// Last of them.
    pub last: u32,
}

/// The ids between what was the newest job and what is it now. None where the count has begun again.
fn between(before: Newest, now: Newest) -> Option<Unseen> {
    let distance = now.id.checked_sub(before.id)?;
    (1 < distance && distance <= MAX_UNSEEN_IDS).then(|| Unseen {
        first: before.id + 1,
        last: now.id - 1,
    })
}

/// Adds a range. Of too many the newest grows: of what is between, the known ids are not asked for.
fn add(ranges: &mut Vec<Unseen>, range: Unseen) {
    let full = ranges.len() >= MAX_UNSEEN_RANGES;
    match ranges.last_mut() {
        Some(newest) if full && newest.last < range.first => newest.last = range.last,
        _ => ranges.push(range),
    }
}

/// The job itself, if the reading shows when it got its id: a requeued job keeps its own, and a task gets one long after its submit.
fn newest(observation: &Observation) -> Option<Newest> {
    let fresh = observation.record == Record::Controller
        && observation.restarts == Some(0)
        && observation.entity != EntityKind::Task;
    fresh.then_some(Newest {
        submit: observation.run.submit_time,
        id: observation.raw_id,
    })
}

impl Core {
    /// Notes a job that a sweep shows.
    pub(super) fn note_id(&mut self, observation: &Observation) {
        self.newest = self.newest.max(newest(observation));
    }

    /// Notes at the end of a sweep which ids it should have shown. Returns whether any is unknown.
    pub(super) fn note_unseen(&mut self, accounting: bool, now: i64) -> bool {
        // One that was submitted while a clock was ahead would be the newest for as long as that was.
        for newest in [&mut self.meta.newest, &mut self.newest] {
            newest.take_if(|newest| newest.submit > now.saturating_add(MAX_CLOCK_SKEW_SECS));
        }
        let before = self.meta.newest.filter(|_| accounting);
        self.meta.newest = self.meta.newest.max(self.newest);
        let (Some(before), Some(now)) = (before, self.meta.newest) else {
            return false;
        };
        let unseen = between(before, now).filter(|range| {
            (range.first..=range.last).any(|id| self.run_store.by_raw_id(id).is_empty())
        });
        if let Some(range) = unseen {
            add(&mut self.meta.unseen, range);
        }
        unseen.is_some()
    }
}

impl Collector {
    /// A range to look up.
    pub async fn unseen(&self) -> Option<Unseen> {
        self.core.lock().await.meta.unseen.first().copied()
    }

    /// The ids of a range that are not known meanwhile.
    pub async fn unknown_of(&self, range: Unseen) -> Vec<u32> {
        let core = self.core.lock().await;
        let ids = range.first..=range.last;
        ids.filter(|id| core.run_store.by_raw_id(*id).is_empty())
            .collect()
    }

    /// Notes that a range was looked up.
    pub async fn looked_up(&self, range: Unseen) {
        let mut core = self.core.lock().await;
        core.meta.unseen.retain(|other| *other != range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_between_two_jobs_were_not_seen_unless_the_count_began_again() {
        let check = |before: (i64, u32), now: (i64, u32), expected: Option<(u32, u32)>| {
            let newest = |(submit, id)| Newest { submit, id };
            let found = between(newest(before), newest(now));
            assert_eq!(found.map(|range| (range.first, range.last)), expected);
        };
        check((1, 10), (2, 11), None);
        check((1, 10), (2, 13), Some((11, 12)));
        check((1, 67_000_000), (2, 1), None);
        check((1, 10), (2, 10 + (1 << 26)), None);
        check((1, 10), (1, 10), None);
    }

    #[test]
    fn ranges_stay_few_and_cover_every_id() {
        let mut ranges = Vec::new();
        for n in 0..3_000 {
            let (first, last) = (n * 10 + 1, n * 10 + 4);
            add(&mut ranges, Unseen { first, last });
        }
        assert_eq!(ranges.len(), MAX_UNSEEN_RANGES);
        let newest = ranges[MAX_UNSEEN_RANGES - 1];
        assert_eq!((newest.first, newest.last), (9_991, 29_994));
        // The count began again.
        add(&mut ranges, Unseen { first: 5, last: 6 });
        assert_eq!(ranges.len(), MAX_UNSEEN_RANGES + 1);
    }
}
