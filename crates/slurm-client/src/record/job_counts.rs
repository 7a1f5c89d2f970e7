//! Jobs of a poll, counted by what metrics are asked for. Counted while the rows are parsed, because the rows lack the account.

use std::collections::HashMap;
use std::sync::Arc;

use slurm_types::{Reason, ReasonClass, UnixTime};

use super::job::ArrayTasks;

/// What the jobs of one cell have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobCell {
    /// Partition or, while pending, the list of requested partitions.
    pub partition: Arc<str>,
    /// Account.
    pub account: Arc<str>,
    /// Owner.
    pub user: Arc<str>,
    /// QOS.
    pub qos: Arc<str>,
    /// State as printed.
    pub state: Arc<str>,
    /// Reason as printed, for pending jobs. Else empty.
    reason: Arc<str>,
}

impl JobCell {
    /// Keyword and class of the reason; `None` if the jobs do not wait. Free text that no table has counts as `Unknown`.
    pub fn reason(&self) -> Option<(&'static str, ReasonClass)> {
        if self.reason.is_empty() {
            return None;
        }
        let found = Reason::lookup(&self.reason);
        Some((found.row.map_or("Unknown", |row| row.reason), found.class()))
    }
}

/// How many jobs there are in a cell, and what they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobSums {
    /// Records. The remaining tasks of an array are one.
    pub jobs: u64,
    /// Jobs and tasks.
    pub tasks: u64,
    /// CPUs as printed.
    pub cpus: u64,
    /// Nodes as printed.
    pub nodes: u64,
    /// Nodes of the largest record.
    pub max_nodes: u32,
    /// Earliest submit time.
    pub oldest_submit: Option<UnixTime>,
}

/// One record to count.
pub(crate) struct CountedJob<'a> {
    pub cell: [&'a str; 5],
    pub reason: &'a str,
    pub is_pending: bool,
    pub array_tasks: Option<&'a ArrayTasks>,
    pub cpus: u32,
    pub nodes: u32,
    pub submit: Option<UnixTime>,
}

/// All jobs of a poll by cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobCounts(HashMap<JobCell, JobSums>);

impl JobCounts {
    /// Counts a record. `shared` returns the shared copy of a text.
    pub(crate) fn add(&mut self, job: &CountedJob<'_>, mut shared: impl FnMut(&str) -> Arc<str>) {
        let [partition, account, user, qos, state] = job.cell.map(&mut shared);
        let reason = shared(if job.is_pending { job.reason } else { "" });
        let cell = JobCell {
            partition,
            account,
            user,
            qos,
            state,
            reason,
        };
        let tasks = job.array_tasks.and_then(ArrayTasks::set);
        let tasks = tasks.map_or(1, |tasks| tasks.len().max(1));
        let sums = self.0.entry(cell).or_default();
        sums.jobs += 1;
        sums.tasks += u64::try_from(tasks).unwrap_or(1);
        sums.cpus += u64::from(job.cpus);
        sums.nodes += u64::from(job.nodes);
        sums.max_nodes = sums.max_nodes.max(job.nodes);
        sums.oldest_submit = match (sums.oldest_submit, job.submit) {
            (Some(oldest), Some(submit)) => Some(oldest.min(submit)),
            (oldest, submit) => oldest.or(submit),
        };
    }

    /// The cells, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&JobCell, &JobSums)> {
        self.0.iter()
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no jobs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
