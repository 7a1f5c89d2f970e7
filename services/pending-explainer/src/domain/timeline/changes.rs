//! What is different from the last published explanation.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::queue::v1::{Blocker, Explanation};

use super::TimelineEntry;
use crate::domain::reason_text::duration;

/// Smallest shift of the expected start that is mentioned: backfill plans in whole minutes.
const MIN_SHIFT: TimeDelta = TimeDelta::minutes(2);

/// Amounts of the blockers, by a name that lasts.
pub fn amounts(explanation: &Explanation) -> BTreeMap<String, u64> {
    let blockers = explanation.blockers.iter();
    blockers
        .filter_map(|blocker| Some((name(blocker), blocker.have?)))
        .collect()
}

fn name(blocker: &Blocker) -> String {
    match blocker.kind.as_str() {
        "jobs_ahead" => "jobs ahead".to_owned(),
        "limit" => format!("{} of {} in use", blocker.name, blocker.holder),
        kind => format!("{kind} {} in use", blocker.name),
    }
}

/// The differences, each as a short text.
pub fn since(last: Option<&TimelineEntry>, explanation: &Explanation) -> Vec<String> {
    let Some(last) = last else { return Vec::new() };
    let mut changes = Vec::new();
    if last.reason != explanation.reason {
        changes.push(format!("reason {} → {}", last.reason, explanation.reason));
    }
    if last.class != explanation.reason_class {
        changes.push(format!("{} → {}", last.class, explanation.reason_class));
    }
    let start = explanation.expected_start.as_ref().and_then(from_timestamp);
    match (last.expected_start, start) {
        (Some(before), Some(start)) if (start - before).abs() >= MIN_SHIFT => {
            let shift = (start - before).num_seconds();
            let word = if shift > 0 { "later" } else { "earlier" };
            let shift = duration(shift.unsigned_abs());
            changes.push(format!("expected start {shift} {word}"));
        }
        (Some(_), None) => changes.push("no expected start any more".to_owned()),
        (None, Some(_)) => changes.push("an expected start now".to_owned()),
        _ => {}
    }
    for (name, have) in amounts(explanation) {
        if let Some(before) = last.amounts.get(&name).filter(|before| **before != have) {
            changes.push(format!("{name} {before} → {have}"));
        }
    }
    changes
}
