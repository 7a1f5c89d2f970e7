//! When something that was planned is due.
//!
//! Entries scheduled by a clock that was ahead are due immediately. Nothing waits longer than its policy allows plus
//! [`MAX_DRIFT`], whatever the clock was when it was scheduled.

use chrono::{DateTime, TimeDelta, Utc};

/// Larger differences between two readings of clocks are steps. Smaller ones are ordinary corrections, differences
/// between hosts, or a slightly older reading.
pub const MAX_DRIFT: TimeDelta = TimeDelta::minutes(1);

/// True if an entry scheduled at `planned_at` for `due` is due. A `planned_at` in the future comes from a clock that
/// was ahead.
pub fn is_due(due: DateTime<Utc>, planned_at: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    now >= due || planned_at - now > MAX_DRIFT
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 24 * 60 * 60;

    fn time(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(1_763_760_000 + seconds)
    }

    proptest! {
        #[test]
        fn nothing_waits_longer_than_it_was_planned_to(
            planned in -40 * DAY..40 * DAY, wait in 0..DAY, now in 0..DAY,
        ) {
            // However wrong the scheduling clock was.
            let due = time(planned + wait);
            let is_due = |seconds| is_due(due, time(planned), time(seconds));
            prop_assert!(is_due(now) || due <= time(now + wait) + MAX_DRIFT);
            prop_assert!(is_due(planned + wait));
            // With a correct clock nothing is due early, even if the reading is slightly old.
            if planned <= now + MAX_DRIFT.num_seconds() {
                prop_assert_eq!(is_due(now), now >= planned + wait);
            }
        }
    }
}
