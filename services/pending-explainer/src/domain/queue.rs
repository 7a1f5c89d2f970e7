//! The newest snapshot of a cluster's queue, assembled from its chunks.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::queue::v1::{QueueSnapshot, QueuedJob};

/// A complete snapshot.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Start of the poll.
    pub taken_at: DateTime<Utc>,
    rows: HashMap<String, QueuedJob>,
    /// Priorities of the pending jobs per partition, highest first.
    priorities: HashMap<String, Vec<u32>>,
}

/// Position of a job in the queue.
#[derive(Clone, Copy, Debug)]
pub struct QueuePosition<'a> {
    /// Row of the job.
    pub row: &'a QueuedJob,
    /// Pending jobs of higher priority in its partition, the smallest number if it has several. Held jobs do not count.
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
        let newest = chunks
            .iter()
            .filter_map(|chunk| chunk.taken_at.as_ref())
            .max_by_key(|t| (t.seconds, t.nanos))
            .cloned()?;
        let taken_at = from_timestamp(&newest)?;
        let mut poll: Vec<QueueSnapshot> = chunks
            .into_iter()
            .filter(|chunk| chunk.taken_at.as_ref() == Some(&newest))
            .collect();
        poll.sort_by_key(|chunk| chunk.chunk);
        let expected = poll.first()?.chunks;
        if poll.iter().map(|chunk| chunk.chunk).ne(0..expected) {
            return None;
        }
        let mut queue = Self {
            taken_at,
            rows: HashMap::new(),
            priorities: HashMap::new(),
        };
        for row in poll.into_iter().flat_map(|chunk| chunk.jobs) {
            for partition in row.partition.split(',') {
                queue
                    .priorities
                    .entry(partition.to_owned())
                    .or_default()
                    .push(row.priority);
            }
            queue.rows.insert(row.run.clone(), row);
        }
        for priorities in queue.priorities.values_mut() {
            priorities.sort_unstable_by(|a, b| b.cmp(a));
        }
        Some(queue)
    }

    /// Position of a run. `None` if it is not pending.
    pub fn place(&self, run: &str) -> Option<QueuePosition<'_>> {
        let row = self.rows.get(run)?;
        let ahead_in = |partition: &str| {
            self.priorities.get(partition).map_or(0, |priorities| {
                priorities.partition_point(|priority| *priority > row.priority)
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
        assert!(queue.place("b").is_none());
        assert_eq!(queue.place("a").map(|place| place.ahead), Some(0));
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
        let ahead = |run| queue.place(run).map(|place| place.ahead);
        assert_eq!(
            [ahead("a"), ahead("b"), ahead("c"), ahead("d")],
            [Some(2), Some(0), Some(0), Some(1)]
        );
    }
}
