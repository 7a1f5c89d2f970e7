//! Times that a node was down or drained and that no poll has seen, from accounting.
//!
//! slurmdbd has them all, also those between two polls and those while no node-watcher ran. They pass through the comparison that polls
//! pass through, at the times that slurmdbd has. Cloud nodes are left out: slurmdbd does not say whether they were powered down afterwards.

use std::collections::BTreeMap;
use std::ops::Range;

use chrono::DateTime;
use slurm_client::{NodeEventRecord, NodeRecord};
use slurm_types::{Lifecycle, NodeBaseState, NodeState};

use super::absence::{ObservedNode, observe};
use super::diff::TrackedNode;

/// Compares the nodes with what accounting has of a window in Unix seconds that ended before `answer` was taken. Updates `known`, and
/// returns the nodes that changed, in the order of the changes of each.
pub fn replay(
    known: &mut BTreeMap<String, TrackedNode>,
    answer: &[NodeRecord],
    downtimes: &[NodeEventRecord],
    window: &Range<i64>,
) -> Vec<ObservedNode> {
    let mut of_node: BTreeMap<&str, Vec<&NodeEventRecord>> = BTreeMap::new();
    for downtime in downtimes {
        of_node.entry(&downtime.node).or_default().push(downtime);
    }
    let mut changed = Vec::new();
    for record in answer {
        let Some(downtimes) = of_node.get(record.name.as_str()) else {
            continue;
        };
        let Some(node) = known.get_mut(&record.name) else {
            continue;
        };
        if node.cloud || node.deleted {
            continue;
        }
        // What a poll has published later says what was known by then.
        let since = node.changed_at.unwrap_or(window.start).max(window.start);
        for (at, downtime) in transitions(downtimes, &(since..window.end)) {
            let then = match downtime {
                Some(downtime) => during(record, downtime),
                None => after(record),
            };
            let Some(at) = DateTime::from_timestamp(at, 0) else {
                continue;
            };
            let seen = observe(Some(node), false, then, at);
            *node = seen.after.clone();
            if !seen.changes.is_empty() {
                changed.push(seen);
            }
        }
    }
    changed
}

/// When a node went down, or up again (`None`), within the window.
fn transitions<'a>(
    downtimes: &[&'a NodeEventRecord],
    window: &Range<i64>,
) -> Vec<(i64, Option<&'a NodeEventRecord>)> {
    let is_downtime = |record: &&NodeEventRecord| {
        matches!(
            record.state.lifecycle(false),
            Lifecycle::Down | Lifecycle::Draining | Lifecycle::Drained
        )
    };
    let downtimes: Vec<&NodeEventRecord> = downtimes.iter().copied().filter(is_downtime).collect();
    let starts = downtimes
        .iter()
        .map(|one| (one.start.as_secs(), Some(*one)));
    // The next one begins at once if only the state or the reason changed.
    let continues = |one: &NodeEventRecord| {
        let others = downtimes.iter().filter(|other| **other != one);
        others.into_iter().any(|other| Some(other.start) == one.end)
    };
    let ended = downtimes.iter().filter(|one| !continues(one));
    let ends = ended.filter_map(|one| Some((one.end?.as_secs(), None)));
    let mut transitions: Vec<_> = starts
        .chain(ends)
        .filter(|(at, _)| window.contains(at))
        .collect();
    // One that lasted no second ends after its start.
    transitions.sort_by_key(|(at, downtime)| (*at, downtime.is_none()));
    transitions
}

fn during(record: &NodeRecord, downtime: &NodeEventRecord) -> NodeRecord {
    NodeRecord {
        state: downtime.state.clone(),
        reason: downtime.reason.clone(),
        reason_user: downtime.user.clone(),
        reason_time: Some(downtime.start),
        ..record.clone()
    }
}

/// The node works. Which jobs it ran is not known.
fn after(record: &NodeRecord) -> NodeRecord {
    if record.lifecycle() == Lifecycle::Active {
        return record.clone();
    }
    NodeRecord {
        state: NodeState {
            base: Some(NodeBaseState::Idle),
            ..NodeState::default()
        },
        reason: String::new(),
        reason_user: String::new(),
        reason_time: None,
        ..record.clone()
    }
}

#[cfg(test)]
mod tests {
    use slurm_types::UnixTime;

    use super::*;

    fn record(state: &str) -> NodeRecord {
        NodeRecord {
            name: "n1".to_owned(),
            state: NodeState::parse(state),
            ..NodeRecord::default()
        }
    }

    fn downtime(start: i64, end: Option<i64>, state: &str, reason: &str) -> NodeEventRecord {
        NodeEventRecord {
            node: "n1".to_owned(),
            start: UnixTime::from_secs(start),
            end: end.map(UnixTime::from_secs),
            state: NodeState::parse(state),
            user: "root".to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn nodes(state: &str, changed_at: Option<i64>) -> BTreeMap<String, TrackedNode> {
        let node = TrackedNode {
            n: 3,
            changed_at,
            ..TrackedNode::after(None, &record(state))
        };
        BTreeMap::from([("n1".to_owned(), node)])
    }

    /// The changes between seconds 100 and 200, and the number of the node's events then.
    fn changes(
        known: &mut BTreeMap<String, TrackedNode>,
        now: &str,
        downtimes: &[NodeEventRecord],
    ) -> String {
        let changed = replay(known, &[record(now)], downtimes, &(100..200));
        let changes = changed.iter().flat_map(|seen| &seen.changes);
        let changes = changes.map(|change| {
            let (kind, at) = (change.kind.event(), change.at.timestamp());
            let user = change.cause.actor.as_ref().map_or("", |actor| &actor.user);
            format!("{kind}@{at}{user}")
        });
        let number = format!("n={}", known["n1"].n);
        changes.chain([number]).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_node_that_was_down_between_two_polls_was_down_and_has_recovered() {
        let mut known = nodes("IDLE", None);
        let downtimes = [downtime(120, Some(130), "DOWN", "x")];
        assert_eq!(
            changes(&mut known, "MIXED", &downtimes),
            "down@120root recovered@130 n=5"
        );
        // A second look finds nothing new.
        assert_eq!(changes(&mut known, "MIXED", &downtimes), "n=5");
    }

    #[test]
    fn a_change_of_the_reason_is_no_recovery() {
        let downtimes = [
            downtime(120, Some(130), "IDLE+DRAIN", "x"),
            downtime(130, Some(140), "DOWN+DRAIN", "y"),
            downtime(150, None, "IDLE+DRAIN", "z"),
        ];
        assert_eq!(
            changes(&mut nodes("IDLE", None), "IDLE+DRAIN", &downtimes),
            "drained@120root down@130root recovered@140 drained@150root n=7"
        );
    }

    #[test]
    fn what_a_poll_has_published_is_not_published_again() {
        let downtimes = [downtime(90, Some(150), "DOWN", "x")];
        // Its end is news.
        assert_eq!(
            changes(&mut nodes("DOWN", Some(95)), "IDLE", &downtimes),
            "recovered@150 n=4"
        );
        assert_eq!(
            changes(&mut nodes("IDLE", Some(155)), "IDLE", &downtimes),
            "n=3"
        );
    }

    #[test]
    fn a_downtime_without_a_second_ends_after_its_start() {
        let downtimes = [downtime(120, Some(120), "DOWN", "x")];
        assert_eq!(
            changes(&mut nodes("IDLE", None), "IDLE", &downtimes),
            "down@120root recovered@120 n=5"
        );
    }

    #[test]
    fn cloud_nodes_and_power_saving_are_left_to_polls() {
        let downtimes = [
            downtime(120, Some(130), "DOWN", "x"),
            downtime(140, Some(150), "IDLE+POWERED_DOWN", "Powered down"),
        ];
        assert_eq!(
            changes(&mut nodes("IDLE+CLOUD", None), "IDLE+CLOUD", &downtimes),
            "n=3"
        );
        assert_eq!(
            changes(&mut nodes("IDLE", None), "IDLE", &downtimes[1..]),
            "n=3"
        );
    }
}
