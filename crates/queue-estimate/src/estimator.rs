//! The estimator: what it has learnt, the estimates that are open, and new estimates.
//!
//! Three sources, plan, draws and history, are calibrated each, mixed in log space by their recent losses, and the mix is calibrated again.
//! An estimate follows from the events and snapshots that the estimator was given, and from nothing else.

mod offsets;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use self::offsets::Offsets;
use crate::calibration::{self, Score, Window};
use crate::draws::{self, DRAWS};
use crate::history::{self, Class, RunTimes, Waits};
use crate::queue::{Key, Seconds, Snapshot};

/// A job that starts sooner after it became eligible did not wait.
pub const MIN_WAIT: Seconds = 30;
/// Starts of jobs that waited before there is a P50.
pub const MIN_STARTS: u64 = 100;
/// Starts before the calibration is settled.
pub const SETTLED_STARTS: u64 = 500;
/// From this wait on an estimate is a later one.
pub const LATER_AFTER: Seconds = 1_800;
/// Bounds of the classes of predictions: up to 5 minutes, an hour, 6 hours, a day, more.
pub const CLASS_BOUNDS: [Seconds; 4] = [300, 3_600, 21_600, 86_400];
/// Names of the classes.
pub const CLASS_NAMES: [&str; 5] = ["<5m", "<1h", "<6h", "<24h", ">=24h"];

const CLASSES: usize = CLASS_NAMES.len();
/// First and later estimates, by class.
const BUCKETS: usize = 2 * CLASSES;
/// P50 and P90, in percent.
const BOUNDS: [u32; 2] = [50, 90];
/// Smallest cap of P90.
const MIN_CAP: Seconds = 600;
/// Weight of the newest loss in their mean.
const LOSS_PERCENT: i64 = 3;
/// Sharpness of the weights, for P50 and P90.
const SHARPNESS: [f64; 2] = [8.0, 30.0];
/// Estimates over which a source must not lose against raw history.
const MAX_PAIRS: usize = 500;
/// Fewest estimates for that comparison.
const MIN_PAIRS: usize = 50;
/// Loss, in millionths, before one is known.
const UNKNOWN_LOSS: i64 = 1_000_000;

/// Sources that are calibrated.
const PLAN: usize = 0;
const DRAWN: usize = 1;
const HISTORY: usize = 2;
/// The mix.
const MIX: usize = 3;
/// Raw history, which is not calibrated. Same number as the mix: it is mixed, and calibrated as a part of it.
const RAW: usize = 3;

type Pair = [Option<Seconds>; 2];

/// An estimate of the remaining wait of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// The job.
    pub job: Key,
    user: Key,
    /// When it was made.
    pub made_at: Seconds,
    /// How long the job had waited then.
    pub waited: Seconds,
    /// First or later, and class.
    bucket: u8,
    /// Uncalibrated: plan, draws, history, mix.
    sources: [Pair; 4],
    /// Calibrated: plan, draws, history; and raw history.
    calibrated: [Pair; 4],
    /// One of ten such jobs starts earlier.
    #[serde(default)]
    pub p10: Option<Seconds>,
    /// Likely remaining wait: half of such jobs start earlier.
    pub p50: Option<Seconds>,
    /// Nine of ten such jobs start earlier.
    pub p90: Option<Seconds>,
    /// What it was made from.
    pub method: Method,
    /// Finished estimates that the calibration is based on.
    pub calibration: u32,
}

/// What an estimate was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The plan.
    Plan,
    /// Forward runs.
    Draws,
    /// Waits of similar jobs.
    History,
    /// Several of these.
    Mixed,
    /// Too few starts to calibrate: the larger of plan and draws.
    Uncalibrated,
}

impl Method {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Draws => "draws",
            Self::History => "history",
            Self::Mixed => "mixed",
            Self::Uncalibrated => "uncalibrated",
        }
    }
}

impl Estimate {
    /// True if the job had waited for long: such estimates are scored separately.
    pub fn is_later(&self) -> bool {
        usize::from(self.bucket) >= CLASSES
    }

    /// Index of its class in [`CLASS_NAMES`].
    pub fn class(&self) -> usize {
        usize::from(self.bucket) % CLASSES
    }

    /// The planned remaining wait.
    pub fn plan(&self) -> Option<Seconds> {
        self.sources[PLAN][0]
    }

    /// Quantiles of history alone, to compare with.
    pub fn raw_history(&self) -> Pair {
        self.sources[HISTORY]
    }
}

/// What the losses of a source against raw history were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct PairedLosses {
    /// (Its loss, that of raw history), in millionths of log seconds.
    losses: VecDeque<(i64, i64)>,
}

/// What the estimator has learnt, and its open estimates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimator {
    waits: Waits,
    runs: RunTimes,
    starts: u64,
    /// By source and mix, bound and bucket.
    windows: Vec<Window>,
    /// By source, bound and bucket, in millionths.
    losses: Vec<i64>,
    /// By source, bound, and first or later.
    #[serde(rename = "contests")]
    paired_losses: Vec<PairedLosses>,
    #[serde(with = "crate::map_as_pairs")]
    open: BTreeMap<Key, Vec<Estimate>>,
}

impl Default for Estimator {
    fn default() -> Self {
        Self {
            waits: Waits::default(),
            runs: RunTimes::default(),
            starts: 0,
            windows: vec![Window::default(); 4 * 2 * BUCKETS],
            losses: vec![UNKNOWN_LOSS; 4 * 2 * BUCKETS],
            paired_losses: vec![PairedLosses::default(); 4 * 2 * 2],
            open: BTreeMap::new(),
        }
    }
}

const fn cell(source: usize, bound: usize, bucket: usize) -> usize {
    (source * 2 + bound) * BUCKETS + bucket
}

/// Pinball loss of a quantile.
fn pinball(estimate: f64, actual: f64, bound: usize) -> f64 {
    let share = f64::from(BOUNDS[bound]) / 100.0;
    let over = actual - estimate;
    if over >= 0.0 {
        share * over
    } else {
        (share - 1.0) * over
    }
}

fn millionths(loss: f64) -> i64 {
    (loss * 1e6).round() as i64
}

fn log_loss(estimate: Seconds, actual: Seconds, bound: usize) -> i64 {
    millionths(pinball(
        calibration::log(estimate),
        calibration::log(actual),
        bound,
    ))
}

impl Estimator {
    /// Starts of jobs that waited.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Open estimates.
    pub fn open(&self) -> impl Iterator<Item = &Estimate> {
        self.open.values().flatten()
    }

    /// Open estimates of a job, oldest first.
    pub fn open_of(&self, job: Key) -> &[Estimate] {
        self.open.get(&job).map_or(&[], Vec::as_slice)
    }

    /// A job started: scores its estimates and returns them.
    pub fn started(
        &mut self,
        job: Key,
        class: Class,
        waited: Seconds,
        at: Seconds,
    ) -> Vec<Estimate> {
        if waited >= MIN_WAIT {
            self.starts += 1;
            self.waits.record(class, waited);
        }
        let finished = self.open.remove(&job).unwrap_or_default();
        for estimate in &finished {
            self.finish(estimate, at - estimate.made_at, false);
        }
        finished
    }

    /// A job was cancelled while it waited: it would have waited for longer.
    pub fn cancelled(&mut self, job: Key, at: Seconds) {
        for estimate in self.open.remove(&job).unwrap_or_default() {
            self.finish(&estimate, at - estimate.made_at, true);
        }
    }

    /// The request of a job changed, or it was held: its estimates are not scored.
    pub fn withdraw(&mut self, job: Key) {
        self.open.remove(&job);
    }

    /// A job ended by itself or by its time limit after `run` seconds.
    pub fn ended(&mut self, user: Key, run: Seconds, limit: Seconds, at: Seconds) {
        let share = run.max(0).saturating_mul(i64::from(history::WHOLE_LIMIT)) / limit.max(1);
        // Longer than its limit: some sites let jobs overrun.
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        self.runs
            .record(user, share.min(4 * history::WHOLE_LIMIT), at);
    }

    /// Run times that were seen.
    pub(crate) const fn run_times(&self) -> &RunTimes {
        &self.runs
    }

    /// Opens an estimate, which is scored when its job starts.
    pub fn record(&mut self, estimate: Estimate) {
        self.open.entry(estimate.job).or_default().push(estimate);
    }

    fn finish(&mut self, estimate: &Estimate, actual: Seconds, censored: bool) {
        let bucket = usize::from(estimate.bucket);
        for (bound, _) in BOUNDS.iter().enumerate() {
            for source in [PLAN, DRAWN, HISTORY, MIX] {
                if let Some(raw) = estimate.sources[source][bound] {
                    let value = calibration::score(raw, actual);
                    let score = Score {
                        value,
                        censored,
                        user: estimate.user.0 as u32,
                    };
                    self.windows[cell(source, bound, bucket)].push(score);
                }
            }
            let raw = estimate.calibrated[RAW][bound];
            for source in [PLAN, DRAWN, HISTORY, RAW] {
                let Some(calibrated) = estimate.calibrated[source][bound] else {
                    continue;
                };
                let loss = log_loss(calibrated, actual, bound);
                // The loss of a cancelled job is at least that of its wait so far, and unknown while that is within the estimate.
                if censored && actual < calibrated {
                    continue;
                }
                let mean = &mut self.losses[cell(source, bound, bucket)];
                let weighed = if bound == 0 { 2 * loss } else { loss };
                *mean = if *mean == UNKNOWN_LOSS {
                    weighed
                } else {
                    *mean + (weighed - *mean) * LOSS_PERCENT / 100
                };
                if let (Some(raw), true) = (raw, source != RAW) {
                    let pairs = &mut self.paired_losses
                        [(source * 2 + bound) * 2 + usize::from(estimate.is_later())];
                    if pairs.losses.len() == MAX_PAIRS {
                        pairs.losses.pop_front();
                    }
                    pairs.losses.push_back((loss, log_loss(raw, actual, bound)));
                }
            }
        }
    }

    /// Estimates the remaining waits of the jobs with these indices in the snapshot.
    pub fn estimate(&self, snapshot: &Snapshot, asked: &[usize]) -> Vec<Estimate> {
        self.estimate_with(snapshot, asked, DRAWS)
    }

    /// The same with another number of forward runs.
    pub fn estimate_with(
        &self,
        snapshot: &Snapshot,
        asked: &[usize],
        draws: usize,
    ) -> Vec<Estimate> {
        if asked.is_empty() {
            return Vec::new();
        }
        let starts = draws::starts(snapshot, asked, &self.runs, draws);
        let mut offsets = Offsets::new(self, snapshot.at);
        let longest_open = snapshot
            .waiting
            .iter()
            .map(|job| snapshot.at - job.eligible)
            .max();
        let longest = self.waits.longest().max(longest_open.unwrap_or(0));
        asked
            .iter()
            .map(|index| {
                let job = &snapshot.waiting[*index];
                let waited = (snapshot.at - job.eligible).max(0);
                let class = snapshot.class(job);
                let plan = starts.plan[*index].map(|start| start - snapshot.at);
                let drawn = &starts.draws[*index];
                let draws = [50, 90]
                    .map(|share| history::quantile(drawn, share).map(|start| start - snapshot.at));
                let remaining = self.waits.remaining(class, waited);
                let history = [50, 90].map(|share| history::quantile(&remaining, share));
                let median = draws[0].or(history[0]).or(plan).unwrap_or(0);
                let class_number = CLASS_BOUNDS
                    .iter()
                    .filter(|bound| median >= **bound)
                    .count();
                let bucket = class_number + if waited >= LATER_AFTER { CLASSES } else { 0 };
                let mut estimate = Estimate {
                    job: job.job,
                    user: job.user,
                    made_at: snapshot.at,
                    waited,
                    bucket: bucket as u8,
                    sources: [[plan; 2], draws, history, [None; 2]],
                    calibrated: [[None; 2]; 4],
                    p10: None,
                    p50: None,
                    p90: None,
                    method: Method::Uncalibrated,
                    calibration: 0,
                };
                self.mix(&mut estimate, &mut offsets, longest);
                estimate
            })
            .collect()
    }

    /// Calibrates the sources, mixes them, and calibrates the mix.
    fn mix(&self, estimate: &mut Estimate, offsets: &mut Offsets<'_>, longest: Seconds) {
        let bucket = usize::from(estimate.bucket);
        let mut used = [false; 4];
        let planned = estimate.plan().map_or(0, |plan| plan + estimate.waited);
        let cap = ((longest + longest / 2).max(planned) - estimate.waited).max(MIN_CAP);
        let stretched =
            |raw, offset| (calibration::stretch(raw, offset).round().max(0.0) as Seconds).min(cap);
        let mut bounds: Pair = [None; 2];
        for bound in 0..2 {
            for source in [PLAN, DRAWN, HISTORY] {
                let raw = estimate.sources[source][bound];
                let offset = raw.and_then(|_| offsets.of(source, bound, bucket));
                estimate.calibrated[source][bound] =
                    raw.zip(offset).map(|(raw, offset)| stretched(raw, offset));
            }
            estimate.calibrated[RAW][bound] = estimate.sources[HISTORY][bound];
            let (mut sum, mut weights) = (0.0, 0.0);
            for source in [PLAN, DRAWN, HISTORY, RAW] {
                let Some(value) = estimate.calibrated[source][bound] else {
                    continue;
                };
                if source != RAW && offsets.has_lost(source, bound, bucket / CLASSES) {
                    continue;
                }
                let loss = self.losses[cell(source, bound, bucket)] as f64 / 1e6;
                let weight = (-SHARPNESS[bound] * loss).exp();
                sum += weight * calibration::log(value);
                weights += weight;
                used[source] = true;
            }
            if weights > 0.0 {
                let mixed = calibration::from_log(sum / weights);
                estimate.sources[MIX][bound] = Some(mixed);
                // The sources are calibrated already. The whole offset of the mix would double its noise: half of it covers as many
                // (KTH-SP2), and the pinball loss of P90 is 4 % less.
                bounds[bound] = offsets
                    .of(MIX, bound, bucket)
                    .map(|offset| stretched(mixed, offset / 2));
            }
        }
        estimate.calibration = offsets.finished(bucket) as u32;
        let cautious = estimate.plan().max(estimate.sources[DRAWN][1]);
        if self.starts < MIN_STARTS {
            estimate.p90 = cautious;
            return;
        }
        let [plan, drawn, history] = [used[PLAN], used[DRAWN], used[HISTORY] || used[RAW]];
        estimate.method = match (plan, drawn, history) {
            (true, false, false) => Method::Plan,
            (false, true, false) => Method::Draws,
            (false, false, true) => Method::History,
            _ => Method::Mixed,
        };
        let [p50, p90] = bounds;
        estimate.p50 = p50;
        estimate.p90 = p90.or(cautious).max(p50);
        // The scores of the mixed P50 say by which factor one in ten was below it.
        let early = estimate.sources[MIX][0].zip(offsets.early(bucket));
        estimate.p10 = early
            .zip(p50)
            .map(|((mixed, offset), p50)| stretched(mixed, offset).min(p50));
    }
}
