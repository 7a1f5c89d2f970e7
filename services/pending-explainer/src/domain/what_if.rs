//! When a job may start if its request were different, and when a job may start that is not submitted yet.
//!
//! - The answer comes from the queue of the last estimate, run forward with and without the change, and never from Slurm.
//! - A difference is called probable if at least 60 % of the forward runs show it.
//! - A changed job keeps its priority. A job that is not submitted yet stands behind all that wait in its partition.
//! - Refused are requests that can never start, and limits that the user's own runs contradict.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::job::v1::Job;
use queue_estimate::what_if::{Effect, PROBABLE, Variant};
use queue_estimate::{Key, Snapshot, Waiting};
use serde::{Deserialize, Serialize};
use slurm_types::Tres;

use super::evidence::Evidence;
use super::judge;
use super::pending_job::PendingJob;
use super::queue::{Queue, Rank};
use super::reason_text::{capital, duration, moment, named, time_limit};
use super::start_estimate::cluster::{self, SchedulingOrder};
use super::start_estimate::{EstimateBasis, StartEstimate, UNLIMITED, size};

/// Most variants of one question.
pub const MAX_CHANGES: usize = 8;

/// What is different in a request. Absent: as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RequestChange {
    /// Time limit in minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_minutes: Option<u32>,
    /// Partition, or several separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Nodes. Amounts that are not given change with them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// CPUs of all nodes together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u64>,
    /// Memory of all nodes together in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// GPUs of all nodes together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u64>,
    /// Account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// QOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
}

/// When a job may start with a request.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct VariantEstimate {
    /// What is different.
    pub change: RequestChange,
    /// `faster` or `later` if that is probable, `same` if not, `possible` if it could not start before, `refused`, or `unknown`.
    pub verdict: &'static str,
    /// The answer in a sentence.
    pub summary: String,
    /// Half of such jobs would start earlier. Absent if that is not known.
    pub start_p50: Option<DateTime<Utc>>,
    /// Nine of ten such jobs would start earlier. Absent if that is not known.
    pub start_p90: Option<DateTime<Utc>>,
    /// Percent of the forward runs in which it starts more than ten minutes earlier.
    pub earlier_percent: Option<usize>,
    /// Percent of the forward runs in which it starts more than ten minutes later.
    pub later_percent: Option<usize>,
    /// By how much it starts earlier in the median of the forward runs. Negative if later.
    pub gain_seconds: Option<i64>,
}

/// A question about other requests.
pub struct WhatIfRequest<'a> {
    /// What the estimates were made from.
    pub basis: &'a EstimateBasis,
    /// The job as it is.
    pub waiting: PendingJob<'a>,
    /// Records that decide.
    pub evidence: &'a Evidence,
    /// True if the job is submitted. Limits of its account are looked at only then.
    pub is_submitted: bool,
}

/// The present request, and its variants.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct WhatIfEstimate {
    /// Estimate of the job as it is. Absent if it cannot start, or if too little is known.
    pub estimate: Option<StartEstimate>,
    /// Why it can never start as it is. Empty if it can.
    pub refused: String,
    /// The variants, in the order of the question.
    pub variants: Vec<VariantEstimate>,
}

impl RequestChange {
    /// The job with the change.
    pub fn apply(&self, job: &Job) -> Job {
        let mut changed = job.clone();
        if let Some(minutes) = self.time_limit_minutes {
            changed.time_limit_minutes = Some(minutes);
        }
        if let Some(partition) = &self.partition {
            changed.partition.clone_from(partition);
        }
        if let Some(qos) = &self.qos {
            changed.qos.clone_from(qos);
        }
        let mut tres = Tres::parse_lossy(&job.req_tres).0;
        if let Some(nodes) = self.nodes {
            let before = tres.nodes().max(u64::from(job.node_count)).max(1);
            let scaled: Vec<(String, u64)> = tres
                .iter()
                .map(|(name, amount)| {
                    let amount = u128::from(amount) * u128::from(nodes) / u128::from(before);
                    (name.to_owned(), u64::try_from(amount).unwrap_or(u64::MAX))
                })
                .collect();
            for (name, amount) in scaled {
                tres.set(name, amount);
            }
            tres.set("node", u64::from(nodes));
            changed.node_count = nodes;
        }
        let amounts = [
            ("cpu", self.cpus),
            ("mem", self.memory_mib),
            ("gres/gpu", self.gpus),
        ];
        for (name, amount) in amounts {
            if let Some(amount) = amount {
                tres.set(name, amount);
            }
        }
        changed.req_tres = tres.to_string();
        changed
    }
}

/// A request for whole nodes of the average size in a partition. `None` without usable nodes.
pub fn whole_nodes(partitions: &str, nodes: u32, evidence: &Evidence) -> Option<Tres> {
    let names = partitions.split(',');
    let members = names.flat_map(|name| evidence.members(name));
    let amounts: Vec<[i64; 3]> = members
        .filter_map(|(_, node)| Some(cluster::usable(node?).0))
        .filter(|[cpus, ..]| *cpus > 0)
        .collect();
    let count = i64::try_from(amounts.len())
        .ok()
        .filter(|count| *count > 0)?;
    let mut tres = Tres::default();
    for (index, name) in ["cpu", "mem", "gres/gpu"].into_iter().enumerate() {
        let sum: i64 = amounts.iter().map(|amounts| amounts[index]).sum();
        let amount = u64::try_from(sum / count * i64::from(nodes)).unwrap_or(0);
        if amount > 0 {
            tres.set(name, amount);
        }
    }
    tres.set("node", u64::from(nodes));
    Some(tres)
}

impl WhatIfRequest<'_> {
    /// WhatIfEstimate it.
    pub fn answer(&self, changes: &[RequestChange]) -> WhatIfEstimate {
        let queue = self.queue();
        let job = self.waiting.job;
        let (snapshot, order) = (&queue.snapshot, &queue.order);
        let refused = match queue.index {
            Some(_) => String::new(),
            None => self
                .refusal(job, self.waiting.account)
                .unwrap_or_else(|| "The draws do not know it.".to_owned()),
        };
        let estimator = self.basis.state.estimator();
        let estimate = queue.index.and_then(|index| {
            let made = estimator.estimate(snapshot, &[index]).pop()?;
            self.basis.state.published(&made)
        });
        // Only what can start is run forward.
        let mut variants = Vec::new();
        let mut answers: Vec<VariantEstimate> = changes
            .iter()
            .map(|change| {
                let changed = change.apply(job);
                let account = change.account.as_deref().unwrap_or(self.waiting.account);
                let refusal = self
                    .refusal(&changed, account)
                    .or_else(|| self.contradiction(&changed));
                match (refusal, self.variant(&changed, order)) {
                    (Some(summary), _) => {
                        VariantEstimate::without_effect(change, "refused", summary)
                    }
                    (None, None) => {
                        let summary = "Its nodes are not known.".to_owned();
                        VariantEstimate::without_effect(change, "unknown", summary)
                    }
                    (None, Some(variant)) => {
                        variants.push(variant);
                        VariantEstimate::without_effect(change, "", String::new())
                    }
                }
            })
            .collect();
        let open = answers
            .iter_mut()
            .filter(|answer| answer.verdict.is_empty());
        match queue.index {
            Some(index) => {
                let effects = estimator.what_if(snapshot, index, &variants);
                let mut effects = effects.into_iter().flatten();
                for answer in open {
                    match effects.next().flatten() {
                        Some(effect) => self.compare(answer, effect),
                        None => {
                            answer.verdict = "unknown";
                            "So many jobs are ahead that it cannot be said."
                                .clone_into(&mut answer.summary);
                        }
                    }
                }
            }
            // Nothing to compare with: when it could start at all.
            None => {
                for (answer, variant) in open.zip(&variants) {
                    self.alone(answer, snapshot, variant);
                }
            }
        }
        WhatIfEstimate {
            estimate,
            refused,
            variants: answers,
        }
    }

    /// The queue with the job in it, if it can start.
    fn queue(&self) -> HypotheticalQueue {
        let view = &self.basis.view;
        let job = self.waiting.job;
        let mut asked = HypotheticalQueue {
            snapshot: view.snapshot.clone(),
            order: view.order.clone(),
            index: view.runs.iter().position(|run| *run == job.run),
        };
        if let Some(index) = asked.index {
            asked.order.remove(index);
        } else if self.refusal(job, self.waiting.account).is_none()
            && let Some(variant) = self.variant(job, &asked.order)
        {
            let waiting = &mut asked.snapshot.waiting;
            waiting.insert(variant.position, variant.job);
            asked.index = Some(variant.position);
        }
        asked
    }

    fn refusal(&self, job: &Job, account: &str) -> Option<String> {
        let known = |name: &str| self.evidence.partition(name).is_some();
        let any_is_known = self.evidence.partition_names().next().is_some();
        let mut partitions = job.partition.split(',');
        if let Some(missing) = partitions.find(|name| any_is_known && !known(name)) {
            return Some(format!(
                "{} does not exist.",
                capital(&named("partition", missing))
            ));
        }
        let waiting = PendingJob {
            job,
            account,
            position: None,
            ..self.waiting
        };
        let never = if self.is_submitted {
            judge::never(&waiting, self.evidence)
        } else {
            judge::never_by_partition(&waiting, self.evidence)
        };
        never.map(|finding| finding.summary)
    }

    /// What the user's last runs say against a shorter limit.
    fn contradiction(&self, changed: &Job) -> Option<String> {
        let (old, new) = (limit(self.waiting.job), limit(changed));
        if new >= old || old == UNLIMITED {
            return None;
        }
        let user = Key::of(self.waiting.user);
        let cut = self.basis.state.estimator().cut(user, old, new)?;
        cut.is_contradiction().then(|| {
            format!(
                "The last {} runs would take up to {} of such a limit: {} would have ended {} of them.",
                cut.runs,
                duration(cut.longest.unsigned_abs()),
                time_limit(changed.time_limit_minutes),
                cut.ended
            )
        })
    }

    /// The request as a waiting job, and where it stands among the others. `None` if its nodes are not known.
    fn variant(&self, job: &Job, others: &[SchedulingOrder]) -> Option<Variant> {
        let view = &self.basis.view;
        let pools = view.pools(&job.partition);
        if pools.is_empty() {
            return None;
        }
        let row = self
            .waiting
            .view
            .queue
            .and_then(|queue| queue.row(&job.run));
        let own =
            cluster::scheduling_order(&job.partition, row.map_or(LAST, Queue::rank), self.evidence);
        let known = view.runs.iter().position(|run| *run == job.run);
        let eligible = known.map_or(view.snapshot.at, |index| {
            view.snapshot.waiting[index].eligible
        });
        let job = Waiting {
            job: Key::of(&job.run),
            user: Key::of(self.waiting.user),
            partition: Key::of(&job.partition),
            pools,
            size: size(&job.req_tres),
            eligible,
            limit: limit(job),
            planned: None,
        };
        let position = others.partition_point(|other| *other <= own);
        Some(Variant { job, position })
    }

    fn compare(&self, answer: &mut VariantEstimate, effect: Effect) {
        self.show(answer, [effect.p50, effect.p90]);
        answer.earlier_percent = Some(effect.earlier);
        answer.later_percent = Some(effect.later);
        answer.gain_seconds = Some(effect.gain);
        let by = duration(effect.gain.unsigned_abs() / 60 * 60);
        (answer.verdict, answer.summary) = if effect.earlier >= PROBABLE {
            (
                "faster",
                format!("It would probably start about {by} earlier."),
            )
        } else if effect.later >= PROBABLE {
            (
                "later",
                format!("It would probably start about {by} later."),
            )
        } else if effect.earlier > 0 {
            let chance = effect.earlier;
            let summary = format!("It would start earlier in {chance} of 100 cases only.");
            ("same", summary)
        } else {
            ("same", "It would not start earlier.".to_owned())
        };
        answer.summary += &self.times(answer);
    }

    fn alone(&self, answer: &mut VariantEstimate, snapshot: &Snapshot, variant: &Variant) {
        let mut changed = snapshot.clone();
        changed
            .waiting
            .insert(variant.position, variant.job.clone());
        let estimator = self.basis.state.estimator();
        let made = estimator.estimate(&changed, &[variant.position]).pop();
        let bounds = made.map_or([None; 2], |made| [made.p50, made.p90]);
        self.show(answer, bounds);
        answer.verdict = "possible";
        answer.summary = format!("It could start.{}", self.times(answer));
    }

    fn show(&self, answer: &mut VariantEstimate, bounds: [Option<i64>; 2]) {
        let at = self.basis.view.snapshot.at;
        let time = |wait: Option<i64>| DateTime::from_timestamp(at + wait?, 0);
        [answer.start_p50, answer.start_p90] = bounds.map(time);
    }

    fn times(&self, answer: &VariantEstimate) -> String {
        let moment = |time| moment(time, self.waiting.now);
        match (answer.start_p50, answer.start_p90) {
            (Some(p50), Some(p90)) => {
                format!(
                    " Likely start {}; at the latest probably {}.",
                    moment(p50),
                    moment(p90)
                )
            }
            (None, Some(p90)) => format!(" At the latest probably {}.", moment(p90)),
            _ => String::new(),
        }
    }
}

/// Rank behind all others.
const LAST: Rank = (std::cmp::Reverse(0), i64::MAX, u32::MAX);

/// The queue of a question.
struct HypotheticalQueue {
    snapshot: Snapshot,
    /// Order of all jobs but the one asked about.
    order: Vec<SchedulingOrder>,
    index: Option<usize>,
}

impl VariantEstimate {
    fn without_effect(change: &RequestChange, verdict: &'static str, summary: String) -> Self {
        Self {
            change: change.clone(),
            verdict,
            summary,
            start_p50: None,
            start_p90: None,
            earlier_percent: None,
            later_percent: None,
            gain_seconds: None,
        }
    }
}

fn limit(job: &Job) -> i64 {
    job.time_limit_minutes
        .map_or(UNLIMITED, |minutes| i64::from(minutes) * 60)
}
