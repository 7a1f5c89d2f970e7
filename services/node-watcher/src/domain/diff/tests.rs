//! Sequences of Slurm's output and the resulting events.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::event::v1::ActorKind;
use proptest::prelude::*;
use slurm_types::{NodeFlag, NodeState, UnixTime};

use super::super::absence::{
    MISSED_POLLS_BEFORE_DELETED, MISSED_POLLS_IF_MAJORITY_MISSING, NewNode, confirm_absence,
};
use super::super::event;
use super::*;

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_000_000, 0).expect("in range")
}

/// `STATE` or `STATE|reason|user`.
fn record(text: &str) -> NodeRecord {
    let mut parts = text.split('|');
    let state = NodeState::parse(parts.next().unwrap_or_default());
    let [reason, user] = [(); 2].map(|()| parts.next().unwrap_or_default().to_owned());
    NodeRecord {
        name: "n1".into(),
        state,
        reason,
        reason_user: user,
        boot_time: Some(UnixTime::from_secs(1_000)),
        ..NodeRecord::default()
    }
}

/// The events of a node in these states, without the first one.
fn events(states: &[&str]) -> Vec<String> {
    let mut tracked: Option<TrackedNode> = None;
    let mut events = Vec::new();
    for state in states {
        let current = record(state);
        if tracked.is_some() {
            let changes = diff(tracked.as_ref(), &current, now());
            events.extend(changes.into_iter().map(|change| {
                format!("{} {}", change.kind, change.cause.code)
                    .trim_end()
                    .to_owned()
            }));
        }
        tracked = Some(TrackedNode::after(tracked.as_ref(), &current, now()));
    }
    events
}

fn check(states: &[&str], expected: &[&str]) {
    assert_eq!(events(states), expected, "{states:?}");
}

#[test]
fn life_of_fixed_nodes() {
    check(
        &[
            "IDLE",
            "MIXED",
            "ALLOCATED",
            "IDLE+PLANNED",
            "IDLE+COMPLETING",
            "IDLE+RESERVED",
        ],
        &[],
    );
    check(
        &[
            "MIXED",
            "MIXED+DRAIN|bad disk|root",
            "IDLE+DRAIN|bad disk|root",
            "IDLE",
        ],
        &[
            "node.draining admin",
            "node.drained admin",
            "node.recovered",
        ],
    );
    check(
        &["IDLE", "DOWN|x|root", "IDLE+NOT_RESPONDING", "IDLE"],
        &["node.down admin", "node.recovered"],
    );
    check(
        &[
            "ALLOCATED",
            "ALLOCATED+NOT_RESPONDING",
            "DOWN+NOT_RESPONDING|Not responding|slurm",
            "IDLE",
        ],
        &["node.down unreachable", "node.recovered"],
    );
    check(&["IDLE", "IDLE+NOT_RESPONDING", "IDLE"], &[]);
    check(&["IDLE", "IDLE+FAIL|failing|root"], &["node.down admin"]);
    check(
        &["IDLE", "IDLE+INVALID_REG|Low RealMemory|slurm"],
        &["node.down bad_registration"],
    );
    check(
        &["IDLE", "IDLE+DRAIN|Epilog error|root"],
        &["node.drained node_fault"],
    );
}

#[test]
fn life_of_cloud_nodes() {
    check(
        &[
            "IDLE+CLOUD+POWERED_DOWN",
            "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP",
            "MIXED+CLOUD",
            "IDLE+CLOUD",
            "IDLE+CLOUD+POWERING_DOWN",
            "IDLE+CLOUD+POWERED_DOWN",
        ],
        &[
            "node.provisioning power_saving",
            "node.active",
            "node.terminating power_saving",
            "node.terminated power_saving",
        ],
    );
    check(
        &[
            "ALLOCATED+CLOUD+POWERING_UP",
            "DOWN+CLOUD+POWERED_DOWN|ResumeTimeout reached|slurm",
            "MIXED+CLOUD+POWERING_UP",
            "MIXED+CLOUD",
        ],
        &[
            "node.terminated launch_failed",
            "node.provisioning power_saving",
            "node.active",
        ],
    );
    check(
        &[
            "IDLE+CLOUD",
            "DOWN+CLOUD|Preempted instance|slurm",
            "IDLE+CLOUD+POWERED_DOWN|Preempted instance|slurm",
        ],
        &[
            "node.preempted spot_preempted",
            "node.terminated spot_preempted",
        ],
    );
    check(
        &[
            "IDLE+CLOUD",
            "DOWN+CLOUD|Not responding|slurm",
            "DOWN+CLOUD|Preempted instance|slurm",
            "DOWN+CLOUD|Preempted instance|slurm",
        ],
        &["node.down unreachable", "node.preempted spot_preempted"],
    );
    check(
        &[
            "IDLE+CLOUD+POWERING_UP",
            "IDLE+CLOUD+POWER_DOWN|(Code:InsufficientInstanceCapacity)Failure when resuming nodes|slurm",
        ],
        &["node.terminating insufficient_capacity"],
    );
}

#[test]
fn reboots_maintenance_and_controller_restarts() {
    check(
        &[
            "IDLE",
            "IDLE+DRAIN+REBOOT_REQUESTED|Reboot ASAP|root",
            "DOWN+REBOOT_ISSUED|reboot issued|root",
            "IDLE",
        ],
        &[
            "node.drained reboot",
            "node.reboot reboot",
            "node.recovered",
        ],
    );
    check(
        &[
            "IDLE",
            "IDLE+MAINTENANCE",
            "MIXED+MAINTENANCE",
            "IDLE+MAINTENANCE",
            "IDLE",
        ],
        &["node.maintenance maintenance", "node.recovered"],
    );
    check(
        &[
            "IDLE",
            "IDLE+MAINTENANCE",
            "IDLE+MAINTENANCE+DRAIN|disk|root",
            "IDLE+DRAIN|disk|root",
        ],
        &["node.maintenance maintenance", "node.drained admin"],
    );
    check(&["IDLE", "UNKNOWN", "IDLE"], &[]);
    check(
        &["IDLE+DRAIN|x|root", "UNKNOWN+DRAIN|x|root", "IDLE"],
        &["node.recovered"],
    );
    check(&["UNKNOWN", "IDLE"], &["node.active"]);
}

#[test]
fn another_host_behind_the_same_name_is_reported() {
    let before = TrackedNode::after(None, &record("IDLE+CLOUD"), now());
    let kinds = |record: &NodeRecord| {
        diff(Some(&before), record, now())
            .into_iter()
            .map(|change| change.kind.to_string())
            .collect::<Vec<_>>()
    };
    let booted = |state: &str, at| NodeRecord {
        boot_time: Some(UnixTime::from_secs(at)),
        ..record(state)
    };
    assert_eq!(
        kinds(&booted("IDLE+CLOUD", 1_002)),
        [""; 0],
        "boot times wobble"
    );
    assert_eq!(
        kinds(&booted("IDLE+CLOUD", 9_000)),
        ["node.terminated", "node.provisioning", "node.active"]
    );
    let fixed = TrackedNode::after(None, &record("IDLE"), now());
    let kinds: Vec<_> = diff(Some(&fixed), &booted("IDLE", 9_000), now())
        .into_iter()
        .map(|change| change.kind.to_string())
        .collect();
    assert_eq!(kinds, ["node.reboot", "node.active"]);
}

#[test]
fn actors_of_changes() {
    let actor = |state: &str| {
        let before = TrackedNode::after(None, &record("IDLE"), now());
        let change = diff(Some(&before), &record(state), now()).remove(0);
        change.cause.actor.map(|actor| (actor.kind(), actor.user))
    };
    assert_eq!(
        actor("IDLE+DRAIN|bad disk|root"),
        Some((ActorKind::Admin, "root".into()))
    );
    assert_eq!(
        actor("IDLE+DRAIN|bad disk|carol"),
        Some((ActorKind::Admin, "carol".into()))
    );
    assert_eq!(
        actor("IDLE+DRAIN|Kill task failed|root"),
        Some((ActorKind::System, String::new()))
    );
    assert_eq!(
        actor("DOWN|Not responding|slurm"),
        Some((ActorKind::System, String::new()))
    );
    assert_eq!(actor("DOWN"), None);
}

const fn new_node(first: bool) -> NewNode {
    match first {
        true => NewNode::Baseline { count_from: 0 },
        false => NewNode::Added { count_from: 0 },
    }
}

/// Polls a cluster of nodes given as `name state`, and returns `name event`.
struct Cluster(BTreeMap<String, TrackedNode>);

impl Cluster {
    fn confirm_absence(&mut self, first: bool, nodes: &[&str]) -> Vec<String> {
        let answer = nodes.iter().map(|text| {
            let (name, state) = text.split_once(' ').expect("name and state");
            NodeRecord {
                name: name.into(),
                ..record(state)
            }
        });
        let seen = confirm_absence(&self.0, |_| new_node(first), answer.collect(), now());
        let events = seen.iter().flat_map(|seen| {
            seen.changes
                .iter()
                .map(|change| format!("{} {}", seen.record.name, change.kind))
        });
        let events = events.collect();
        self.0
            .extend(seen.into_iter().map(|seen| (seen.record.name, seen.after)));
        events
    }
}

#[test]
fn the_first_look_is_baseline_and_later_nodes_are_added() {
    let mut cluster = Cluster(BTreeMap::new());
    assert_eq!(
        cluster.confirm_absence(true, &["a IDLE", "b DOWN"]),
        ["a node.baseline", "b node.baseline"]
    );
    assert_eq!(
        cluster.confirm_absence(false, &["a IDLE", "b DOWN", "c IDLE"]),
        ["c node.added"]
    );
    // Hidden while it was powered down.
    assert_eq!(
        cluster.confirm_absence(
            false,
            &["a IDLE", "b DOWN", "c IDLE", "d MIXED+CLOUD+POWERING_UP"]
        ),
        ["d node.provisioning"]
    );
}

#[test]
fn a_node_is_removed_after_two_answers_without_it() {
    let mut cluster = Cluster(BTreeMap::new());
    cluster.confirm_absence(true, &["a IDLE", "b IDLE", "c IDLE"]);
    assert!(
        cluster
            .confirm_absence(false, &["a IDLE", "b IDLE"])
            .is_empty()
    );
    assert!(
        cluster
            .confirm_absence(false, &["a IDLE", "b IDLE", "c IDLE"])
            .is_empty()
    );
    for _ in 1..MISSED_POLLS_BEFORE_DELETED {
        assert!(
            cluster
                .confirm_absence(false, &["a IDLE", "b IDLE"])
                .is_empty()
        );
    }
    assert_eq!(
        cluster.confirm_absence(false, &["a IDLE", "b IDLE"]),
        ["c node.removed"]
    );
    assert!(
        cluster
            .confirm_absence(false, &["a IDLE", "b IDLE"])
            .is_empty()
    );
    assert_eq!(
        cluster.confirm_absence(false, &["a IDLE", "b IDLE", "c IDLE"]),
        ["c node.added"]
    );
    assert_eq!(cluster.0["c"].n, 3, "numbers go on, or ids would repeat");
}

#[test]
fn a_shrunken_answer_needs_more_confirmations() {
    let mut cluster = Cluster(BTreeMap::new());
    cluster.confirm_absence(true, &["a IDLE", "b IDLE", "c IDLE"]);
    for _ in 1..MISSED_POLLS_IF_MAJORITY_MISSING {
        assert!(cluster.confirm_absence(false, &["a IDLE"]).is_empty());
    }
    assert_eq!(
        cluster.confirm_absence(false, &["a IDLE"]),
        ["b node.removed", "c node.removed"]
    );
}

#[test]
fn a_cloud_node_that_vanishes_is_switched_off_not_removed() {
    let mut cluster = Cluster(BTreeMap::new());
    cluster.confirm_absence(true, &["a IDLE", "b IDLE", "c IDLE+CLOUD"]);
    assert!(
        cluster
            .confirm_absence(false, &["a IDLE", "b IDLE"])
            .is_empty()
    );
    assert_eq!(
        cluster.confirm_absence(false, &["a IDLE", "b IDLE"]),
        ["c node.terminated"]
    );
    assert!(
        cluster
            .confirm_absence(false, &["a IDLE", "b IDLE"])
            .is_empty()
    );
    assert_eq!(
        cluster.confirm_absence(false, &["a IDLE", "b IDLE", "c MIXED+CLOUD+POWERING_UP"]),
        ["c node.provisioning"]
    );
}

fn states() -> impl Strategy<Value = String> {
    let base = prop::sample::select(vec![
        "UNKNOWN",
        "DOWN",
        "IDLE",
        "ALLOCATED",
        "MIXED",
        "FUTURE",
        "SOMETHINGNEW",
    ]);
    let flags = prop::collection::vec(
        prop::sample::select(NodeFlag::ALL.map(|(_, name)| name).to_vec()),
        0..4,
    );
    let reason = prop::sample::select(vec![
        "",
        "|bad disk|root",
        "|Not responding|slurm",
        "|Preempted instance|slurm",
        "|ResumeTimeout reached|slurm",
    ]);
    (base, flags, reason)
        .prop_map(|(base, flags, reason)| [vec![base], flags].concat().join("+") + reason)
}

proptest! {
    #[test]
    fn the_same_state_again_is_no_event(first in states(), then in states()) {
        let before = TrackedNode::after(None, &record(&first), now());
        let after = TrackedNode::after(Some(&before), &record(&then), now());
        prop_assert!(diff(Some(&after), &record(&then), now()).is_empty());
    }

    #[test]
    fn numbers_and_ids_never_repeat(polls in prop::collection::vec(states(), 1..12)) {
        let mut known = BTreeMap::new();
        let (mut ids, mut last) = (std::collections::BTreeSet::new(), 0);
        for (index, state) in polls.iter().enumerate() {
            for seen in confirm_absence(&known, |_| new_node(index == 0), vec![record(state)], now()) {
                for event in event::of("c", "scontrol show node", &seen) {
                    prop_assert!(ids.insert(event.id.clone()));
                    prop_assert_eq!(event.run_seq, last + 1);
                    last += 1;
                    prop_assert!(mesh_events::Event::from_bytes(&prost::Message::encode_to_vec(&event)).is_ok());
                }
                known.insert(seen.record.name.clone(), seen.after);
            }
        }
    }

    #[test]
    fn a_change_of_stage_is_published_unless_it_is_maintenance(first in states(), then in states()) {
        let before = TrackedNode::after(None, &record(&first), now());
        let after = TrackedNode::after(Some(&before), &record(&then), now());
        let events = !diff(Some(&before), &record(&then), now()).is_empty();
        prop_assert!(events || before.lifecycle == after.lifecycle || before.maintenance && after.maintenance);
    }
}
