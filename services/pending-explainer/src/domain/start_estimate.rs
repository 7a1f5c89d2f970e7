//! When waiting jobs may start: the cluster's snapshots through the estimator.
//!
//! - A job that has waited for 30 s has a first estimate, and another whenever its wait has doubled, at least three hours later. These are
//!   scored when it starts.
//! - What is known of a job follows from the snapshots, so that any instance that reads the state goes on with it.
//! - A request that changes, a hold or a limit closes the estimate without a score: the wait begins again once the job contends again.
//! - Partitions that share nodes are one pool, whose free amounts are added up: how nodes are fragmented is left to the calibration.

pub(super) mod cluster;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use chrono::{DateTime, Utc};
use queue_estimate::draws::DRAWS;
use queue_estimate::estimator::{CLASS_NAMES, MIN_STARTS, MIN_WAIT, SETTLED_STARTS};
use queue_estimate::history::Class;
use queue_estimate::quality::{Outcome, Quality};
use queue_estimate::{Estimate, Estimator, Key, Resources, Seconds};
use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::queue::Queue;
use super::reason_text::moment;

pub use cluster::{UNLIMITED, size};

/// Least time between two scored estimates of a job.
const LATER_INTERVAL: Seconds = 3 * 3_600;
/// Finished first estimates that are stored.
const MAX_OUTCOMES: usize = 1_000;
/// Finished estimates over which the published coverage is checked.
const CHECKED_OUTCOMES: usize = 500;
/// Share in percent below which "9 of 10" would be a lie.
const MIN_COVERED: f64 = 80.0;
/// Waiting jobs whose estimates are scored. Of longer queues a sample is, so that the state stays below the bucket's limit of 1 MiB.
const MAX_SCORED: usize = 500;
/// Hard limit of these: a sample of a queue that was shorter stays.
const MAX_WAITING: usize = 600;
/// Running jobs whose run times are learnt. Of more a sample is.
const MAX_RUNNING: usize = 2_000;
/// Age of the evidence from which it says nothing about ends.
const MAX_EVIDENCE_GAP: Seconds = 300;
/// How long after a job left the queue its start may still be found.
const START_DEADLINE: Seconds = 600;

/// What the job asks for, from its newest event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Amounts.
    pub size: Resources,
    /// Time limit.
    pub limit: Seconds,
    /// Since when it is eligible.
    pub eligible: Seconds,
    /// When it started, if that is known.
    pub started_at: Option<Seconds>,
    /// True if it was cancelled while it waited.
    pub cancelled: bool,
}

/// The stored state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EstimateState {
    /// Version of the format.
    pub version: u32,
    /// Time of the newest snapshot.
    pub as_of: Seconds,
    estimator: Estimator,
    waiting: BTreeMap<String, WaitingRun>,
    running: BTreeMap<u32, RunningRun>,
    evidence_as_of: Seconds,
    /// First estimates that are finished: partition, when they were, what they were.
    outcomes: VecDeque<(String, Seconds, Outcome)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct WaitingRun {
    job_id: u32,
    partition: String,
    limit: Seconds,
    /// CPUs, memory, GPUs.
    size: [i64; 3],
    eligible: Seconds,
    class: Class,
    /// Since when it is not in the queue.
    gone_at: Option<Seconds>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RunningRun {
    user: Key,
    start: Seconds,
    limit: Seconds,
}

/// When a job may start.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct StartEstimate {
    /// One of ten such jobs starts earlier. Absent as `start_p50`.
    pub start_p10: Option<DateTime<Utc>>,
    /// Half of such jobs start earlier. Absent before enough jobs have started.
    pub start_p50: Option<DateTime<Utc>>,
    /// Nine of ten such jobs start earlier.
    pub start_p90: Option<DateTime<Utc>>,
    /// What it was made from: `plan`, `draws`, `history`, `mixed` of several, or `uncalibrated`.
    pub method: &'static str,
    /// What the calibration is based on.
    pub calibration: Calibration,
    /// What makes it less certain. Empty if nothing does.
    pub note: String,
}

impl StartEstimate {
    /// The sentence for the owner. Where fewer than 8 of 10 started in time, "9 of 10" would be a lie.
    pub fn sentence(&self, now: DateTime<Utc>) -> String {
        let covered = self.calibration.covered_p90;
        let share = match covered {
            Some(covered) if covered < MIN_COVERED => "usually it starts",
            _ => "9 of 10 such jobs start",
        };
        match (self.start_p50, self.start_p90) {
            (Some(p50), Some(p90)) => {
                let (p50, p90) = (moment(p50, now), moment(p90, now));
                format!(" Likely start {p50}; {share} by {p90}.")
            }
            _ => String::new(),
        }
    }
}

/// How often estimates of this class were right.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Calibration {
    /// Class of the remaining wait.
    pub class: &'static str,
    /// Finished estimates that it is based on.
    pub n: u32,
    /// Share in percent of the last 500 of the class that started by P90. Absent without any.
    pub covered_p90: Option<f64>,
}

/// Figures of a partition and class.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QualityRow {
    /// Partition. Empty for all.
    pub partition: String,
    /// Class. Empty for all.
    pub class: &'static str,
    /// The figures.
    #[serde(flatten)]
    pub quality: Quality,
}

/// How often the estimates of a cluster were right.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ClusterQuality {
    /// Jobs that waited and have started.
    pub starts: u64,
    /// Estimates whose job still waits.
    pub open: usize,
    /// The oldest one that counts.
    pub since: Option<DateTime<Utc>>,
    /// What is not settled yet. Empty if nothing is.
    pub note: String,
    /// First estimates of the last 1,000 starts, by partition and class.
    pub rows: Vec<QualityRow>,
}

/// What estimates were made from, for questions about other requests.
#[derive(Debug)]
pub struct EstimateBasis {
    /// What was known.
    pub state: EstimateState,
    /// The queue.
    pub(super) view: cluster::QueueView,
}

/// What a snapshot changed.
#[derive(Debug)]
pub struct EstimateUpdate {
    /// Estimates of waiting runs.
    pub estimates: HashMap<String, StartEstimate>,
    /// Estimates that were finished by a start.
    pub finished: Vec<Outcome>,
    /// What the estimates were made from.
    view: cluster::QueueView,
}

impl EstimateUpdate {
    /// What the estimates were made from, with the state after the step.
    pub fn basis(self, state: EstimateState) -> EstimateBasis {
        let view = self.view;
        EstimateBasis { state, view }
    }
}

impl EstimateState {
    /// Takes in a snapshot: scores the estimates of jobs that started, and makes new ones.
    pub fn update(
        &mut self,
        queue: &Queue,
        evidence: &Evidence,
        requests: &HashMap<String, Request>,
        draws: usize,
    ) -> EstimateUpdate {
        let at = queue.taken_at.timestamp();
        let finished = self.leave(at, queue, evidence, requests);
        self.follow_running(evidence);
        let view = cluster::snapshot(at, queue, evidence, requests, |run| {
            self.waiting.get(run).map(|waiting| waiting.eligible)
        });
        self.enter(&view);
        let all: Vec<usize> = (0..view.snapshot.waiting.len()).collect();
        let made = self
            .estimator
            .estimate_with(&view.snapshot, &all, draws.min(DRAWS));
        let mut estimates = HashMap::new();
        for (run, estimate) in view.runs.iter().zip(made) {
            if estimate.waited < MIN_WAIT {
                continue;
            }
            if let Some(estimate) = self.published(&estimate) {
                estimates.insert(run.clone(), estimate);
            }
            let last = self.estimator.open_of(estimate.job).last();
            let is_due =
                last.is_none_or(|last| at - last.made_at >= LATER_INTERVAL.max(last.waited));
            if is_due && self.waiting.contains_key(run) {
                self.estimator.record(estimate);
            }
        }
        self.as_of = at;
        EstimateUpdate {
            estimates,
            finished,
            view,
        }
    }

    /// Runs that are not in the queue any more, and runs that do not contend for now.
    fn leave(
        &mut self,
        at: Seconds,
        queue: &Queue,
        evidence: &Evidence,
        requests: &HashMap<String, Request>,
    ) -> Vec<Outcome> {
        let mut finished = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|run, waiting| {
            let job = Key::of(run);
            let request = requests.get(run);
            if let Some(row) = queue.row(run) {
                let is_same = request.is_none_or(|request| {
                    (request.limit, request.size.0) == (waiting.limit, waiting.size)
                }) && row.partition == waiting.partition;
                if !is_same || !queue.contends(run) {
                    self.estimator.withdraw(job);
                    return false;
                }
                waiting.gone_at = None;
                return true;
            }
            let gone_at = *waiting.gone_at.get_or_insert(at);
            let allocation = evidence.running(waiting.job_id).map(|row| row.start);
            let started = allocation.filter(|start| *start >= waiting.eligible);
            let started = started.or(request.and_then(|request| request.started_at));
            if let Some(start) = started {
                let waited = (start - waiting.eligible).max(0);
                for estimate in self.estimator.started(job, waiting.class, waited, start) {
                    let outcome = Outcome::of(&estimate, start);
                    finished.push(outcome);
                    if !outcome.later {
                        if self.outcomes.len() == MAX_OUTCOMES {
                            self.outcomes.pop_front();
                        }
                        self.outcomes
                            .push_back((waiting.partition.clone(), start, outcome));
                    }
                }
                return false;
            }
            if request.is_some_and(|request| request.cancelled) {
                self.estimator.cancelled(job, gone_at);
                return false;
            }
            // Nobody has seen what became of it yet, or nobody will.
            let is_open = at - gone_at < START_DEADLINE;
            if !is_open {
                self.estimator.withdraw(job);
            }
            is_open
        });
        self.waiting = waiting;
        finished
    }

    /// Learns the run times of jobs that are not running any more.
    fn follow_running(&mut self, evidence: &Evidence) {
        let at = evidence.taken_at.timestamp();
        if at <= self.evidence_as_of || evidence.failed.contains_key("running") {
            return;
        }
        let is_recent = at - self.evidence_as_of <= MAX_EVIDENCE_GAP;
        let present: HashSet<(u32, Seconds)> = evidence
            .running
            .iter()
            .map(|row| (row.job_id, row.start))
            .collect();
        let mut running = BTreeMap::new();
        let sample = u32::try_from(evidence.running.len() / MAX_RUNNING + 1).unwrap_or(u32::MAX);
        let rows = evidence.running.iter();
        for row in rows.filter(|row| row.job_id.is_multiple_of(sample)) {
            let run = RunningRun {
                user: Key::of(&row.user),
                start: row.start,
                limit: cluster::limit(row),
            };
            running.insert(row.job_id, run);
        }
        for (job, run) in std::mem::take(&mut self.running) {
            let is_same = present.contains(&(job, run.start));
            if !is_same && is_recent && run.start > 0 {
                self.estimator
                    .ended(run.user, at - run.start, run.limit, at);
            }
        }
        self.running = running;
        self.evidence_as_of = at;
    }

    fn enter(&mut self, view: &cluster::QueueView) {
        let sample = (view.runs.len() / MAX_SCORED + 1) as u64;
        for (index, run) in view.runs.iter().enumerate() {
            let job = &view.snapshot.waiting[index];
            if !job.job.0.is_multiple_of(sample) || self.waiting.len() >= MAX_WAITING {
                continue;
            }
            self.waiting
                .entry(run.clone())
                .or_insert_with(|| WaitingRun {
                    job_id: view.job_ids[index],
                    partition: view.partitions[index].clone(),
                    limit: job.limit,
                    size: job.size.0,
                    eligible: job.eligible,
                    class: view.snapshot.class(job),
                    gone_at: None,
                });
        }
    }

    /// The estimate that the owner sees. `None` if there is neither bound.
    pub(super) fn published(&self, estimate: &Estimate) -> Option<StartEstimate> {
        let time = |wait: Option<Seconds>| DateTime::from_timestamp(estimate.made_at + wait?, 0);
        let (start_p50, start_p90) = (time(estimate.p50), time(estimate.p90));
        start_p90?;
        let class = estimate.class();
        let of_class = self.outcomes.iter().rev().map(|(_, _, outcome)| outcome);
        let of_class = of_class.filter(|outcome| usize::from(outcome.class) == class);
        let covered_p90 = Quality::of(of_class.take(CHECKED_OUTCOMES)).covered_p90;
        let note = if self.estimator.starts() < MIN_STARTS {
            format!("too early for a likely time: it needs {MIN_STARTS} starts of jobs that waited")
        } else if self.estimator.starts() < SETTLED_STARTS {
            format!("calibrated by fewer than {SETTLED_STARTS} starts")
        } else {
            String::new()
        };
        Some(StartEstimate {
            start_p10: time(estimate.p10),
            start_p50,
            start_p90,
            method: estimate.method.as_str(),
            calibration: Calibration {
                class: CLASS_NAMES[class],
                n: estimate.calibration,
                covered_p90,
            },
            note,
        })
    }

    /// What was learnt.
    pub(super) const fn estimator(&self) -> &Estimator {
        &self.estimator
    }

    /// How often the estimates were right.
    pub fn quality(&self) -> ClusterQuality {
        let starts = self.estimator.starts();
        let note = if starts < MIN_STARTS {
            format!("No likely times until {MIN_STARTS} jobs that waited have started.")
        } else {
            String::new()
        };
        let outcomes = || self.outcomes.iter();
        let mut rows = vec![QualityRow {
            partition: String::new(),
            class: "",
            quality: Quality::of(outcomes().map(|(_, _, outcome)| outcome)),
        }];
        let mut partitions: Vec<&String> = outcomes().map(|(partition, _, _)| partition).collect();
        partitions.sort_unstable();
        partitions.dedup();
        for partition in partitions {
            let own = outcomes().filter(|(other, _, _)| other == partition);
            let own: Vec<Outcome> = own.map(|(_, _, outcome)| *outcome).collect();
            let classes = Quality::classes(own.iter()).filter(|(_, quality)| quality.n > 0);
            rows.extend(classes.map(|(class, quality)| QualityRow {
                partition: partition.clone(),
                class,
                quality,
            }));
        }
        ClusterQuality {
            starts,
            open: self.estimator.open().count(),
            since: self
                .outcomes
                .front()
                .and_then(|(_, at, _)| DateTime::from_timestamp(*at, 0)),
            note,
            rows,
        }
    }

    /// Classes whose last 500 estimates covered too few: there, "9 of 10" must not be said.
    pub fn dishonest_classes(&self) -> Vec<&'static str> {
        let recent: Vec<Outcome> = self
            .outcomes
            .iter()
            .rev()
            .take(CHECKED_OUTCOMES)
            .map(|(_, _, outcome)| *outcome)
            .collect();
        Quality::classes(recent.iter())
            .filter(|(_, quality)| quality.n >= 50)
            .filter(|(_, quality)| {
                quality
                    .covered_p90
                    .is_some_and(|covered| covered < MIN_COVERED)
            })
            .map(|(class, _)| class)
            .collect()
    }
}

#[cfg(test)]
mod tests;
