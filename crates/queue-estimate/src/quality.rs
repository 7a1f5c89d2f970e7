//! How often estimates were right.

use serde::{Deserialize, Serialize};

use crate::estimator::{CLASS_NAMES, Estimate};
use crate::queue::Seconds;

/// Estimates per block of consecutive ones.
const BLOCK: usize = 500;

/// A finished estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// True if the job had waited for long.
    pub later: bool,
    /// Class of the prediction.
    pub class: u8,
    /// What the wait was, from the estimate on.
    pub actual: Seconds,
    /// Bound for one of ten.
    #[serde(default)]
    pub p10: Option<Seconds>,
    /// Likely wait.
    pub p50: Option<Seconds>,
    /// Bound for nine of ten.
    pub p90: Option<Seconds>,
    /// Wait until the planned start.
    pub plan: Option<Seconds>,
    /// Quantiles of history alone.
    pub history: [Option<Seconds>; 2],
}

impl Outcome {
    /// What became of an estimate.
    pub fn of(estimate: &Estimate, started_at: Seconds) -> Self {
        Self {
            later: estimate.is_later(),
            class: estimate.class() as u8,
            actual: (started_at - estimate.made_at).max(0),
            p10: estimate.p10,
            p50: estimate.p50,
            p90: estimate.p90,
            plan: estimate.plan(),
            history: estimate.raw_history(),
        }
    }
}

/// Figures over finished estimates. Shares are in percent; those of nothing are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Quality {
    /// Estimates.
    pub n: usize,
    /// Share that started by P10.
    pub covered_p10: Option<f64>,
    /// Share that started by P50.
    pub covered_p50: Option<f64>,
    /// Share that started by P90.
    pub covered_p90: Option<f64>,
    /// Median error of P50 in seconds.
    #[schema(value_type = Option<i64>)]
    pub median_error: Option<Seconds>,
    /// Median error of the plan in seconds.
    #[schema(value_type = Option<i64>)]
    pub plan_median_error: Option<Seconds>,
    /// Share that started by the planned time.
    pub plan_covered: Option<f64>,
    /// Median error of the median of history in seconds.
    #[schema(value_type = Option<i64>)]
    pub history_median_error: Option<Seconds>,
    /// Share that started by the ninth decile of history.
    pub history_covered_p90: Option<f64>,
    /// Pinball loss of P50, divided by that of history.
    pub pinball_p50: Option<f64>,
    /// Pinball loss of P90, divided by that of history.
    pub pinball_p90: Option<f64>,
    /// Median of (P90 + 60 s)/(P50 + 60 s).
    pub sharpness: Option<f64>,
    /// Median of the actual wait in seconds.
    #[schema(value_type = Option<i64>)]
    pub median_wait: Option<Seconds>,
}

impl Quality {
    /// The figures of these estimates.
    pub fn of<'a>(outcomes: impl Iterator<Item = &'a Outcome> + Clone) -> Self {
        Self {
            n: outcomes.clone().count(),
            covered_p10: covered(outcomes.clone().map(|one| (one.p10, one.actual))),
            covered_p50: covered(outcomes.clone().map(|one| (one.p50, one.actual))),
            covered_p90: covered(outcomes.clone().map(|one| (one.p90, one.actual))),
            median_error: median_error(outcomes.clone().map(|one| (one.p50, one.actual))),
            plan_median_error: median_error(outcomes.clone().map(|one| (one.plan, one.actual))),
            plan_covered: covered(outcomes.clone().map(|one| (one.plan, one.actual))),
            history_median_error: median_error(
                outcomes.clone().map(|one| (one.history[0], one.actual)),
            ),
            history_covered_p90: covered(outcomes.clone().map(|one| (one.history[1], one.actual))),
            pinball_p50: pinball(
                outcomes
                    .clone()
                    .map(|one| (one.p50, one.history[0], one.actual)),
                0.5,
            ),
            pinball_p90: pinball(
                outcomes
                    .clone()
                    .map(|one| (one.p90, one.history[1], one.actual)),
                0.9,
            ),
            sharpness: sharpness(outcomes.clone().map(|one| (one.p50, one.p90))),
            median_wait: median(outcomes.map(|one| one.actual).collect()),
        }
    }

    /// Shares covered by P90 in blocks of 500 consecutive estimates.
    pub fn blocks<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Vec<f64> {
        let all: Vec<_> = outcomes.map(|one| (one.p90, one.actual)).collect();
        all.chunks_exact(BLOCK)
            .filter_map(|block| covered(block.iter().copied()))
            .collect()
    }

    /// The figures by class of the prediction.
    pub fn classes<'a>(
        outcomes: impl Iterator<Item = &'a Outcome> + Clone,
    ) -> impl Iterator<Item = (&'static str, Self)> {
        CLASS_NAMES.iter().enumerate().map(move |(class, name)| {
            let own = outcomes
                .clone()
                .filter(|one| usize::from(one.class) == class);
            (*name, Self::of(own.collect::<Vec<_>>().into_iter()))
        })
    }
}

fn percent(part: usize, all: usize) -> Option<f64> {
    (all > 0).then(|| 100.0 * part as f64 / all as f64)
}

fn covered(bounds: impl Iterator<Item = (Option<Seconds>, Seconds)>) -> Option<f64> {
    let (mut part, mut all) = (0, 0);
    for (bound, actual) in bounds {
        let Some(bound) = bound else { continue };
        all += 1;
        part += usize::from(actual <= bound);
    }
    percent(part, all)
}

fn median(mut values: Vec<Seconds>) -> Option<Seconds> {
    values.sort_unstable();
    crate::history::quantile(&values, 50)
}

fn median_error(estimates: impl Iterator<Item = (Option<Seconds>, Seconds)>) -> Option<Seconds> {
    median(
        estimates
            .filter_map(|(estimate, actual)| Some((estimate? - actual).abs()))
            .collect(),
    )
}

fn pinball(
    estimates: impl Iterator<Item = (Option<Seconds>, Option<Seconds>, Seconds)>,
    share: f64,
) -> Option<f64> {
    let loss = |estimate: Seconds, actual: Seconds| {
        let over = (actual - estimate) as f64;
        if over >= 0.0 {
            share * over
        } else {
            (share - 1.0) * over
        }
    };
    let (mut own, mut raw) = (0.0, 0.0);
    for (estimate, history, actual) in estimates {
        let (Some(estimate), Some(history)) = (estimate, history) else {
            continue;
        };
        own += loss(estimate, actual);
        raw += loss(history, actual);
    }
    (raw > 0.0).then(|| own / raw)
}

fn sharpness(bounds: impl Iterator<Item = (Option<Seconds>, Option<Seconds>)>) -> Option<f64> {
    let mut ratios: Vec<f64> = bounds
        .filter_map(|(p50, p90)| Some((p90? + 60) as f64 / (p50? + 60) as f64))
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    ratios.get((ratios.len().max(1) - 1) / 2).copied()
}
