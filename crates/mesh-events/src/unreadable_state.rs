//! The gap of a service's stored state that it could not read.

use chrono::{DateTime, Utc};

use crate::proto::mesh::capture::v1::CaptureEvent;
use crate::timestamp;

/// Builds the payload of the `capture.gap_closed` of source `state`. `state` says whose state it was, as in `of users`; `since` is the last
/// time at which it was complete, if known; `recovered` counts what was taken from published events.
pub fn unreadable_state(
    state: &str,
    not_recoverable: &str,
    since: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    recovered: u64,
) -> CaptureEvent {
    CaptureEvent {
        source: "state".to_owned(),
        message: format!(
            "the stored state {state} could not be read and was put aside; it is taken from published events and from Slurm"
        ),
        from: since.map(timestamp),
        to: Some(timestamp(now)),
        recovered,
        not_recoverable: not_recoverable.to_owned(),
    }
}
