//! What an event adds to which counter, and what it says about allocations.

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::{Job, Usage};
use mesh_events::{Category, Event, EventType, from_timestamp};
use slurm_types::Tres;

use super::counters::{
    COST_MICROS, CPU_SECONDS, ENDS, GPU_SECONDS, MEMORY_KIB_SECONDS, NODE_EVENTS, PREEMPTIONS,
    RUN_BUCKETS, RUN_SUM, STARTED, SUBMITTED, WAIT_BUCKETS, WAIT_SUM, bucket, labels,
};
use super::gpus;

/// All ends of a run, as in event types. Every one is a series as soon as a partition and account are known, because `increase()` does not
/// see the first increment of a series.
pub const END_TYPES: [EventType; 11] = [
    EventType::JobCompleted,
    EventType::JobFailed,
    EventType::JobCancelled,
    EventType::JobTimeout,
    EventType::JobOutOfMemory,
    EventType::JobNodeFail,
    EventType::JobPreempted,
    EventType::JobBootFail,
    EventType::JobDeadline,
    EventType::JobRevoked,
    EventType::JobRequeued,
];

/// An amount to add to a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Increment {
    /// Metric.
    pub metric: &'static str,
    /// Label values in the stored form.
    pub labels: String,
    /// Amount, at least 0.
    pub amount: i64,
}

/// What a run holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Partition.
    pub partition: String,
    /// Account.
    pub account: String,
    /// Owner.
    pub user: String,
    /// GPUs.
    pub gpus: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Job id.
    pub job_id: i64,
    /// GPUs by node, in the stored form.
    pub gpu_places: String,
}

/// What an event changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountChange {
    /// Amounts to add.
    pub increments: Vec<Increment>,
    /// What was observed: buckets, labels of the bucket in the stored form, seconds.
    pub observations: Vec<(&'static str, String, i64)>,
    /// Entity key of the run whose allocation changes, and the new one; `None` if it ended.
    pub allocation: Option<(String, Option<Allocation>)>,
}

impl CountChange {
    /// True if there is nothing to count.
    pub fn is_empty(&self) -> bool {
        self.increments.is_empty() && self.allocation.is_none()
    }

    fn add(&mut self, metric: &'static str, values: &[&str], amount: i64) {
        self.increments.push(Increment {
            metric,
            labels: labels(values),
            amount: amount.max(0),
        });
    }

    fn observe(&mut self, buckets: &'static str, sum: &'static str, values: &[&str], seconds: i64) {
        let seconds = seconds.max(0);
        let bucket = bucket(seconds);
        let with_bucket: Vec<&str> = values.iter().copied().chain([bucket.as_str()]).collect();
        self.add(buckets, &with_bucket, 1);
        self.observations
            .push((buckets, labels(&with_bucket), seconds));
        self.add(sum, values, seconds);
    }
}

/// The change that an event makes.
pub fn of(event: &Event) -> CountChange {
    let mut change = CountChange::default();
    let Ok(kind) = event.kind() else {
        return change;
    };
    match (&event.payload, event.job()) {
        (Some(Payload::Job(_)), Some(job)) => of_job(kind, event, job, &mut change),
        (Some(Payload::Cost(cost)), _) if kind == EventType::CostFinalized => {
            if let Some(total) = &cost.total {
                let labels = [account(event), total.currency.as_str()];
                change.add(COST_MICROS, &labels, total.micros);
            }
        }
        _ if kind.category() == Category::Node => change.add(NODE_EVENTS, &[kind.event()], 1),
        _ => {}
    }
    change
}

fn account(event: &Event) -> &str {
    event.owner.as_ref().map_or("", |owner| &owner.account)
}

fn of_job(kind: EventType, event: &Event, job: &Job, change: &mut CountChange) {
    // A job that waits in several partitions is counted in the first, as Slurm itself does.
    let partition = job.partition.split(',').next().unwrap_or_default();
    let account = account(event);
    match kind {
        EventType::JobSubmitted => {
            change.add(SUBMITTED, &[partition, account], 1);
            for end in END_TYPES {
                change.add(ENDS, &[partition, account, end.event()], 0);
            }
        }
        EventType::JobStarted => {
            change.add(STARTED, &[partition, account], 1);
            // A requeued job has waited before; only the first wait is that of its owner.
            if job.restarts.unwrap_or_default() == 0
                && let Some(wait) = seconds_between(&job.eligible_time, &job.start_time)
            {
                let labels = [partition, job.qos.as_str()];
                change.observe(WAIT_BUCKETS, WAIT_SUM, &labels, wait);
            }
            change.allocation = Some((job.run.clone(), Some(allocation(event, job, partition))));
        }
        EventType::JobBaseline | EventType::JobResized if !job.alloc_tres.is_empty() => {
            change.allocation = Some((job.run.clone(), Some(allocation(event, job, partition))));
        }
        EventType::JobUpdated => {
            if let Some(usage) = &job.usage {
                used(usage, job, [partition, account], change);
            }
        }
        kind if kind.is_end() || kind == EventType::JobRequeued => {
            for end in END_TYPES {
                let amount = i64::from(end == kind);
                change.add(ENDS, &[partition, account, end.event()], amount);
            }
            if kind == EventType::JobPreempted {
                change.add(PREEMPTIONS, &[partition], 1);
            }
            if let Some(ran) = seconds_between(&job.start_time, &job.end_time) {
                change.observe(RUN_BUCKETS, RUN_SUM, &[partition], ran);
            }
            change.allocation = Some((job.run.clone(), None));
        }
        _ => {}
    }
}

fn allocation(event: &Event, job: &Job, partition: &str) -> Allocation {
    let (tres, _) = Tres::parse_lossy(&job.alloc_tres);
    Allocation {
        partition: partition.to_owned(),
        account: account(event).to_owned(),
        user: event
            .owner
            .as_ref()
            .map_or_else(String::new, |owner| owner.user.clone()),
        gpus: signed(tres.gpus()),
        memory_mib: signed(tres.mem_mib().unwrap_or_default()),
        job_id: job.job_id.into(),
        gpu_places: gpus::places(&job.allocations),
    }
}

/// What a run used and what it had, both only of runs whose use is known: else their ratio would be wrong.
fn used(usage: &Usage, job: &Job, [partition, account]: [&str; 2], change: &mut CountChange) {
    let (tres, _) = Tres::parse_lossy(&job.alloc_tres);
    let elapsed = usage.elapsed_seconds;
    let mut both = |metric, used: u64, allocated: u64| {
        change.add(metric, &[partition, account, "used"], signed(used));
        change.add(
            metric,
            &[partition, account, "allocated"],
            signed(allocated),
        );
    };
    both(
        CPU_SECONDS,
        usage.cpu_seconds,
        tres.cpus().saturating_mul(elapsed),
    );
    if let (Some(mib), 1..) = (tres.mem_mib(), usage.memory_kib) {
        let allocated = mib.saturating_mul(1024);
        both(
            MEMORY_KIB_SECONDS,
            usage.memory_kib.min(allocated).saturating_mul(elapsed),
            allocated.saturating_mul(elapsed),
        );
    }
    if tres.gpus() > 0 {
        let gpu_seconds = signed(tres.gpus().saturating_mul(elapsed));
        change.add(GPU_SECONDS, &[partition, account, "allocated"], gpu_seconds);
    }
}

fn seconds_between(
    from: &Option<pbjson_types::Timestamp>,
    to: &Option<pbjson_types::Timestamp>,
) -> Option<i64> {
    let (from, to) = (
        from_timestamp(from.as_ref()?)?,
        from_timestamp(to.as_ref()?)?,
    );
    Some((to - from).num_seconds())
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
