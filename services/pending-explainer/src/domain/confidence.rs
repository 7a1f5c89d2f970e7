//! What makes an answer less certain: old or missing records, and a plan that backfill did not renew.

use chrono::{DateTime, TimeDelta, Utc};

use super::explain::ClusterView;
use super::reason_text::{duration, list};

/// Age from which a snapshot is old: ingest polls every few seconds, and at least once a minute.
const MAX_QUEUE_AGE: TimeDelta = TimeDelta::minutes(2);
/// Age from which the evidence is old, while jobs wait.
const MAX_EVIDENCE_AGE: TimeDelta = TimeDelta::minutes(5);

/// The note about an answer. Empty if nothing makes it less certain.
pub fn note(view: ClusterView<'_>, now: DateTime<Utc>) -> String {
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
            if let Some(backfill) = evidence.backfill
                && backfill.last_depth < backfill.queue_length
            {
                notes.push(format!(
                    "backfill looked at {} of {} waiting jobs in its last cycle",
                    backfill.last_depth, backfill.queue_length
                ));
            }
        }
    }
    notes.join("; ")
}
