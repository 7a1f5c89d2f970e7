use chrono::TimeDelta;
use slurm_client::NodeRecord;
use slurm_types::NodeState;

use super::super::absence::{NewNode, confirm_absence};
use super::super::spot_notice::{Parsed, parse};
use super::super::tracked_node::TrackedNode;
use super::*;

fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

const ADDED: NewNode = NewNode::Added { count_from: 0 };
const CALLED: &str = "2026-11-26T08:20:05Z";
const NOTICE: Option<&str> = Some(r#"{"action": "terminate", "time": "2026-11-26T08:22:00Z"}"#);

fn record(state: &str, reason: &str) -> NodeRecord {
    NodeRecord {
        name: "gpu-1".to_owned(),
        state: NodeState::parse(state),
        instance_id: "i-1".to_owned(),
        reason: reason.to_owned(),
        ..NodeRecord::default()
    }
}

/// A notice about some nodes.
fn notice() -> SpotNotice {
    match parse(NOTICE.unwrap(), time(CALLED)) {
        Parsed::Notice { notice, .. } => notice,
        other => panic!("{other:?}"),
    }
}

/// A node through these answers, with notices before some: `preempted spot_preempted`.
fn lived(answers: &[(&str, &str, Option<&str>)]) -> Vec<String> {
    let mut known = BTreeMap::<String, TrackedNode>::new();
    let mut events = Vec::new();
    let mut now = time(CALLED);
    let mut limit = NoticeLimit::default();
    for (state, reason, notice) in answers {
        now += TimeDelta::seconds(20);
        let notices: Vec<NodeNotice> = notice
            .map(|text| match parse(text, now) {
                Parsed::Notice {
                    notice,
                    instance_id,
                } => NodeNotice {
                    nodes: if instance_id.is_empty() {
                        vec!["gpu-1".to_owned()]
                    } else {
                        Vec::new()
                    },
                    instance_id,
                    notice,
                },
                other => panic!("{other:?}"),
            })
            .into_iter()
            .collect();
        let mut seen = confirm_absence(&known, |_| ADDED, vec![record(state, reason)], now);
        let mut notices = Notices {
            given: notices,
            limit,
            ..Notices::default()
        };
        apply(&mut seen, &mut notices, now);
        limit = notices.limit;
        for node in seen {
            let changes = node.changes.iter();
            events.extend(
                changes.map(|change| format!("{} {}", change.kind.event(), change.cause.code)),
            );
            known.insert(node.record.name, node.after);
        }
    }
    events
}

#[test]
fn a_notice_is_published_once_and_explains_what_follows() {
    let events = lived(&[
        ("IDLE+CLOUD", "", None),
        ("ALLOCATED+CLOUD", "", NOTICE),
        ("ALLOCATED+CLOUD", "", NOTICE),
        ("DOWN+CLOUD", "Not responding", None),
        // The provider's reason is not news any more.
        ("DOWN+CLOUD", "Preempted instance", None),
        ("IDLE+CLOUD", "", None),
        // Another machine, another notice.
        ("ALLOCATED+CLOUD", "", Some("TRUE")),
    ]);
    let expected = [
        "active ",
        "preempted spot_preempted",
        "down spot_preempted",
        "recovered ",
        "preempted spot_preempted",
    ];
    assert_eq!(events, expected);
}

#[test]
fn without_a_notice_a_silent_node_is_unreachable() {
    let events = lived(&[
        ("IDLE+CLOUD", "", None),
        ("DOWN+CLOUD", "Not responding", None),
    ]);
    assert_eq!(events, ["active ", "down unreachable"]);
}

#[test]
fn a_notice_names_the_node_by_its_instance() {
    let event = r#"{"detail-type":"EC2 Spot Instance Interruption Warning","time":"2026-11-26T08:20:00Z","detail":{"instance-id":"i-1","instance-action":"terminate"}}"#;
    let other = event.replace("i-1", "i-2");
    let events = lived(&[
        ("IDLE+CLOUD", "", Some(&other)),
        ("IDLE+CLOUD", "", Some(event)),
    ]);
    assert_eq!(events, ["active ", "preempted spot_preempted"]);
}

#[test]
fn a_node_that_stays_is_not_explained_by_an_old_notice() {
    let mut answers = vec![("IDLE+CLOUD", "", NOTICE)];
    answers.extend([("IDLE+CLOUD", "", None); 40]);
    answers.push(("DOWN+CLOUD", "Not responding", None));
    let events = lived(&answers);
    assert_eq!(
        events,
        ["active ", "preempted spot_preempted", "down unreachable"]
    );
}

#[test]
fn a_notice_alone_explains_no_outage() {
    // Not of a cloud machine.
    let mut known = BTreeMap::<String, TrackedNode>::new();
    let now = time(CALLED);
    let mut causes = Vec::new();
    for (seconds, state) in [(0, "IDLE"), (20, "DOWN")] {
        let fixed = NodeRecord {
            instance_id: String::new(),
            ..record(state, "Not responding")
        };
        let now = now + TimeDelta::seconds(seconds);
        let mut seen = confirm_absence(&known, |_| ADDED, vec![fixed], now);
        let mut notices = Notices {
            given: vec![NodeNotice {
                nodes: vec!["gpu-1".to_owned()],
                instance_id: String::new(),
                notice: notice(),
            }],
            ..Notices::default()
        };
        apply(&mut seen, &mut notices, now);
        causes.extend(seen.iter().map(|node| node.after.cause.clone()));
        known.extend(seen.into_iter().map(|node| (node.record.name, node.after)));
    }
    assert_eq!(causes, ["", "unreachable"]);

    // It was down before.
    let events = lived(&[
        ("IDLE+CLOUD", "", None),
        ("DOWN+CLOUD", "Not responding", None),
        ("DOWN+CLOUD", "Not responding", NOTICE),
        ("DOWN+CLOUD+POWERING_DOWN", "Not responding", None),
    ]);
    let expected = [
        "active ",
        "down unreachable",
        "preempted spot_preempted",
        "terminating unreachable",
    ];
    assert_eq!(events, expected);
}

#[test]
fn after_a_notice_that_came_to_nothing_another_explains_nothing() {
    let again = r#"{"action": "terminate", "time": "2026-11-26T08:36:00Z"}"#;
    let mut answers = vec![("IDLE+CLOUD", "", NOTICE)];
    answers.extend([("IDLE+CLOUD", "", None); 40]);
    answers.push(("IDLE+CLOUD", "", Some(again)));
    answers.push(("DOWN+CLOUD", "Not responding", None));
    let notices = ["preempted spot_preempted"; 2];
    let expected = [&["active "][..], &notices, &["down unreachable"]].concat();
    assert_eq!(lived(&answers), expected);
}

#[test]
fn forged_notices_of_one_node_give_one_event() {
    let texts: Vec<String> = (0..28)
        .map(|n| format!(r#"{{"action": "terminate", "time": "2026-11-26T09:{n:02}:00Z"}}"#))
        .collect();
    let mut answers = vec![("IDLE+CLOUD", "", None)];
    answers.extend(
        texts
            .iter()
            .map(|text| ("IDLE+CLOUD", "", Some(text.as_str()))),
    );
    assert_eq!(lived(&answers), ["active ", "preempted spot_preempted"]);
}

#[test]
fn more_notices_than_a_minute_admits_are_published_in_the_next_one() {
    let now = time(CALLED);
    let mut known = BTreeMap::<String, TrackedNode>::new();
    let name = |node: usize| format!("gpu-{node}");
    let all = MAX_PER_MINUTE as usize + 100;
    let mut notices = Notices {
        given: (0..all)
            .map(|node| NodeNotice {
                nodes: vec![name(node)],
                instance_id: String::new(),
                notice: notice(),
            })
            .collect(),
        ..Notices::default()
    };
    let mut published = Vec::new();
    for minute in 0..3 {
        let now = now + TimeDelta::minutes(minute);
        let records = (0..all).map(|node| NodeRecord {
            name: name(node),
            ..record("IDLE", "")
        });
        let mut seen = confirm_absence(&known, |_| ADDED, records.collect(), now);
        published.push(apply(&mut seen, &mut notices, now).len());
        known.extend(seen.into_iter().map(|node| (node.record.name, node.after)));
        notices.given = notices.postponed.clone();
    }
    assert_eq!(published, [MAX_PER_MINUTE as usize, 100, 0]);
}
