//! What a replay says about the estimator: figures, and goals that are met or missed.

use serde::Serialize;

use crate::estimator::{MIN_STARTS, SETTLED_STARTS};
use crate::quality::{Outcome, Quality};
use crate::queue::Seconds;

use super::{Row, Trace, replay};

/// Fewest estimates of a class or goal.
const MIN_ESTIMATES: usize = 200;
/// How long a start is cold.
const COLD: Seconds = 7 * 86_400;
/// Waits above which jobs wait for days.
const LONG_WAIT: Seconds = 6 * 3_600;

/// A goal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// `G1` to `G9`.
    pub id: &'static str,
    /// What it is about.
    pub text: &'static str,
    /// What is to be reached.
    pub goal: String,
    /// What was reached.
    pub value: String,
    /// Whether it is met. `None` if there are too few estimates, or if it does not apply.
    pub met: Option<bool>,
}

/// The figures of a class of predictions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassQuality {
    /// Its name.
    pub class: &'static str,
    /// The figures.
    #[serde(flatten)]
    pub quality: Quality,
}

/// What a replay says about the estimator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Jobs of the trace.
    pub jobs: usize,
    /// Estimates.
    pub estimates: usize,
    /// Estimates whose job was cancelled, or had not started at the end: not scored.
    pub unscored: usize,
    /// First estimates of a job.
    pub first: Quality,
    /// Estimates of jobs that had waited for long.
    pub later: Quality,
    /// First estimates by class of the prediction.
    pub classes: Vec<ClassQuality>,
    /// Share that P90 covers in blocks of 500 consecutive first estimates.
    pub blocks: Vec<f64>,
    /// The goals.
    pub goals: Vec<Goal>,
}

/// Whether an estimate is made again in the same way if the trace ends at half of its time: it must not depend on what comes later.
pub fn prefix_differs(
    trace: &Trace,
    every: Seconds,
    rows: &[Row],
    progress: impl FnMut(usize) -> bool,
) -> Option<Seconds> {
    let first = trace.jobs.first()?.eligible;
    let last = trace.jobs.last()?.eligible;
    let cut = first + (last - first) / 2;
    let prefix = replay(&trace.until(cut), every, progress);
    let until_cut = |rows: &'_ [Row]| -> Vec<_> {
        let rows = rows.iter().filter(|row| row.estimate.made_at < cut);
        rows.map(|row| (row.job, row.estimate.clone())).collect()
    };
    let (all, prefix) = (until_cut(rows), until_cut(&prefix));
    let differing = all.iter().zip(&prefix).find(|(one, other)| one != other);
    match differing {
        Some(((_, estimate), _)) => Some(estimate.made_at),
        None if all.len() != prefix.len() => Some(cut),
        None => None,
    }
}

impl Report {
    /// Scores the rows of a replay. The first tenth is for learning, and so are the estimates before 500 starts. `is_slurm_like`: the scheduler decides as the
    /// draws assume. `prefix`: the result of the prefix test, if it was made.
    pub fn new(
        trace: &Trace,
        rows: &[Row],
        is_slurm_like: bool,
        prefix: Option<Option<Seconds>>,
    ) -> Self {
        let settled: Vec<Outcome> = rows
            .iter()
            .skip(rows.len() / 10)
            .filter(|row| row.starts >= SETTLED_STARTS)
            .filter_map(Row::outcome)
            .collect();
        let of = |later| settled.iter().filter(move |outcome| outcome.later == later);
        let (first, later) = (Quality::of(of(false)), Quality::of(of(true)));
        let classes = Quality::classes(of(false));
        let classes: Vec<_> = classes
            .map(|(class, quality)| ClassQuality { class, quality })
            .collect();
        let blocks = Quality::blocks(of(false));
        let mut report = Self {
            jobs: trace.jobs.len(),
            estimates: rows.len(),
            unscored: rows.iter().filter(|row| row.started_at.is_none()).count(),
            first,
            later,
            classes,
            blocks,
            goals: Vec::new(),
        };
        report.goals = report.goals(is_slurm_like, prefix);
        report.goals.push(cold_start(trace, rows, is_slurm_like));
        report
    }

    /// True if no goal is missed.
    pub fn is_met(&self) -> bool {
        self.goals.iter().all(|goal| goal.met != Some(false))
    }

    fn goals(&self, is_slurm_like: bool, prefix: Option<Option<Seconds>>) -> Vec<Goal> {
        let first = &self.first;
        let is_long = first.median_wait.is_some_and(|wait| wait > LONG_WAIT);
        let enough = first.n >= MIN_ESTIMATES;
        let within = |value: Option<f64>, low: f64, high: f64, enough: bool| {
            value
                .filter(|_| enough)
                .map(|value| (low..=high).contains(&value))
        };
        let least = if is_long { 80.0 } else { 85.0 };
        let most = if is_long { 100.0 } else { 95.0 };
        let worst = self
            .classes
            .iter()
            .filter(|class| class.quality.n >= MIN_ESTIMATES);
        let worst = worst.filter_map(|class| class.quality.covered_p90);
        let worst = worst.max_by(|a, b| (a - 90.0).abs().total_cmp(&(b - 90.0).abs()));
        let bad = self
            .blocks
            .iter()
            .filter(|covered| **covered < 80.0)
            .count();
        let ratio = if is_slurm_like { 0.75 } else { 1.05 };
        let pinball = first.pinball_p50.zip(first.pinball_p90);
        let error = first.median_error.zip(first.plan_median_error);
        let error = error.map(|(own, plan)| own as f64 / plan.max(1) as f64);
        vec![
            Goal {
                id: "G1",
                text: "P90 covers, first estimates",
                goal: "87 to 93 %".to_owned(),
                value: percent(first.covered_p90),
                met: within(first.covered_p90, 87.0, 93.0, enough),
            },
            Goal {
                id: "G2",
                text: "… in the worst class of predictions; blocks of 500 below 80 %",
                goal: "85 to 95 %; one in ten".to_owned(),
                value: format!("{}; {bad} of {}", percent(worst), self.blocks.len()),
                met: within(worst, 85.0, 95.0, enough)
                    .map(|met| met && bad * 10 <= self.blocks.len()),
            },
            Goal {
                id: "G3",
                text: "P50 covers, first estimates",
                goal: "45 to 55 %".to_owned(),
                value: percent(first.covered_p50),
                met: within(first.covered_p50, 45.0, 55.0, enough),
            },
            Goal {
                id: "P10",
                text: "P10 covers, first estimates",
                goal: "7 to 13 %".to_owned(),
                value: percent(first.covered_p10),
                met: within(first.covered_p10, 7.0, 13.0, enough),
            },
            Goal {
                id: "G4",
                text: "P90 covers, later estimates",
                goal: format!("{least} to {most} %"),
                value: percent(self.later.covered_p90),
                met: within(
                    self.later.covered_p90,
                    least,
                    most,
                    self.later.n >= MIN_ESTIMATES,
                ),
            },
            Goal {
                id: "G5",
                text: "pinball loss of P50; P90 against history alone",
                goal: format!("≤ {ratio}"),
                value: format!(
                    "{}; {}",
                    number(first.pinball_p50),
                    number(first.pinball_p90)
                ),
                met: pinball
                    .filter(|_| enough)
                    .map(|(p50, p90)| p50 <= ratio && p90 <= ratio),
            },
            Goal {
                id: "G6",
                text: "median error against the plan by limits",
                goal: "≤ 0.6".to_owned(),
                value: number(error),
                met: error.filter(|_| enough).map(|error| error <= 0.6),
            },
            Goal {
                id: "G7",
                text: "median of (P90 + 60 s)/(P50 + 60 s)",
                goal: if is_slurm_like {
                    "≤ 3".to_owned()
                } else {
                    "–".to_owned()
                },
                value: number(first.sharpness),
                met: first
                    .sharpness
                    .filter(|_| enough && is_slurm_like)
                    .map(|ratio| ratio <= 3.0),
            },
            Goal {
                id: "G8",
                text: "the same estimates if the trace ends at its half",
                goal: "all".to_owned(),
                value: match prefix {
                    None => "–".to_owned(),
                    Some(None) => "all".to_owned(),
                    Some(Some(time)) => format!("differ at {time}"),
                },
                met: prefix.map(|differs| differs.is_none()),
            },
        ]
    }
}

/// The first week, from an empty cluster: P90 covers, and there is no P50 before 100 starts. A trace with starts of its own begins in the
/// middle: jobs wait for others that are not in it.
fn cold_start(trace: &Trace, rows: &[Row], is_slurm_like: bool) -> Goal {
    let begin = trace.jobs.first().map_or(0, |job| job.eligible);
    let cold = rows
        .iter()
        .filter(|row| row.estimate.made_at - begin < COLD);
    let early = cold
        .clone()
        .any(|row| row.starts < MIN_STARTS && row.estimate.p50.is_some());
    let outcomes: Vec<_> = cold
        .filter_map(Row::outcome)
        .filter(|outcome| !outcome.later)
        .collect();
    let quality = Quality::of(outcomes.iter());
    let enough = is_slurm_like && quality.n >= MIN_ESTIMATES;
    let covered = quality.covered_p90.filter(|_| enough);
    Goal {
        id: "G9",
        text: "P90 covers in the first week; P50 before 100 starts",
        goal: "≥ 90 %; none".to_owned(),
        value: format!(
            "{}; {}",
            percent(quality.covered_p90),
            if early { "some" } else { "none" }
        ),
        met: covered.map(|covered| covered >= 90.0 && !early),
    }
}

fn percent(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.1} %"))
}

fn number(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.2}"))
}
