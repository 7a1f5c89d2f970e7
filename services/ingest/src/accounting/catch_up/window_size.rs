//! How much time one question is about: short enough to be answered in time and to be held in memory, as long as possible else.

/// Most seconds: a site may have a million rows a day.
const MAX_WINDOW_SECS: i64 = 3_600;
/// A question about this many seconds that is not answered means that accounting is away, not that the answer is long.
const MIN_WINDOW_SECS: i64 = 60;
/// The first question, before it is known how many runs end here.
const INITIAL_WINDOW_SECS: i64 = 120;
/// Ended runs in an answer that are enough: about 15 MB. Those that live are in every answer, however short its time.
const MAX_ENDED_RUNS: usize = 5_000;

/// Seconds of the next question.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WindowSize {
    secs: i64,
    most: i64,
}

impl WindowSize {
    /// Before the first question.
    pub(super) const fn new() -> Self {
        Self {
            secs: INITIAL_WINDOW_SECS,
            most: MAX_WINDOW_SECS,
        }
    }

    /// As many seconds.
    pub(super) const fn secs(&self) -> i64 {
        self.secs
    }

    /// There was an answer, with so many runs that ended.
    pub(super) fn answered(&mut self, ended: usize) {
        if ended > MAX_ENDED_RUNS {
            self.secs = (self.secs / 2).max(MIN_WINDOW_SECS);
        } else if ended < MAX_ENDED_RUNS / 4 {
            self.secs = (self.secs * 2).min(self.most);
        }
    }

    /// There was none that could be used. Returns whether to ask about less time, which is then never more again.
    pub(super) fn shorten(&mut self) -> bool {
        let shorter = (self.secs / 4).max(MIN_WINDOW_SECS);
        let worth_it = shorter < self.secs;
        (self.secs, self.most) = (shorter, shorter);
        worth_it
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
    fn what_was_too_long_once_is_not_asked_again() {
        let mut stride = WindowSize::new();
        stride.answered(0);
        stride.answered(0);
        assert_eq!(stride.secs(), 480);
        assert!(stride.shorten());
        stride.answered(0);
        assert_eq!(stride.secs(), 120);
        assert!(stride.shorten());
        assert!(!stride.shorten());
        stride.answered(0);
        assert_eq!(stride.secs(), MIN_WINDOW_SECS);
    }
}
