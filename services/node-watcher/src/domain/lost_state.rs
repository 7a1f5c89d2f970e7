//! The gap of stored state that could not be read.

use chrono::{DateTime, Utc};
use mesh_events::{Event, EventType, sampled_capture_event, unreadable_state};

use super::drift;

/// What no source has of nodes whose state was lost.
const LOST_OF_NODES: &str = "changes of these nodes that were not published yet, notices of their provider, and nodes that Slurm does not list any more";
/// What is not read from accounting.
const LOST_OF_DOWNTIMES: &str =
    "downtimes between two polls that accounting had and that were not read yet";

/// Stored values that could not be read.
#[derive(Debug, Default)]
pub struct LostState {
    /// Number of shards of nodes.
    pub shards: usize,
    /// Whether the accounting watermark is one of them.
    pub has_lost_watermark: bool,
}

impl LostState {
    /// The event about it. `n` is its number among the events of [`drift::ENTITY`].
    pub fn gap(&self, cluster: &str, n: u64, now: DateTime<Utc>) -> Event {
        let mut parts = Vec::new();
        if self.shards > 0 {
            parts.push((format!("of nodes ({} keys)", self.shards), LOST_OF_NODES));
        }
        if self.has_lost_watermark {
            parts.push(("of the polls of nodes".to_owned(), LOST_OF_DOWNTIMES));
        }
        let (states, lost): (Vec<String>, Vec<&str>) = parts.into_iter().unzip();
        let gap = unreadable_state(&states.join(" and "), &lost.join("; "), None, now, 0);
        let kind = EventType::CaptureGapClosed;
        // Not of the entity `capture/state`, whose events ingest counts.
        sampled_capture_event(cluster, kind, drift::ENTITY, n, now, gap)
    }
}
