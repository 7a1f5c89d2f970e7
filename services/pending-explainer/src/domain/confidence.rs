//! What makes an answer less certain: old or missing records, and jobs that backfill did not reach.

use chrono::{DateTime, TimeDelta, Utc};

use super::pending_job::{ClusterView, PendingJob};
use super::queue::QueuePosition;
use super::reason_text::{duration, list};

/// Age from which a snapshot is old: ingest polls every few seconds, and at least once a minute.
const MAX_QUEUE_AGE: TimeDelta = TimeDelta::minutes(2);
/// Age from which the evidence is old, while jobs wait.
const MAX_EVIDENCE_AGE: TimeDelta = TimeDelta::minutes(5);
/// Backfill left out a substantial part of the queue if it did not look at one of this many jobs.
const SUBSTANTIAL_PART: u64 = 4;

/// The note about a waiting job. Empty if nothing makes the answer less certain.
pub fn of_waiting(waiting: &PendingJob<'_>) -> String {
    let mut notes = of_records(waiting.view, waiting.now);
    notes.extend(of_backfill(waiting.view, waiting.position));
    notes.join("; ")
}

/// The note about a job that does not wait any more. Backfill is of no concern to it.
pub fn of_started(view: ClusterView<'_>, now: DateTime<Utc>) -> String {
    of_records(view, now).join("; ")
}

/// The jobs that backfill did not look at, if this one is among them or if they are many.
fn of_backfill(view: ClusterView<'_>, position: Option<QueuePosition<'_>>) -> Option<String> {
    let backfill = view.evidence?.backfill?;
    let (depth, length) = (backfill.last_depth, backfill.queue_length);
    if depth >= length {
        return None;
    }
    let looked_at = format!("{depth} of {length} waiting jobs");
    // Each cycle looks at the jobs in their order, and clears the starts that it does not plan again.
    let is_beyond = position.is_some_and(|position| {
        position.row.expected_start == 0
            && u32::try_from(position.ahead).is_ok_and(|ahead| ahead >= depth)
    });
    if is_beyond {
        return Some(format!(
            "backfill did not reach this job in its last cycle: it looked at {looked_at}"
        ));
    }
    let left_out = u64::from(length - depth);
    (left_out * SUBSTANTIAL_PART >= u64::from(length))
        .then(|| format!("backfill looked at {looked_at} in its last cycle"))
}

fn of_records(view: ClusterView<'_>, now: DateTime<Utc>) -> Vec<String> {
    let mut notes = Vec::new();
    let age = |taken_at: DateTime<Utc>| u64::try_from((now - taken_at).num_seconds()).unwrap_or(0);
    match view.queue {
        None => notes.push("the queue has not been read yet".to_owned()),
        Some(queue) if now - queue.taken_at > MAX_QUEUE_AGE => notes.push(format!(
            "Slurm was last read {} ago: this is how it was then",
            duration(age(queue.taken_at))
        )),
        Some(_) => {}
    }
    match view.evidence {
        None => notes.push("limits, nodes and reservations have not been read yet".to_owned()),
        Some(evidence) => {
            if now - evidence.taken_at > MAX_EVIDENCE_AGE {
                notes.push(format!(
                    "limits, nodes and reservations were last read {} ago",
                    duration(age(evidence.taken_at))
                ));
            }
            let failed: Vec<String> = evidence.failed.keys().cloned().collect();
            if !failed.is_empty() {
                notes.push(format!("could not be read: {}", list(&failed, 8)));
            }
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::queue::v1::{Backfill, QueueSnapshot, QueuedJob};

    use super::*;
    use crate::domain::evidence::Evidence;
    use crate::domain::queue::Queue;

    fn evidence(last_depth: u32, queue_length: u32) -> Evidence {
        let mut evidence = Evidence::default();
        evidence.backfill = Some(Backfill {
            last_cycle: 1,
            last_depth,
            queue_length,
        });
        evidence
    }

    fn note(depth: u32, length: u32, ahead: usize, expected_start: i64) -> Option<String> {
        let evidence = evidence(depth, length);
        let view = ClusterView {
            queue: None,
            evidence: Some(&evidence),
            ..ClusterView::default()
        };
        let row = QueuedJob {
            expected_start,
            ..QueuedJob::default()
        };
        let position = QueuePosition {
            row: &row,
            ahead,
            taken_at: DateTime::default(),
        };
        of_backfill(view, Some(position))
    }

    #[test]
    fn a_small_part_left_out_by_backfill_is_not_noted_for_jobs_that_it_reached() {
        assert_eq!(note(8, 8, 7, 0), None);
        assert_eq!(note(7, 8, 6, 0), None);
        assert_eq!(note(76, 100, 0, 0), None);
        assert_eq!(
            note(75, 100, 0, 0).as_deref(),
            Some("backfill looked at 75 of 100 waiting jobs in its last cycle")
        );
    }

    #[test]
    fn a_job_that_backfill_did_not_reach_has_a_note() {
        assert_eq!(
            note(7, 8, 7, 0).as_deref(),
            Some(
                "backfill did not reach this job in its last cycle: it looked at 7 of 8 waiting jobs"
            )
        );
        // It has a planned start, so it was reached.
        assert_eq!(note(7, 8, 7, 100), None);
    }

    #[test]
    fn old_records_are_noted_with_their_age() {
        let chunk = QueueSnapshot {
            taken_at: Some(mesh_events::timestamp(DateTime::default())),
            chunks: 1,
            ..QueueSnapshot::default()
        };
        let queue = Queue::from_chunks(vec![chunk]).expect("complete");
        let evidence = evidence(1, 1);
        let view = ClusterView {
            queue: Some(&queue),
            evidence: Some(&evidence),
            ..ClusterView::default()
        };
        let note = |minutes| of_started(view, DateTime::default() + TimeDelta::minutes(minutes));
        assert_eq!(note(2), "");
        assert_eq!(
            note(3),
            "Slurm was last read 3 min ago: this is how it was then"
        );
        assert!(note(6).contains("limits, nodes and reservations were last read 6 min ago"));
    }

    #[test]
    fn a_started_job_has_no_note_about_backfill() {
        let evidence = evidence(1, 100);
        let view = ClusterView {
            queue: None,
            evidence: Some(&evidence),
            ..ClusterView::default()
        };
        let note = of_started(view, DateTime::default());
        assert!(!note.contains("backfill"), "{note}");
    }
}
