//! Key figures of runs, exact from their events.
//!
//! The same definitions as the recording rules in `deploy/compose/observability/kpis.yml`, without buckets and extrapolation: a run counts
//! by its event within the time, `job.started` for its wait, its end for failures, and `job.updated` for its use.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, from_timestamp};
use slurm_types::Tres;

use super::filter::InvalidFilter;
use super::stats::{MAX_GROUPS, parse_groups, too_many_groups};

/// Events that the figures need.
pub const TYPES: [EventType; 9] = [
    EventType::JobStarted,
    EventType::JobUpdated,
    EventType::JobCompleted,
    EventType::JobFailed,
    EventType::JobTimeout,
    EventType::JobOutOfMemory,
    EventType::JobNodeFail,
    EventType::JobBootFail,
    EventType::JobDeadline,
];

/// What the figures are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KpiGroup {
    /// Cluster.
    Cluster,
    /// Partition; of several requested ones the first, as in metrics.
    Partition,
    /// Slurm account.
    Account,
    /// Unix user.
    User,
    /// Person: the email address of the OIDC identity, or its subject.
    Identity,
    /// QOS.
    Qos,
}

impl KpiGroup {
    /// All dimensions.
    pub const ALL: [Self; 6] = [
        Self::Cluster,
        Self::Partition,
        Self::Account,
        Self::User,
        Self::Identity,
        Self::Qos,
    ];

    /// Returns the keyword in requests and responses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Partition => "partition",
            Self::Account => "account",
            Self::User => "user",
            Self::Identity => "identity",
            Self::Qos => "qos",
        }
    }

    /// Parses `user` or `account,partition`.
    ///
    /// # Errors
    /// If a keyword is unknown or repeated.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, InvalidFilter> {
        parse_groups(text, &Self::ALL, Self::as_str)
    }

    fn of(self, event: &Event, job: &Job) -> Option<String> {
        let owner = event.owner.as_ref();
        let value = match self {
            Self::Cluster => event.cluster.as_str(),
            Self::Partition => job.partition.split(',').next()?,
            Self::Qos => &job.qos,
            Self::Account => &owner?.account,
            Self::User => &owner?.user,
            Self::Identity => match owner?.identity.as_ref()? {
                identity if identity.email.is_empty() => &identity.subject,
                identity => &identity.email,
            },
        };
        (!value.is_empty()).then(|| value.to_owned())
    }
}

/// Key figures of a group; `None` where there is nothing to divide by.
#[derive(Clone, Debug, PartialEq)]
pub struct Kpis {
    /// Runs that completed or failed.
    pub runs: u64,
    /// CPU seconds used of those allocated, of runs whose use is known.
    pub cpu_efficiency: Option<f64>,
    /// Share of the allocated memory above the peak in use, weighted by time.
    pub memory_waste: Option<f64>,
    /// Seconds from eligible to start that 95 % of the starts did not exceed (nearest rank).
    pub wait_p95_seconds: Option<i64>,
    /// Runs that failed, of those that completed or failed. Cancelled runs are neither.
    pub failure_rate: Option<f64>,
    /// Runs that failed with their node.
    pub node_failure_rate: Option<f64>,
}

/// Sums of a group.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// CPU seconds, used and allocated.
    cpu: [u128; 2],
    /// KiB seconds, used and allocated.
    memory: [u128; 2],
    /// Waits in seconds.
    waits: Vec<i64>,
    completed: u64,
    failed: u64,
    node_failed: u64,
}

/// Sums by group.
#[derive(Debug)]
pub struct KpiSums<'a> {
    by: &'a [KpiGroup],
    groups: BTreeMap<Vec<Option<String>>, Sums>,
}

impl<'a> KpiSums<'a> {
    /// Without events.
    pub const fn new(by: &'a [KpiGroup]) -> Self {
        Self {
            by,
            groups: BTreeMap::new(),
        }
    }

    /// Adds an event; one that the figures do not need is ignored.
    ///
    /// # Errors
    /// If the response would have too many groups.
    pub fn add(&mut self, event: &Event) -> Result<(), InvalidFilter> {
        let (Ok(kind), Some(job)) = (event.kind(), event.job()) else {
            return Ok(());
        };
        let key = self.by.iter().map(|group| group.of(event, job)).collect();
        self.groups.entry(key).or_default().add(kind, job);
        if self.groups.len() > MAX_GROUPS {
            return Err(too_many_groups());
        }
        Ok(())
    }

    /// Returns the figures, ordered by group.
    pub fn rows(self) -> impl Iterator<Item = (Vec<Option<String>>, Kpis)> {
        let groups = self.groups.into_iter();
        groups.map(|(key, sums)| (key, sums.kpis()))
    }
}

impl Sums {
    fn add(&mut self, kind: EventType, job: &Job) {
        match kind {
            EventType::JobStarted => {
                let time = |time: &Option<_>| from_timestamp(time.as_ref()?);
                // A requeued job has waited before.
                if job.restarts.unwrap_or_default() == 0
                    && let (Some(eligible), Some(start)) =
                        (time(&job.eligible_time), time(&job.start_time))
                {
                    self.waits.push((start - eligible).num_seconds().max(0));
                }
            }
            EventType::JobUpdated => self.add_use(job),
            EventType::JobCompleted => self.completed += 1,
            EventType::JobNodeFail | EventType::JobBootFail => {
                self.failed += 1;
                self.node_failed += 1;
            }
            EventType::JobFailed
            | EventType::JobTimeout
            | EventType::JobOutOfMemory
            | EventType::JobDeadline => self.failed += 1,
            _ => {}
        }
    }

    /// Both what a run used and what it had, only of runs whose use is known.
    fn add_use(&mut self, job: &Job) {
        let Some(usage) = &job.usage else { return };
        let (tres, _) = Tres::parse_lossy(&job.alloc_tres);
        let elapsed = u128::from(usage.elapsed_seconds);
        self.cpu[0] += u128::from(usage.cpu_seconds);
        self.cpu[1] += u128::from(tres.cpus()) * elapsed;
        if let (Some(mib), 1..) = (tres.mem_mib(), usage.memory_kib) {
            let allocated = u128::from(mib) * 1024;
            self.memory[0] += u128::from(usage.memory_kib).min(allocated) * elapsed;
            self.memory[1] += allocated * elapsed;
        }
    }

    fn kpis(mut self) -> Kpis {
        let runs = self.completed + self.failed;
        let rate = |part: u64| ratio(part.into(), runs.into());
        self.waits.sort_unstable();
        let rank = (self.waits.len() * 95).div_ceil(100).saturating_sub(1);
        Kpis {
            runs,
            cpu_efficiency: ratio(self.cpu[0], self.cpu[1]),
            memory_waste: ratio(self.memory[0], self.memory[1]).map(|used| 1.0 - used),
            wait_p95_seconds: self.waits.get(rank).copied(),
            failure_rate: rate(self.failed),
            node_failure_rate: rate(self.node_failed),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a ratio")]
fn ratio(part: u128, whole: u128) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_exact() {
        let mut sums = Sums {
            cpu: [40, 80],
            memory: [1, 4],
            waits: (1..=100).rev().collect(),
            completed: 15,
            failed: 5,
            node_failed: 1,
        };
        let found = sums.clone().kpis();
        assert_eq!(found.cpu_efficiency, Some(0.5));
        assert_eq!(found.memory_waste, Some(0.75));
        assert_eq!(found.wait_p95_seconds, Some(95));
        assert_eq!(
            (found.failure_rate, found.node_failure_rate),
            (Some(0.25), Some(0.05))
        );
        // Of one wait, that one; of none, none.
        sums.waits.truncate(1);
        assert_eq!(sums.kpis().wait_p95_seconds, Some(100));
        let none = Sums::default().kpis();
        let ratios = (none.cpu_efficiency, none.memory_waste, none.failure_rate);
        assert_eq!(ratios, (None, None, None));
        assert_eq!(none.wait_p95_seconds, None);
    }
}
