//! Length of the time window per request: as long as possible, but short enough to be answered in time and to fit into memory.

/// Longest window in seconds. A site may have a million rows a day.
const MAX_WINDOW_SECS: i64 = 3_600;
/// Shortest window in seconds. If this one times out, accounting is unavailable rather than slow.
const MIN_WINDOW_SECS: i64 = 60;
/// First window in seconds, before the rate of ended runs is known.
const INITIAL_WINDOW_SECS: i64 = 120;
/// Maximum number of ended runs per answer: about 15 MB. Live runs are in every answer, however short the window.
const MAX_ENDED_RUNS: usize = 5_000;

/// Length of the next window.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WindowSize {
    secs: i64,
    max_secs: i64,
}

impl WindowSize {
    pub(super) const fn new() -> Self {
        Self {
            secs: INITIAL_WINDOW_SECS,
            max_secs: MAX_WINDOW_SECS,
        }
    }

    pub(super) const fn secs(&self) -> i64 {
        self.secs
    }

    /// Adapts the window to an answer with this many ended runs.
    pub(super) fn answered(&mut self, ended: usize) {
        if ended > MAX_ENDED_RUNS {
            self.secs = (self.secs / 2).max(MIN_WINDOW_SECS);
        } else if ended < MAX_ENDED_RUNS / 4 {
            self.secs = (self.secs * 2).min(self.max_secs);
        }
    }

    /// Whether a shorter window may be answered.
    pub(super) const fn can_be_shorter(&self) -> bool {
        self.secs > MIN_WINDOW_SECS
    }

    /// Shortens the window after an unusable answer, and never exceeds the shorter length again.
    pub(super) fn shorten(&mut self) {
        let shorter = (self.secs / 4).max(MIN_WINDOW_SECS);
        (self.secs, self.max_secs) = (shorter, shorter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_grow_while_answers_are_short_and_shrink_when_they_are_long() {
        let mut stride = WindowSize::new();
        for expected in [240, 480, 960, 1_920, 3_600, 3_600] {
            stride.answered(10);
            assert_eq!(stride.secs(), expected);
        }
        stride.answered(MAX_ENDED_RUNS);
        assert_eq!(stride.secs(), 3_600);
        for expected in [1_800, 900, 450, 225, 112, 60, 60] {
            stride.answered(MAX_ENDED_RUNS + 1);
            assert_eq!(stride.secs(), expected);
        }
        stride.answered(0);
        assert_eq!(stride.secs(), 120);
    }

    #[test]
    fn a_query_that_timed_out_is_not_repeated() {
        let mut stride = WindowSize::new();
        stride.answered(0);
        stride.answered(0);
        assert_eq!(stride.secs(), 480);
        stride.shorten();
        stride.answered(0);
        assert_eq!(stride.secs(), 120);
        assert!(stride.can_be_shorter());
        stride.shorten();
        assert!(!stride.can_be_shorter());
        stride.answered(0);
        assert_eq!(stride.secs(), MIN_WINDOW_SECS);
    }
}
