//! Extracts the facts needed for pricing from Slurm's snapshots of a job.
//!
//! A run is assembled from its events: the snapshot at its start, the suspensions, resumptions and resizes with their times, and the
//! snapshot at its end. Events may arrive in any order, and some may be missing. The last snapshot then fills the gaps where possible.

use std::collections::BTreeSet;

use mesh_events::proto::mesh::job::v1::{Job, Usage as JobUsage};
use num_traits::Zero as _;
use pbjson_types::Timestamp;
use slurm_types::{HostList, JobBaseState, Tres};

use crate::domain::billing::BillingSegment;
use crate::domain::suspension::{self, SuspensionChange};
use crate::domain::waste::Used;
use crate::domain::{Amounts, Exact, NodeAmounts, Run, Segment};

/// Known facts of a run, from its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunHistory {
    /// The job when its run was first seen running.
    pub start: Option<Job>,
    /// Suspensions and resumptions.
    pub marks: Vec<(i64, SuspensionChange)>,
    /// Resizes: time, and the job afterwards.
    pub resizes: Vec<(i64, Job)>,
    /// Time of the end (Unix seconds), and its record.
    pub end: Option<(i64, Job)>,
    /// Account charged.
    pub account: String,
}

/// The resources that a run held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Allocation for node prices.
    pub run: Run,
    /// Billing units for billing prices.
    pub billing: Vec<BillingSegment>,
    /// The partition it ran in.
    pub partition: String,
}

/// The fields of a job needed for pricing and lists of running jobs, about 200 bytes. They are stored permanently for every run.
pub fn pricing_facts(job: &Job) -> Job {
    Job {
        job_id: job.job_id,
        display_id: job.display_id.clone(),
        run: job.run.clone(),
        name: job.name.clone(),
        partition: job.partition.clone(),
        qos: job.qos.clone(),
        state: job.state.clone(),
        start_time: job.start_time,
        end_time: job.end_time,
        time_limit_minutes: job.time_limit_minutes,
        suspended_seconds: job.suspended_seconds,
        nodes: job.nodes.clone(),
        alloc_tres: job.alloc_tres.clone(),
        allocations: job.allocations.clone(),
        exclusive: job.exclusive,
        usage: job.usage.as_ref().map(measured),
        ..Job::default()
    }
}

/// The fields of a pending job that its cost at the time limit is computed from.
pub fn request_facts(job: &Job) -> Job {
    Job {
        node_count: job.node_count,
        req_tres: job.req_tres.clone(),
        ..pricing_facts(job)
    }
}

/// What waste is computed from.
pub fn measured(usage: &JobUsage) -> JobUsage {
    JobUsage {
        cpu_seconds: usage.cpu_seconds,
        memory_kib: usage.memory_kib,
        incomplete: usage.incomplete,
        ..JobUsage::default()
    }
}

/// The usage of a run after another record: a complete one is never replaced by an incomplete one, or by none.
pub fn better_usage(known: Option<&JobUsage>, new: Option<&JobUsage>) -> Option<JobUsage> {
    let is_better = |known: &&JobUsage| new.is_none_or(|new| new.incomplete && !known.incomplete);
    known.filter(is_better).or(new).map(measured)
}

/// What the run used by its record. Slurm's records of steps that are not complete are too low, so they say nothing. Slurm has no mean
/// use of GPUs, so theirs is not known.
pub fn used(record: &Job) -> Used {
    let Some(usage) = record.usage.as_ref().filter(|usage| !usage.incomplete) else {
        return Used::default();
    };
    let allocated = Tres::parse_lossy(&record.alloc_tres).0.mem_mib();
    let peak = usage.memory_kib.div_ceil(1024);
    Used {
        // 0 was not measured.
        cpu_seconds: (usage.cpu_seconds > 0).then_some(usage.cpu_seconds),
        mem_mib: (peak > 0).then(|| peak.min(allocated.unwrap_or(peak))),
        gpus: None,
    }
}

/// Most tags of a job that count.
const MAX_TAGS: usize = 16;
/// Longest tag.
const MAX_TAG_BYTES: usize = 128;

/// The job's tags, `key=value`, sorted, one per line: words `tag:key=value` of its comment and its wckey.
pub fn tags(job: &Job) -> String {
    let words = job
        .comment
        .split_whitespace()
        .chain(job.wckey.split_whitespace());
    let tags: BTreeSet<&str> = words
        .filter_map(|word| word.trim_end_matches([',', ';']).strip_prefix("tag:"))
        .filter(|tag| tag.len() <= MAX_TAG_BYTES)
        .filter(|tag| matches!(tag.split_once('='), Some((key, value)) if !key.is_empty() && !value.is_empty()))
        .take(MAX_TAGS)
        .collect();
    tags.into_iter().collect::<Vec<_>>().join("\n")
}

/// True if the run got an allocation. Slurm sets a start time, but no nodes, for some jobs that were cancelled while pending.
pub fn has_started(job: &Job) -> bool {
    job.start_time.is_some() && (!job.alloc_tres.is_empty() || !allocation(job).is_empty())
}

/// Converts a time to Unix seconds.
pub fn seconds(time: Option<&Timestamp>) -> Option<i64> {
    time.map(|time| time.seconds)
}

/// Allocation per node: as reported by Slurm, else the totals split evenly. Decided per resource, because the JSON of Slurm 22.05 has
/// cores and memory per node, but GPUs only as a total.
pub fn allocation(job: &Job) -> Vec<NodeAmounts> {
    let expand = |nodes: &str| HostList::expand(nodes).unwrap_or_default();
    let mut held: Vec<NodeAmounts> = job
        .allocations
        .iter()
        .flat_map(|part| {
            let amounts = Amounts::new(
                part.cpus.into(),
                part.memory_mib.unwrap_or_default(),
                part.gpus.into(),
            );
            expand(&part.nodes)
                .into_iter()
                .map(move |node| NodeAmounts {
                    node,
                    amounts: amounts.clone(),
                })
        })
        .collect();
    if held.is_empty() {
        held = expand(&job.nodes)
            .into_iter()
            .map(|node| NodeAmounts {
                node,
                amounts: Amounts::default(),
            })
            .collect();
    }
    let (totals, _) = Tres::parse_lossy(&job.alloc_tres);
    let each = Amounts::new(
        totals.cpus(),
        totals.mem_mib().unwrap_or_default(),
        totals.gpus(),
    )
    .over(held.len());
    let unknown =
        |amount: fn(&Amounts) -> &Exact| held.iter().all(|held| amount(&held.amounts).is_zero());
    let (no_cpu, no_mem, no_gpu) = (
        unknown(|a| &a.cpu),
        unknown(|a| &a.mem_mib),
        unknown(|a| &a.gpu),
    );
    for NodeAmounts { amounts, .. } in &mut held {
        if no_cpu {
            amounts.cpu.clone_from(&each.cpu);
        }
        if no_mem {
            amounts.mem_mib.clone_from(&each.mem_mib);
        }
        if no_gpu {
            amounts.gpu.clone_from(&each.gpu);
        }
    }
    held
}

/// End of the charged time of a run that ended at `end`. A run whose nodes did not boot (`BOOT_FAIL`) is charged no time: it never held
/// a usable node. Its time is boot time of the nodes, like the time before the start that Slurm resets once nodes have booted.
pub fn charged_until(history: &RunHistory, newest: &Job, end: i64) -> i64 {
    if newest.state == JobBaseState::BootFail.name() {
        start_of(history, newest).map_or(end, |start| end.min(start))
    } else {
        end
    }
}

/// The newest record has the most accurate start: Slurm resets it when cloud nodes have booted.
fn start_of(history: &RunHistory, newest: &Job) -> Option<i64> {
    seconds(newest.start_time.as_ref())
        .or_else(|| seconds(history.start.as_ref()?.start_time.as_ref()))
}

/// Billing units, if Slurm reports them.
pub fn billing_units(job: &Job) -> Option<u64> {
    Tres::parse_lossy(&job.alloc_tres).0.billing()
}

/// The usage of a run from its history and its newest snapshot, up to `end`.
pub fn usage(history: &RunHistory, newest: &Job, end: i64) -> Usage {
    let start = start_of(history, newest);
    let mut resizes: Vec<_> = history.resizes.iter().map(|(at, job)| (*at, job)).collect();
    resizes.sort_by_key(|(at, _)| *at);
    // Accounting drops the allocation per node, so the first snapshot is preferred if it has it.
    let first = history
        .start
        .as_ref()
        .filter(|job| !allocation(job).is_empty())
        .unwrap_or(newest);
    let mut snapshots = vec![(start.unwrap_or(end), first)];
    snapshots.extend(resizes);
    let ends = snapshots
        .iter()
        .skip(1)
        .map(|(at, _)| Some(*at))
        .chain([None]);
    let parts: Vec<_> = snapshots
        .iter()
        .zip(ends)
        .map(|(&(from, job), to)| (from, to, job))
        .collect();
    let mut known = suspension::intervals(&history.marks, end);
    // While the run is active, the sum lacks the current suspension, and some sources have no sum.
    if newest.end_time.is_some() && newest.suspended_seconds > 0 {
        known = suspension::limited_to(known, newest.suspended_seconds);
    }
    let suspensions =
        suspension::complete(known, start.unwrap_or(end), end, newest.suspended_seconds);
    Usage {
        run: Run {
            start,
            end,
            segments: parts
                .iter()
                .map(|&(from, to, job)| Segment {
                    from,
                    to,
                    allocation: allocation(job),
                })
                .collect(),
            suspensions,
            exclusive: newest.exclusive || first.exclusive,
        },
        billing: parts
            .iter()
            .filter_map(|&(from, to, job)| {
                Some(BillingSegment {
                    from,
                    to,
                    units: billing_units(job)?,
                })
            })
            .collect(),
        partition: first.partition.clone(),
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::job::v1::NodeAllocation;
    use prost::Message as _;

    use super::*;
    use crate::domain::money::ratio;

    fn job() -> Job {
        let start = Timestamp {
            seconds: 100,
            nanos: 0,
        };
        Job {
            partition: "cpu".into(),
            start_time: Some(start),
            nodes: "n[1-2]".into(),
            alloc_tres: "cpu=3,mem=8G,node=2,billing=5,gres/gpu=1".into(),
            ..Job::default()
        }
    }

    fn cpus(allocation: &[NodeAmounts]) -> Vec<(&str, Exact)> {
        allocation
            .iter()
            .map(|held| (held.node.as_str(), held.amounts.cpu.clone()))
            .collect()
    }

    #[test]
    fn totals_are_split_evenly_unless_slurm_reports_each_node() {
        let mut job = job();
        let half = ratio(3, 2).unwrap();
        assert_eq!(
            cpus(&allocation(&job)),
            [("n1", half.clone()), ("n2", half)]
        );
        let part = |nodes: &str, cpus| NodeAllocation {
            nodes: nodes.into(),
            cpus,
            ..NodeAllocation::default()
        };
        job.allocations = vec![part("n1", 2), part("n2", 1)];
        let held = allocation(&job);
        assert_eq!(
            cpus(&held),
            [("n1", ratio(2, 1).unwrap()), ("n2", ratio(1, 1).unwrap())]
        );
        // For GPUs and memory only the total is known.
        for node in held {
            assert_eq!(
                (node.amounts.gpu, node.amounts.mem_mib),
                (ratio(1, 2).unwrap(), ratio(4096, 1).unwrap())
            );
        }
    }

    #[test]
    fn tags_are_words_of_the_comment_and_the_wckey() {
        let job = Job {
            comment: "nightly tag:project=atlas, tag:x= tag:=y tag:stage=b=c".into(),
            wckey: "tag:grant=A-17".into(),
            ..job()
        };
        assert_eq!(tags(&job), "grant=A-17\nproject=atlas\nstage=b=c");
        assert_eq!(tags(&Job::default()), "");
    }

    #[test]
    fn a_start_time_alone_is_no_start() {
        assert!(has_started(&job()));
        let cancelled = Job {
            nodes: "None assigned".into(),
            alloc_tres: String::new(),
            ..job()
        };
        assert!(!has_started(&cancelled));
        assert!(!has_started(&Job {
            start_time: None,
            ..job()
        }));
    }

    #[test]
    fn resizes_cut_the_run() {
        let smaller = Job {
            nodes: "n1".into(),
            alloc_tres: "cpu=2,billing=2".into(),
            ..job()
        };
        let history = RunHistory {
            start: Some(job()),
            resizes: vec![(150, smaller.clone())],
            ..RunHistory::default()
        };
        let usage = usage(&history, &smaller, 200);
        let segments: Vec<_> = usage
            .run
            .segments
            .iter()
            .map(|s| (s.from, s.to, s.allocation.len()))
            .collect();
        assert_eq!(segments, [(100, Some(150), 2), (150, None, 1)]);
        let units: Vec<_> = usage.billing.iter().map(|s| s.units).collect();
        assert_eq!(units, [5, 2]);
    }

    #[test]
    fn the_end_record_supplies_missed_fields() {
        let ended = Job {
            suspended_seconds: 30,
            ..job()
        };
        let usage = usage(&RunHistory::default(), &ended, 200);
        assert_eq!(usage.run.start, Some(100));
        assert_eq!(usage.run.suspensions, [(170, 200)]);
        assert_eq!(usage.run.segments[0].allocation.len(), 2);
    }

    #[test]
    fn a_run_that_went_on_unseen_is_charged_for_it() {
        let history = RunHistory {
            marks: vec![
                (130, SuspensionChange::Suspended),
                (190, SuspensionChange::Resumed),
            ],
            ..RunHistory::default()
        };
        let end_time = Some(Timestamp {
            seconds: 200,
            nanos: 0,
        });
        let suspensions = |suspended_seconds, end_time| {
            let newest = Job {
                suspended_seconds,
                end_time,
                ..job()
            };
            usage(&history, &newest, 200).run.suspensions
        };
        assert_eq!(suspensions(40, end_time), [(130, 170)]);
        // While the run is active, and for sources without a sum.
        assert_eq!(suspensions(40, None), [(130, 190)]);
        assert_eq!(suspensions(0, end_time), [(130, 190)]);
    }

    #[test]
    fn an_ordinary_run_is_stored_in_three_hundred_bytes() {
        let time = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let start = Job {
            job_id: 1_234_567,
            display_id: "1234567".into(),
            run: "1234567.1785283200".into(),
            name: "train-llama".into(),
            partition: "gpu-a100".into(),
            qos: "normal".into(),
            state: "RUNNING".into(),
            start_time: time(1_785_283_260),
            time_limit_minutes: Some(1_440),
            nodes: "a100-01".into(),
            alloc_tres: "billing=16,cpu=16,gres/gpu=1,mem=64G,node=1".into(),
            // Not needed for prices, so not stored.
            work_dir: "/home/alice/projects/llama".into(),
            comment: "x".repeat(500),
            ..Job::default()
        };
        let end = Job {
            state: "COMPLETED".into(),
            end_time: time(1_785_290_000),
            ..start.clone()
        };
        let stored = [start, end].map(|job| pricing_facts(&job).encoded_len());
        assert!(stored.iter().sum::<usize>() <= 300, "{stored:?}");
    }

    #[test]
    fn a_start_time_that_slurm_changed_is_used() {
        let booted = Job {
            start_time: Some(Timestamp {
                seconds: 130,
                nanos: 0,
            }),
            ..job()
        };
        let history = RunHistory {
            start: Some(job()),
            ..RunHistory::default()
        };
        assert_eq!(usage(&history, &booted, 200).run.start, Some(130));
    }
}
