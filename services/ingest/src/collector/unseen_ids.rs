//! Finds ids of jobs that no poll has shown. Slurm assigns ids consecutively, so they lie between the ids that polls do show.

use std::collections::HashMap;
use std::time::Duration;

use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::{EventType, RunKey};
use tokio::time::Instant;

use super::accounting_wait::AccountingWait;
use super::gaps::{gap_event, keys, names};
use super::{Collector, CollectorState};
use crate::Error;
use crate::adapters::capture_state::{NewestJob, UnseenRange};
use crate::adapters::fenced::{BACKOFF, pause};
use crate::domain::{EntityKind, Observation, Owner, Record};

/// Largest range of ids that is looked up. A larger one becomes a gap.
const MAX_UNSEEN_IDS: u32 = 100_000;
/// A job id has the cluster of a federation above these bits (Slurm's federation guide, 22.05 to 26.05).
const LOCAL_ID_BITS: u32 = 26;
/// Maximum lead of Slurm's clock over the local clock, in seconds: munge allows no more.
pub(crate) const MAX_CLOCK_SKEW_SECS: i64 = 300;
/// How long accounting is waited for that may report the ended row of an id late.
const MAX_WAIT: Duration = Duration::from_secs(300);
/// Maximum number of ranges stored while accounting is unavailable. They share one value.
const MAX_UNSEEN_RANGES: usize = 1_000;

impl UnseenRange {
    const fn new(first: u32, last: u32) -> Self {
        Self {
            first,
            last,
            waited: 0,
        }
    }

    const fn ids(self) -> (u32, u32) {
        (self.first, self.last)
    }

    /// Whether there are more ids than are looked up.
    const fn is_too_large(self) -> bool {
        self.last - self.first >= MAX_UNSEEN_IDS
    }
}

/// Returns how many ids the count has moved from one job to a later one; `None` if it has restarted, or is that of another cluster.
fn ids_counted(before: NewestJob, now: NewestJob) -> Option<u32> {
    let same_count = now.id >> LOCAL_ID_BITS == before.id >> LOCAL_ID_BITS;
    now.id.checked_sub(before.id).filter(|_| same_count)
}

/// Returns the ids between the previous and the current newest job.
fn between(before: NewestJob, now: NewestJob) -> Option<UnseenRange> {
    let distance = ids_counted(before, now)?;
    (distance > 1).then(|| UnseenRange::new(before.id + 1, now.id - 1))
}

/// Adds a range. With too many ranges, extends the newest one, which is then looked up again from the start; ids in it that are known are not looked up.
fn add(ranges: &mut Vec<UnseenRange>, range: UnseenRange) {
    let full = ranges.len() >= MAX_UNSEEN_RANGES;
    match ranges.last_mut() {
        Some(newest) if full && newest.last < range.first => {
            (newest.last, newest.waited) = (range.last, 0);
        }
        _ => ranges.push(range),
    }
}

/// The waits for the rows of ranges, by their first and last id.
#[derive(Debug, Default)]
pub(super) struct UnseenWaits(HashMap<(u32, u32), AccountingWait>);

impl UnseenWaits {
    /// Continues the waits of earlier processes.
    pub(super) fn of(ranges: &[UnseenRange], now: Instant) -> Self {
        let wait = |range: &UnseenRange| {
            let before = Duration::from_secs(range.waited);
            (range.ids(), AccountingWait::continued(before, now))
        };
        Self(ranges.iter().map(wait).collect())
    }

    /// Returns every wait.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut AccountingWait> {
        self.0.values_mut()
    }

    /// Stores how long accounting was waited for.
    pub(super) fn store(&mut self, ranges: &mut [UnseenRange], now: Instant) {
        self.0
            .retain(|ids, _| ranges.iter().any(|range| range.ids() == *ids));
        for range in ranges {
            if let Some(wait) = self.0.get(&range.ids()) {
                range.waited = wait.waited(now).as_secs();
            }
        }
    }
}

/// Returns the job if the observation may show when it got its id. A requeued job keeps its id, and an array task gets one long after its
/// submit time.
fn newest(observation: &Observation) -> Option<NewestJob> {
    let may_be_fresh = !observation.has_run_before() && observation.entity != EntityKind::Task;
    may_be_fresh.then_some(NewestJob {
        submit: observation.run.submit_time,
        id: observation.raw_id,
    })
}

/// Returns the newer of two jobs. A known one with a submit time in the future would stay the newest until the clock reaches that time:
/// Slurm's clock was ahead, or the local one is behind. Until then the next id is the newer one.
fn newer(known: Option<NewestJob>, seen: Option<NewestJob>, now: i64) -> Option<NewestJob> {
    let (Some(known), Some(seen)) = (known, seen) else {
        return known.or(seen);
    };
    let is_future = known.submit > now.saturating_add(MAX_CLOCK_SKEW_SECS);
    let is_next = is_future && ids_counted(known, seen).is_some_and(|distance| distance > 0);
    Some(if is_next { seen } else { known.max(seen) })
}

impl CollectorState {
    /// Records a job that a poll shows. Until a poll has shown one, a job of accounting counts. Accounting does not say whether it was
    /// requeued; then its id is lower than those of its time, and more ids than necessary are compared with the known ones.
    pub(super) fn note_id(&mut self, observation: &Observation, now: i64) {
        if observation.record == Record::Controller {
            self.newest = newer(self.newest, newest(observation), now);
        } else if self.capture.newest.or(self.newest).is_none()
            && observation.run.submit_time >= self.capture.capture_since
        {
            // Stored with what accounting shows: no poll may come before a restart.
            self.capture.newest = newest(observation);
        }
    }

    /// Records at the end of a poll which ids it should have shown, and returns them if any is unknown. Too many are not recorded.
    pub(super) fn note_unseen(&mut self, accounting: bool, now: i64) -> Option<UnseenRange> {
        let before = self.capture.newest.filter(|_| accounting);
        self.capture.newest = newer(self.capture.newest, self.newest, now);
        let (Some(before), Some(now)) = (before, self.capture.newest) else {
            return None;
        };
        let unseen = between(before, now).filter(|range| {
            (range.first..=range.last).any(|id| self.run_store.by_raw_id(id).is_empty())
        });
        if let Some(range) = unseen.filter(|range| !range.is_too_large()) {
            add(&mut self.capture.unseen, range);
        }
        unseen
    }
}

/// The gap of a range that is not looked up; `None` if it is.
pub(super) fn too_many(range: UnseenRange) -> Option<CaptureEvent> {
    let UnseenRange { first, last, .. } = range;
    range.is_too_large().then(|| {
        let message = format!("polls have shown no job between the ids {first} and {last}, which are too many to look up");
        let lost = format!("jobs {first} to {last} that ended without ever becoming eligible to run");
        gap_event(message, lost)
    })
}

impl Collector {
    /// Returns the ranges to look up.
    pub async fn unseen(&self) -> Vec<UnseenRange> {
        self.state.lock().await.capture.unseen.clone()
    }

    /// Returns the ids of a range that are still unknown.
    pub async fn unknown_of(&self, range: UnseenRange) -> Vec<u32> {
        let state = self.state.lock().await;
        let ids = range.first..=range.last;
        ids.filter(|id| state.run_store.by_raw_id(*id).is_empty())
            .collect()
    }

    /// Records an answer of accounting about a range of which it lacks an end. Returns how long to wait for it still; `None` if the wait is over.
    pub async fn unseen_answered(&self, range: UnseenRange) -> Option<Duration> {
        let mut state = self.state.lock().await;
        let now = Instant::now();
        let waits = &mut state.unseen_waits.0;
        let wait = waits
            .entry(range.ids())
            .or_insert_with(|| AccountingWait::continued(Duration::ZERO, now));
        wait.answered(now);
        let left = wait.left(MAX_WAIT, now, &self.config);
        (!left.is_zero()).then_some(left)
    }

    /// Ends the lookups of a range, with a gap about the runs in it that accounting lists as not ended.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn remove_unseen(
        &self,
        range: UnseenRange,
        alive: &[(RunKey, Owner)],
    ) -> Result<(), Error> {
        let gap = (!alive.is_empty()).then(|| {
            let named = names(alive);
            let message =
                format!("no poll has shown {named}, and accounting lists them as not ended");
            gap_event(message, format!("how and when {} ended", keys(alive)))
        });
        let mut backoff = BACKOFF;
        loop {
            let mut state = self.state.lock().await;
            let ranges = state.capture.unseen.clone();
            remove(&mut state.capture.unseen, range);
            let Some(gap) = &gap else {
                return Ok(());
            };
            let kind = EventType::CaptureGapClosed;
            // In one write with the ranges.
            if self
                .capture_locked(&mut state, kind, gap.clone(), None)
                .await?
            {
                return Ok(());
            }
            state.capture.unseen = ranges;
            drop(state);
            pause(&self.shutdown, &mut backoff).await?;
        }
    }
}

/// Removes a range, which may have been extended meanwhile.
fn remove(ranges: &mut Vec<UnseenRange>, range: UnseenRange) {
    for known in ranges.iter_mut() {
        if known.first == range.first && known.last > range.last {
            known.first = range.last + 1;
        }
    }
    ranges.retain(|known| known.first != range.first);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_between_two_jobs_were_not_seen_unless_the_count_began_again() {
        let check = |before: (i64, u32), now: (i64, u32), expected: Option<(u32, u32)>| {
            let newest = |(submit, id)| NewestJob { submit, id };
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
    fn a_job_of_the_future_is_the_newest_until_the_next_id() {
        let newest = |(submit, id)| Some(NewestJob { submit, id });
        for (known, seen, expected) in [
            ((1_000, 10), (1_001, 9), (1_001, 9)),
            ((1_000, 10), (999, 11), (1_000, 10)),
            // A clock is wrong. An older job that changes is not newer than those that were seen before.
            ((9_000, 10), (1_001, 9), (9_000, 10)),
            ((9_000, 10), (1_001, 12), (1_001, 12)),
            ((9_000, 10), (9_001, 1), (9_001, 1)),
        ] {
            assert_eq!(
                newer(newest(known), newest(seen), 1_002),
                newest(expected),
                "{known:?} {seen:?}"
            );
        }
        assert_eq!(newer(None, newest((5, 1)), 1_002), newest((5, 1)));
    }

    #[test]
    fn too_many_ids_are_a_gap() {
        let range = |last| UnseenRange::new(11, last);
        assert_eq!(too_many(range(100_010)), None);
        let gap = too_many(range(100_011)).unwrap();
        assert!(
            gap.not_recoverable.starts_with("jobs 11 to 100011 "),
            "{gap:?}"
        );
    }

    #[test]
    fn ranges_stay_few_and_cover_every_id() {
        let mut ranges = Vec::new();
        for n in 0..3_000 {
            add(&mut ranges, UnseenRange::new(n * 10 + 1, n * 10 + 4));
        }
        assert_eq!(ranges.len(), MAX_UNSEEN_RANGES);
        let newest = ranges[MAX_UNSEEN_RANGES - 1];
        assert_eq!((newest.first, newest.last), (9_991, 29_994));
        // The count has restarted.
        add(&mut ranges, UnseenRange::new(5, 6));
        assert_eq!(ranges.len(), MAX_UNSEEN_RANGES + 1);
    }
}
