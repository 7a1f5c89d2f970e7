//! The newest snapshot of a cluster's queue, assembled from its chunks.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::chunks::newest_complete;
use mesh_events::proto::mesh::queue::v1::{QueueSnapshot, QueuedJob};
use slurm_types::{Reason, ReasonClass};

/// A complete snapshot.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Start of the poll.
    pub taken_at: DateTime<Utc>,
    rows: HashMap<String, QueuedJob>,
    display_ids: HashSet<String>,
    /// Ranks of the jobs per partition that the scheduler could start, first one first.
    contenders: HashMap<String, Vec<Rank>>,
}

/// Priority, then submit time, then id: the order in which the scheduler looks at jobs (sort_job_queue2, Slurm 22.05 to 26.05).
pub type Rank = (Reverse<u32>, i64, u32);

fn rank(row: &QueuedJob) -> Rank {
    // `job/<id>/<submit time>`, and the attempt if there are several.
    let submitted = row.run.split('/').nth(2).and_then(|time| time.parse().ok());
    (
        Reverse(row.priority),
        submitted.unwrap_or_default(),
        row.job_id,
    )
}

/// Whether the scheduler could start the job. Others, such as held jobs or those over a limit, are not ahead of anybody.
fn contends(row: &QueuedJob) -> bool {
    use ReasonClass::{
        BeginTime, Dependency, DependencyNeverSatisfied, Held, Limit, Partition, Request,
    };
    let out = [
        BeginTime,
        Dependency,
        DependencyNeverSatisfied,
        Held,
        Limit,
        Partition,
        Request,
    ];
    row.priority > 0 && !out.contains(&Reason::lookup(&row.reason).class())
}

/// Position of a job in the queue.
#[derive(Clone, Copy, Debug)]
pub struct QueuePosition<'a> {
    /// Row of the job.
    pub row: &'a QueuedJob,
    /// Pending jobs that the scheduler looks at first in its partition, the smallest number if it has several. Jobs that it could not start,
    /// because they are held or over a limit, do not count.
    pub ahead: usize,
    /// Time of the snapshot.
    pub taken_at: DateTime<Utc>,
}

/// Tolerance for the clock of another host.
const MAX_CLOCK_SKEW: TimeDelta = TimeDelta::minutes(5);

impl Queue {
    /// True if this snapshot replaces `last`. Any snapshot replaces one taken while a clock was ahead.
    pub fn is_news_after(&self, last: &Self, now: DateTime<Utc>) -> bool {
        let was_ahead = last.taken_at > now + MAX_CLOCK_SKEW;
        self.taken_at > last.taken_at || was_ahead && self.taken_at != last.taken_at
    }

    /// Assembles the chunks of one poll. `None` while chunks of different polls are mixed or one is missing, because jobs would look
    /// further ahead in a partial queue.
    pub fn from_chunks(chunks: Vec<QueueSnapshot>) -> Option<Self> {
        let (taken_at, chunks) = newest_complete(chunks)?;
        let mut queue = Self {
            taken_at,
            rows: HashMap::new(),
            display_ids: HashSet::new(),
            contenders: HashMap::new(),
        };
        for row in chunks.into_iter().flat_map(|chunk| chunk.jobs) {
            if contends(&row) {
                for partition in row.partition.split(',') {
                    queue
                        .contenders
                        .entry(partition.to_owned())
                        .or_default()
                        .push(rank(&row));
                }
            }
            queue.display_ids.insert(row.display_id.clone());
            queue.rows.insert(row.run.clone(), row);
        }
        for contenders in queue.contenders.values_mut() {
            contenders.sort_unstable();
        }
        Some(queue)
    }

    /// Position of a run. `None` if it is not pending.
    pub fn position(&self, run: &str) -> Option<QueuePosition<'_>> {
        let row = self.rows.get(run)?;
        let ahead_in = |partition: &str| {
            self.contenders.get(partition).map_or(0, |contenders| {
                contenders.partition_point(|other| *other < rank(row))
            })
        };
        // A job in several partitions starts in the first one that has room.
        let ahead = row.partition.split(',').map(ahead_in).min().unwrap_or(0);
        Some(QueuePosition {
            row,
            ahead,
            taken_at: self.taken_at,
        })
    }

    /// A pending run.
    pub fn row(&self, run: &str) -> Option<&QueuedJob> {
        self.rows.get(run)
    }

    /// True if the scheduler could start the run.
    pub fn contends(&self, run: &str) -> bool {
        self.rows.get(run).is_some_and(contends)
    }

    /// Runs that the scheduler could start, in no order.
    pub fn contenders(&self) -> impl Iterator<Item = &QueuedJob> {
        self.rows.values().filter(|row| contends(row))
    }

    /// Where the run stands in the order in which the scheduler looks at jobs.
    pub fn rank(row: &QueuedJob) -> Rank {
        rank(row)
    }

    /// True if a job of this id, in Slurm's form, is pending.
    pub fn waits(&self, display_id: &str) -> bool {
        self.display_ids.contains(display_id)
    }

    /// All pending runs of the snapshot.
    pub fn runs(&self) -> impl Iterator<Item = &str> {
        self.rows.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::timestamp;

    use super::*;

    fn chunk(second: i64, chunk: u32, chunks: u32, jobs: Vec<QueuedJob>) -> QueueSnapshot {
        let taken_at = DateTime::from_timestamp(second, 0).map(timestamp);
        QueueSnapshot {
            cluster: "c".into(),
            taken_at,
            chunk,
            chunks,
            jobs,
            running: 0,
        }
    }

    fn job(run: &str, partition: &str, priority: u32) -> QueuedJob {
        QueuedJob {
            run: run.into(),
            partition: partition.into(),
            priority,
            ..QueuedJob::default()
        }
    }

    #[test]
    fn half_a_snapshot_is_none() {
        assert!(Queue::from_chunks(vec![]).is_none());
        assert!(Queue::from_chunks(vec![chunk(10, 0, 2, vec![])]).is_none());
        assert!(
            Queue::from_chunks(vec![chunk(10, 0, 2, vec![]), chunk(9, 1, 2, vec![])]).is_none()
        );
    }

    #[test]
    fn a_snapshot_of_a_clock_that_was_ahead_does_not_outlast_it() {
        let taken =
            |seconds| Queue::from_chunks(vec![chunk(seconds, 0, 1, vec![])]).expect("complete");
        let now = |seconds| DateTime::from_timestamp(seconds, 0).expect("a time");
        assert!(taken(20).is_news_after(&taken(10), now(20)));
        // A replica that lags behind.
        assert!(!taken(10).is_news_after(&taken(20), now(20)));
        assert!(!taken(20).is_news_after(&taken(20), now(20)));
        assert!(taken(30).is_news_after(&taken(3_620), now(30)));
        assert!(!taken(3_620).is_news_after(&taken(3_620), now(30)));
    }

    #[test]
    fn left_over_chunks_of_an_older_longer_queue_do_not_count() {
        let queue = Queue::from_chunks(vec![
            chunk(10, 0, 1, vec![job("a", "p", 1)]),
            chunk(9, 1, 2, vec![job("b", "p", 9)]),
        ]);
        let queue = queue.expect("complete");
        assert!(queue.position("b").is_none());
        assert_eq!(queue.position("a").map(|position| position.ahead), Some(0));
    }

    #[test]
    fn jobs_of_higher_priority_in_the_same_partition_are_ahead() {
        let rows = vec![
            job("a", "p", 5),
            job("b", "p", 9),
            job("c", "q", 7),
            job("d", "p,q", 6),
            job("held", "p", 0),
        ];
        let queue = Queue::from_chunks(vec![chunk(10, 0, 1, rows)]).expect("complete");
        let ahead = |run| queue.position(run).map(|position| position.ahead);
        assert_eq!(
            [ahead("a"), ahead("b"), ahead("c"), ahead("d")],
            [Some(2), Some(0), Some(0), Some(1)]
        );
    }

    #[test]
    fn equal_priorities_go_by_submit_time_and_id() {
        let row = |run: &str, job_id| QueuedJob {
            job_id,
            ..job(run, "p", 5)
        };
        let rows = vec![
            row("job/3/100", 3),
            row("job/4/100", 4),
            // Requeued: submitted again.
            row("job/1/200", 1),
        ];
        let queue = Queue::from_chunks(vec![chunk(10, 0, 1, rows)]).expect("complete");
        let ahead = |run| queue.position(run).map(|position| position.ahead);
        assert_eq!(
            [ahead("job/3/100"), ahead("job/4/100"), ahead("job/1/200")],
            [Some(0), Some(1), Some(2)]
        );
    }

    #[test]
    fn jobs_that_cannot_start_are_not_ahead() {
        let row = |run: &str, reason: &str| QueuedJob {
            reason: reason.into(),
            ..job(run, "p", 9)
        };
        let rows = vec![
            row("limited", "QOSMaxJobsPerUserLimit"),
            row("dependent", "Dependency"),
            row("later", "BeginTime"),
            row("refused", "AccountNotAllowed"),
            row("first", "Resources"),
            job("mine", "p", 5),
        ];
        let queue = Queue::from_chunks(vec![chunk(10, 0, 1, rows)]).expect("complete");
        assert_eq!(
            queue.position("mine").map(|position| position.ahead),
            Some(1)
        );
    }
}
