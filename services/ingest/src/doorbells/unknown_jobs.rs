//! Limits requests for jobs that no poll has shown. Their doorbells belong to jobs submitted since the last poll, or are forged.
//!
//! Tasks of a known array are admitted in addition, because many may start at once. The membership is only a claim of the doorbell.
//! Therefore an array whose claimed tasks do not exist, or belong to another array, admits no unknown tasks for a while.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use rate_limit::LeakyBucket;
use tokio::time::Instant;

/// How long an array admits no unknown tasks after a false claim.
const DISTRUST_DURATION: Duration = Duration::from_secs(60);
/// Maximum number of admitted tasks of one array whose claim is not checked yet.
const MAX_UNPROVEN_TASKS: u32 = 2_000;

/// Admissions of one array.
#[derive(Debug)]
struct ArrayAdmission {
    /// Admitted tasks whose claim is not checked yet.
    open: u32,
    /// Time of the last false claim.
    distrusted_since: Option<Instant>,
}

/// Admits a number of jobs per minute, and tasks of arrays.
#[derive(Debug)]
pub struct UnknownJobLimiter {
    admissions: HashMap<u32, ArrayAdmission>,
    bucket: LeakyBucket,
}

impl UnknownJobLimiter {
    /// Creates the limiter with the permits of one minute.
    pub fn new(per_minute: NonZeroU32) -> Self {
        Self {
            admissions: HashMap::new(),
            bucket: LeakyBucket::new(per_minute, Duration::from_secs(60)),
        }
    }

    /// Whether to admit one more task of a known array.
    pub fn array_admits(&mut self, array: u32, now: Instant) -> bool {
        let admission = self.admissions.entry(array).or_insert(ArrayAdmission {
            open: 0,
            distrusted_since: None,
        });
        let is_distrusted =
            |since: Instant| now.saturating_duration_since(since) < DISTRUST_DURATION;
        if admission.distrusted_since.is_some_and(is_distrusted)
            || admission.open >= MAX_UNPROVEN_TASKS
        {
            return false;
        }
        admission.distrusted_since = None;
        admission.open += 1;
        true
    }

    /// Records whether an admitted task was one of the array. Returns whether the array is distrusted from now on.
    pub fn record_admission(&mut self, array: u32, was_true: bool, now: Instant) -> bool {
        let Some(admission) = self.admissions.get_mut(&array) else {
            return false;
        };
        admission.open = admission.open.saturating_sub(1);
        let newly_distrusted = !was_true && admission.distrusted_since.is_none();
        if !was_true {
            admission.distrusted_since = Some(now);
        }
        // Removes entries without effect.
        let has_effect = |admission: &ArrayAdmission| {
            let distrusted_since = admission
                .distrusted_since
                .map(|at| now.saturating_duration_since(at));
            admission.open > 0 || distrusted_since.is_some_and(|since| since < DISTRUST_DURATION)
        };
        self.admissions.retain(|_, admission| has_effect(admission));
        newly_distrusted
    }

    /// Whether to admit one more job.
    pub fn admit(&mut self, now: Instant) -> bool {
        self.bucket.try_take(now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_minute_admits_the_saved_and_the_new_permits(
            per_minute in 1_u32..500,
            pauses in proptest::collection::vec(0_u64..2_000, 1..1_000),
        ) {
            let mut unknown_jobs = UnknownJobLimiter::new(NonZeroU32::new(per_minute).unwrap());
            let begin = Instant::now();
            let mut now = begin;
            let mut admitted = Vec::new();
            for pause in pauses {
                now += Duration::from_millis(pause);
                if unknown_jobs.admit(now) {
                    admitted.push(now);
                }
            }
            prop_assert!(!admitted.is_empty());
            for (n, first) in admitted.iter().enumerate() {
                let within = admitted[n..].iter().filter(|at| **at < *first + Duration::from_secs(60)).count();
                prop_assert!(within <= 2 * per_minute as usize + 1);
            }
        }
    }

    #[test]
    fn an_array_vouches_for_its_tasks_until_one_is_not_its_own() {
        let mut unknown_jobs = UnknownJobLimiter::new(NonZeroU32::MIN);
        let now = Instant::now();
        for _ in 0..10_000 {
            assert!(unknown_jobs.array_admits(7, now));
            assert!(!unknown_jobs.record_admission(7, true, now));
        }
        let unproven = (0..10_000)
            .filter(|_| unknown_jobs.array_admits(7, now))
            .count();
        assert_eq!(unproven, MAX_UNPROVEN_TASKS as usize);
        assert!(unknown_jobs.array_admits(8, now));
        let newly_distrusted = (0..10).filter(|_| unknown_jobs.record_admission(7, false, now));
        assert_eq!(newly_distrusted.count(), 1);
        assert!(!unknown_jobs.array_admits(7, now) && unknown_jobs.array_admits(8, now));
        let after = now + DISTRUST_DURATION;
        for _ in 10..MAX_UNPROVEN_TASKS {
            unknown_jobs.record_admission(7, true, after);
        }
        assert!(unknown_jobs.array_admits(7, after));
        unknown_jobs.record_admission(7, true, after);
        for _ in 0..2 {
            unknown_jobs.record_admission(8, true, after);
        }
        assert!(unknown_jobs.admissions.is_empty());
    }

    #[test]
    fn a_flood_uses_up_the_minute_and_time_gives_it_back() {
        let mut unknown_jobs = UnknownJobLimiter::new(NonZeroU32::new(60).unwrap());
        let now = Instant::now();
        let flood = (0..10_000).filter(|_| unknown_jobs.admit(now)).count();
        assert_eq!(flood, 60);
        let after = now + Duration::from_millis(2_500);
        let admitted: Vec<bool> = (0..3).map(|_| unknown_jobs.admit(after)).collect();
        assert_eq!(admitted, [true, true, false]);
        assert!(unknown_jobs.admit(now + Duration::from_millis(3_100)));
    }
}
