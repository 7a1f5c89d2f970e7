//! Publishes downtimes that polls missed, from accounting.
//!
//! slurmdbd records every time that a node was down or drained. Each is compared like a poll's record, at slurmdbd's time: the clock of this
//! host may be wrong. Downtimes that a poll has published arrive in accounting later and are skipped. Cloud nodes are left out: slurmdbd does
//! not record whether they were powered down afterwards.

use std::collections::BTreeMap;

use chrono::DateTime;
use slurm_client::{NodeEventRecord, NodeRecord};
use slurm_types::{Lifecycle, NodeBaseState, NodeState};

use super::absence::{NewNode, ObservedNode, observe};
use super::tracked_node::TrackedNode;

/// Compares the nodes with downtimes after `watermark` (Unix seconds), or after the watermark of the node. Updates `known`, and returns the
/// nodes whose state is to be stored, with the changes that no poll has seen, in order.
pub fn apply_downtimes(
    known: &mut BTreeMap<String, TrackedNode>,
    answer: &[NodeRecord],
    downtimes: &[NodeEventRecord],
    watermark: i64,
) -> Vec<ObservedNode> {
    let of_node = by_node(downtimes);
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
        let transitions = transitions(downtimes, node.accounting_watermark.unwrap_or(watermark));
        for (at, downtime) in transitions {
            let seen = match node.unreconciled {
                0 => compare(node, record, at, downtime),
                _ => Some(reconcile(node, record, downtime)),
            };
            let Some(mut seen) = seen else { continue };
            seen.after.accounting_watermark = Some(at);
            *node = seen.after.clone();
            changed.push(seen);
        }
    }
    changed
}

/// What accounting has before the first poll is not published.
pub fn skip_downtimes(seen: &mut [ObservedNode], downtimes: &[NodeEventRecord]) {
    let of_node = by_node(downtimes);
    for node in seen {
        let downtimes = of_node.get(node.record.name.as_str());
        let downtimes = downtimes.into_iter().flatten().copied();
        let newest = newest(downtimes);
        node.after.accounting_watermark = node.after.accounting_watermark.max(newest);
    }
}

/// The newest time in these downtimes.
pub fn newest<'a>(downtimes: impl IntoIterator<Item = &'a NodeEventRecord>) -> Option<i64> {
    let times = downtimes
        .into_iter()
        .map(|one| one.end.unwrap_or(one.start));
    times.map(|at| at.as_secs()).max()
}

fn by_node(downtimes: &[NodeEventRecord]) -> BTreeMap<&str, Vec<&NodeEventRecord>> {
    let mut of_node: BTreeMap<&str, Vec<&NodeEventRecord>> = BTreeMap::new();
    for downtime in downtimes.iter().filter(|downtime| is_downtime(downtime)) {
        of_node.entry(&downtime.node).or_default().push(downtime);
    }
    of_node
}

fn is_downtime(record: &NodeEventRecord) -> bool {
    matches!(
        record.state.lifecycle(false),
        Lifecycle::Down | Lifecycle::Draining | Lifecycle::Drained
    )
}

/// When a node went down, or up again (`None`), after a time.
fn transitions<'a>(
    downtimes: &[&'a NodeEventRecord],
    after: i64,
) -> Vec<(i64, Option<&'a NodeEventRecord>)> {
    let starts = downtimes
        .iter()
        .map(|one| (one.start.as_secs(), Some(*one)));
    // The next one begins at once if only the state or the reason changed.
    let continues = |one: &NodeEventRecord| {
        let mut others = downtimes.iter().filter(|other| **other != one);
        others.any(|other| Some(other.start) == one.end)
    };
    let ended = downtimes.iter().filter(|one| !continues(one));
    let ends = ended.filter_map(|one| Some((one.end?.as_secs(), None)));
    let mut transitions: Vec<_> = starts.chain(ends).filter(|(at, _)| *at > after).collect();
    // One that lasted no second ends after its start.
    transitions.sort_by_key(|(at, downtime)| (*at, downtime.is_none()));
    transitions
}

/// A poll has published this, or accounting has only another state or reason.
fn reconcile(
    node: &TrackedNode,
    record: &NodeRecord,
    downtime: Option<&NodeEventRecord>,
) -> ObservedNode {
    // According to accounting so far. Polls are ahead by `unreconciled` changes.
    let was_impaired = node.impaired == node.unreconciled.is_multiple_of(2);
    let mut after = node.clone();
    if downtime.is_some() != was_impaired {
        after.unreconciled -= 1;
    }
    ObservedNode {
        record: record.clone(),
        after,
        changes: Vec::new(),
    }
}

fn compare(
    node: &TrackedNode,
    record: &NodeRecord,
    at: i64,
    downtime: Option<&NodeEventRecord>,
) -> Option<ObservedNode> {
    let then = match downtime {
        Some(downtime) => during(record, downtime),
        None => after(record),
    };
    let known = NewNode::Added { count_from: node.n };
    let mut seen = observe(Some(node), known, then, DateTime::from_timestamp(at, 0)?);
    seen.after.unreconciled = 0;
    Some(seen)
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

    fn nodes(state: &str) -> BTreeMap<String, TrackedNode> {
        let node = TrackedNode {
            n: 3,
            ..TrackedNode::after(None, &record(state), DateTime::default())
        };
        BTreeMap::from([("n1".to_owned(), node)])
    }

    /// The changes after second 100, and the number of the node's events then.
    fn changes(
        known: &mut BTreeMap<String, TrackedNode>,
        now: &str,
        downtimes: &[NodeEventRecord],
    ) -> String {
        let changed = apply_downtimes(known, &[record(now)], downtimes, 100);
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
        let mut known = nodes("IDLE");
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
            changes(&mut nodes("IDLE"), "IDLE+DRAIN", &downtimes),
            "drained@120root down@130root recovered@140 drained@150root n=7"
        );
    }

    #[test]
    fn what_a_poll_has_published_is_not_published_again() {
        let mut known = nodes("IDLE");
        for state in ["DOWN", "IDLE", "DOWN", "IDLE"] {
            let at = DateTime::from_timestamp(9_000, 0).unwrap();
            let added = NewNode::Added { count_from: 0 };
            let seen = observe(known.get("n1"), added, record(state), at);
            known.insert("n1".to_owned(), seen.after);
        }
        assert_eq!(known["n1"].n, 7);
        // Accounting is behind, and has the downtimes bit by bit; one has another reason in its middle.
        let first = downtime(120, Some(130), "DOWN", "x");
        let second = [
            downtime(140, Some(145), "DOWN", "y"),
            downtime(145, Some(150), "IDLE+DRAIN", "z"),
        ];
        for behind in [
            vec![downtime(120, None, "DOWN", "x")],
            vec![first.clone()],
            vec![first, second[0].clone(), second[1].clone()],
        ] {
            assert_eq!(changes(&mut known, "IDLE", &behind), "n=7");
        }
        let downtimes = [downtime(160, Some(170), "DOWN", "y")];
        assert_eq!(
            changes(&mut known, "IDLE", &downtimes),
            "down@160root recovered@170 n=9"
        );
    }

    #[test]
    fn a_downtime_without_a_second_ends_after_its_start() {
        let downtimes = [downtime(120, Some(120), "DOWN", "x")];
        assert_eq!(
            changes(&mut nodes("IDLE"), "IDLE", &downtimes),
            "down@120root recovered@120 n=5"
        );
    }

    #[test]
    fn what_was_before_the_first_poll_is_not_published() {
        let old = [downtime(120, Some(130), "DOWN", "x")];
        let at = DateTime::from_timestamp(9_000, 0).unwrap();
        let mut seen = [observe(
            None,
            NewNode::Baseline { count_from: 0 },
            record("IDLE"),
            at,
        )];
        skip_downtimes(&mut seen, &old);
        let [first] = seen;
        let mut known = BTreeMap::from([("n1".to_owned(), first.after)]);
        assert_eq!(changes(&mut known, "IDLE", &old), "n=1");
        let new = [downtime(140, Some(150), "DOWN", "y")];
        assert_eq!(
            changes(&mut known, "IDLE", &new),
            "down@140root recovered@150 n=3"
        );
    }

    #[test]
    fn cloud_nodes_and_power_saving_are_left_to_polls() {
        let downtimes = [
            downtime(120, Some(130), "DOWN", "x"),
            downtime(140, Some(150), "IDLE+POWERED_DOWN", "Powered down"),
        ];
        assert_eq!(
            changes(&mut nodes("IDLE+CLOUD"), "IDLE+CLOUD", &downtimes),
            "n=3"
        );
        assert_eq!(changes(&mut nodes("IDLE"), "IDLE", &downtimes[1..]), "n=3");
    }
}
