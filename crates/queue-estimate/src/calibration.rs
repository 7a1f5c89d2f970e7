//! Online conformal calibration with censoring.
//!
//! The score of an estimate of m seconds for a job that starts after a seconds is ln((a + 60)/(m + 60)). The quantile of the last scores
//! says by which factor the next estimate is to be stretched. Labels come late: a window of finished waits is biased to short ones. So
//! estimates that are still open count as censored at the wait so far, and the quantile is Kaplan and Meier's.
//!
//! Scores are stored in ten-thousandths. Logarithms are those of `f64`; what is derived from them is rounded to these units or to seconds.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::queue::Seconds;

/// Scores per window.
pub const MAX_SCORES: usize = 300;
/// Fewest finished scores of a bucket; with fewer, all buckets count together.
pub const MIN_SCORES: usize = 20;
/// Most scores of one user: a quarter of a full window.
const MAX_USER_SCORES: usize = MAX_SCORES / 4;
/// Added to all waits, so that seconds do not matter.
const SHIFT: Seconds = 60;

/// ln(wait + 60 s).
pub fn log(wait: Seconds) -> f64 {
    ((wait.max(0) + SHIFT) as f64).ln()
}

/// The inverse of [`log`], in whole seconds.
pub fn from_log(log: f64) -> Seconds {
    ((log.min(30.0).exp()).round() as Seconds - SHIFT).max(0)
}

/// The score of an estimate, in ten-thousandths.
pub fn score(estimate: Seconds, actual: Seconds) -> i32 {
    ((log(actual) - log(estimate)) * 10_000.0).round() as i32
}

/// An estimate stretched by an offset in ten-thousandths, in seconds.
pub fn stretch(estimate: Seconds, offset: i32) -> f64 {
    ((estimate.max(0) + SHIFT) as f64) * (f64::from(offset) / 10_000.0).exp() - SHIFT as f64
}

/// One finished estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// In ten-thousandths.
    pub value: i32,
    /// True if the job was cancelled before it started.
    pub censored: bool,
    /// Half of the owner's key: enough to tell users apart.
    pub user: u32,
}

/// The last scores of one source, bound and bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window(VecDeque<Score>);

impl Window {
    /// Adds a score. A user has at most a quarter of a full window, so that a burst of one does not fill it.
    pub fn push(&mut self, score: Score) {
        let own = |other: &Score| other.user == score.user;
        if self.0.iter().filter(|other| own(other)).count() >= MAX_USER_SCORES {
            if let Some(oldest) = self.0.iter().position(own) {
                self.0.remove(oldest);
            }
        } else if self.0.len() == MAX_SCORES {
            self.0.pop_front();
        }
        self.0.push_back(score);
    }

    /// The scores: value, and whether it is censored.
    pub fn scores(&self) -> impl Iterator<Item = (i32, bool)> {
        self.0.iter().map(|score| (score.value, score.censored))
    }

    /// Number of scores of jobs that started.
    pub fn finished(&self) -> usize {
        self.0.iter().filter(|score| !score.censored).count()
    }
}

/// Kaplan and Meier's quantile: the smallest finished score that at most `1 − share` of all exceed, counting one more than there are.
/// `None` if the scores do not reach that far. `share` is in percent. The scores are (value, censored).
pub fn quantile(scores: &mut [(i32, bool)], share: u32) -> Option<i32> {
    // At the same value the finished come first.
    scores.sort_unstable();
    let most = 1.0 - f64::from(share) / 100.0 + 1e-9;
    let mut survival = 1.0;
    for (index, (value, censored)) in scores.iter().enumerate() {
        if !censored {
            let at_risk = (scores.len() - index) as f64;
            survival *= 1.0 - 1.0 / (at_risk + 1.0);
            if survival <= most {
                return Some(*value);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(open: &[i32]) -> [Option<i32>; 2] {
        let finished = (-10..=8).map(|tenth| (tenth * 1_000, false));
        let mut scores: Vec<_> = finished
            .chain(open.iter().map(|value| (*value, true)))
            .collect();
        [50, 90].map(|share| quantile(&mut scores, share))
    }

    fn seconds(offset: Option<i32>) -> String {
        format!("{:.2}", stretch(1_200, offset.expect("a bound")))
    }

    #[test]
    fn offsets_are_quantiles_of_the_scores() {
        let [p50, p90] = offsets(&[]);
        assert_eq!([p50, p90], [Some(-1_000), Some(7_000)]);
        assert_eq!([seconds(p50), seconds(p90)], ["1080.10", "2477.33"]);
    }

    #[test]
    fn open_estimates_count_as_censored() {
        let [p50, p90] = offsets(&[9_000, -5_000]);
        assert_eq!([p50, p90], [Some(0), Some(8_000)]);
        assert_eq!([seconds(p50), seconds(p90)], ["1200.00", "2744.18"]);
        let [p50, p90] = offsets(&[3_500, 4_500, 5_500]);
        assert_eq!([p50, p90], [Some(1_000), Some(8_000)]);
        assert_eq!([seconds(p50), seconds(p90)], ["1332.52", "2744.18"]);
    }

    #[test]
    fn there_is_no_bound_beyond_the_finished_scores() {
        assert_eq!(offsets(&[9_500, 11_000, 12_000]), [Some(1_000), None]);
        let mut eight: Vec<_> = (0..8).map(|value| (value, false)).collect();
        assert_eq!(quantile(&mut eight, 90), None);
        let mut nine: Vec<_> = (0..9).map(|value| (value, false)).collect();
        assert_eq!(quantile(&mut nine, 90), Some(8));
    }

    #[test]
    fn a_user_has_at_most_a_quarter_of_a_window() {
        let mut window = Window::default();
        for value in 0..1_000 {
            window.push(Score {
                value,
                censored: false,
                user: 1,
            });
        }
        assert_eq!(window.finished(), MAX_USER_SCORES);
        window.push(Score {
            value: 0,
            censored: true,
            user: 2,
        });
        assert_eq!(window.finished(), MAX_USER_SCORES);
        assert_eq!(window.scores().count(), MAX_USER_SCORES + 1);
    }
}
