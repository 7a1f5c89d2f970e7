//! Suspended intervals from partial records.
//!
//! Slurm reports the time of each suspension and resumption only while it happens, and stores only the sum. If some were missed (the
//! mesh was down), the sum in the record gives the number of missing seconds, but not their time. They are placed at the end of the
//! run, before the suspensions already known there. The position matters only if a price change or resize falls in between.

use super::Interval;

/// A change at one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SuspensionChange {
    /// Resumed.
    Resumed,
    /// Suspended.
    Suspended,
}

/// Builds intervals from changes in any order, for a run that ends (or is queried) at `end`. Consecutive equal changes count once.
pub fn intervals(marks: &[(i64, SuspensionChange)], end: i64) -> Vec<Interval> {
    let mut marks = marks.to_vec();
    marks.sort_unstable();
    marks.dedup();
    let both_ways = |at| marks.iter().filter(|(other, _)| *other == at).count() == 2;
    let (mut found, mut since) = (Vec::new(), None);
    for &(at, mark) in &marks {
        // Suspended and resumed within one second: the state does not change.
        if both_ways(at) {
            continue;
        }
        match (mark, since) {
            (SuspensionChange::Suspended, None) => since = Some(at),
            (SuspensionChange::Resumed, Some(from)) => {
                found.push((from, at));
                since = None;
            }
            (SuspensionChange::Suspended, Some(_)) | (SuspensionChange::Resumed, None) => {}
        }
    }
    found.extend(since.filter(|&from| from < end).map(|from| (from, end)));
    found
}

/// Reduces the intervals of an ended run to Slurm's sum. The excess means that the run was resumed meanwhile, unobserved. The exact
/// seconds are unknown, so the longest interval is shortened.
pub fn limited_to(mut known: Vec<Interval>, recorded_seconds: u64) -> Vec<Interval> {
    let seconds = |(from, to): &Interval| to.saturating_sub(*from).max(0);
    let sum: i64 = known.iter().map(seconds).sum();
    let mut excess = sum.saturating_sub(i64::try_from(recorded_seconds).unwrap_or(i64::MAX));
    while excess > 0
        && let Some(longest) = known.iter_mut().max_by_key(|interval| seconds(interval))
    {
        let taken = excess.min(seconds(longest));
        longest.1 -= taken;
        excess -= taken;
    }
    known.retain(|interval| seconds(interval) > 0);
    known
}

/// Adds the seconds that are missing from Slurm's sum.
pub fn complete(
    known: Vec<Interval>,
    start: i64,
    end: i64,
    recorded_seconds: u64,
) -> Vec<Interval> {
    let mut known: Vec<Interval> = known
        .into_iter()
        .map(|(from, to)| (from.max(start), to.min(end)))
        .filter(|(from, to)| from < to)
        .collect();
    known.sort_unstable();
    let sum: u64 = known.iter().map(|(from, to)| from.abs_diff(*to)).sum();
    let mut missing = i64::try_from(recorded_seconds.saturating_sub(sum)).unwrap_or(i64::MAX);
    let mut until = end;
    let mut added = Vec::new();
    // Backwards through the gaps between known suspensions.
    for &(from, to) in known.iter().rev().chain([&(start, start)]) {
        let take = missing.min(until - to).max(0);
        if take > 0 {
            added.push((until - take, until));
            missing -= take;
        }
        until = from;
    }
    known.extend(added);
    known.sort_unstable();
    known
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn marks_in_any_order_and_twice_give_the_same_intervals() {
        use SuspensionChange::{Resumed, Suspended};
        let marks = [
            (30, Suspended),
            (20, Resumed),
            (10, Suspended),
            (10, Suspended),
        ];
        assert_eq!(intervals(&marks, 50), [(10, 20), (30, 50)]);
        assert_eq!(intervals(&[(5, Resumed)], 50), []);
        assert_eq!(
            intervals(&[(10, Suspended), (20, Suspended), (20, Resumed)], 50),
            [(10, 50)]
        );
        assert_eq!(intervals(&[(20, Suspended), (20, Resumed)], 50), []);
    }

    #[test]
    fn missing_seconds_are_laid_at_the_end() {
        assert_eq!(complete(vec![], 0, 100, 30), [(70, 100)]);
        assert_eq!(complete(vec![(80, 100)], 0, 100, 30), [(70, 80), (80, 100)]);
        assert_eq!(complete(vec![(10, 20)], 0, 100, 5), [(10, 20)]);
        assert_eq!(complete(vec![], 0, 100, 1000), [(0, 100)]);
    }

    #[test]
    fn excess_over_slurms_record_is_taken_from_the_longest() {
        // Suspended at 30 and observed as resumed at 90. In between it ran for 20 s.
        assert_eq!(limited_to(vec![(30, 90)], 40), [(30, 70)]);
        assert_eq!(limited_to(vec![(0, 10), (30, 90)], 60), [(0, 10), (30, 80)]);
        assert_eq!(limited_to(vec![(0, 10), (30, 90)], 70), [(0, 10), (30, 90)]);
        assert_eq!(limited_to(vec![(0, 10), (30, 90)], 4), [(0, 4)]);
        assert_eq!(limited_to(vec![], 4), []);
    }

    proptest! {
        #[test]
        fn the_sum_equals_slurms_record(at in prop::collection::btree_set(0i64..1000, 0..8), end in 0i64..1000, recorded in 0u64..1500) {
            let at: Vec<_> = at.into_iter().collect();
            let known: Vec<Interval> = at.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            let inside: u64 = known.iter().map(|(a, b)| b.min(&end).saturating_sub(*a.min(&end)).unsigned_abs()).sum();
            let complete = complete(known, 0, end, recorded);
            let sum: u64 = complete.iter().map(|(a, b)| a.abs_diff(*b)).sum();
            prop_assert_eq!(sum, recorded.max(inside).min(end.unsigned_abs()));
            prop_assert!(complete.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }
    }
}
