use slurm_client::NodeRecord;
use slurm_types::NodeState;

use super::super::absence::{NewNode, confirm_absence};
use super::super::diff::TrackedNode;
use super::*;

fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

const ADDED: NewNode = NewNode::Added { count_from: 0 };
const CALLED: &str = "2026-11-26T08:20:05Z";

/// `provider action deadline instance`.
fn read(text: &str) -> String {
    match parse(text, time(CALLED)) {
        Parsed::Notice {
            notice,
            instance_id,
        } => {
            let deadline = notice
                .deadline
                .map_or("none".to_owned(), |at| at.to_rfc3339());
            format!(
                "{} {} {deadline} {instance_id}",
                notice.provider, notice.action
            )
            .trim_end()
            .to_owned()
        }
        Parsed::Nothing => "nothing".to_owned(),
        Parsed::Unknown => "unknown".to_owned(),
    }
}

#[test]
fn notices_of_the_providers_are_read() {
    for (text, expected) in [
        (
            r#"{"action": "terminate", "time": "2026-11-26T08:22:00Z"}"#,
            "aws terminate 2026-11-26T08:22:00+00:00",
        ),
        (
            r#"{"version":"0","id":"12345678","detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2","time":"2026-11-26T08:20:00Z","detail":{"instance-id":"i-1234567890abcdef0","instance-action":"stop"}}"#,
            "aws stop 2026-11-26T08:22:00+00:00 i-1234567890abcdef0",
        ),
        ("TRUE\n", "gcp preempt 2026-11-26T08:20:35+00:00"),
        (
            r#"{"DocumentIncarnation":1,"Events":[{"EventId":"1","EventType":"Freeze","NotBefore":""},{"EventId":"2","EventType":"Preempt","ResourceType":"VirtualMachine","Resources":["vm1"],"EventStatus":"Scheduled","NotBefore":"Thu, 26 Nov 2026 08:20:30 GMT"}]}"#,
            "azure preempt 2026-11-26T08:20:30+00:00",
        ),
        (
            r#"{"Events":[{"EventType":"Preempt","EventStatus":"Started","NotBefore":""}]}"#,
            "azure preempt none",
        ),
        // Nothing is reclaimed.
        (r#"{"noticeTime": "2026-11-26T08:20:00Z"}"#, "nothing"),
        (
            r#"{"detail-type":"EC2 Instance Rebalance Recommendation"}"#,
            "nothing",
        ),
        (r#"{"DocumentIncarnation":2,"Events":[]}"#, "nothing"),
        ("FALSE", "nothing"),
        ("", "nothing"),
        // Answers that are none.
        ("<html>404 - Not Found</html>", "unknown"),
        (
            r#"{"action": "dance", "time": "2026-11-26T08:22:00Z"}"#,
            "unknown",
        ),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

fn record(state: &str, reason: &str) -> NodeRecord {
    NodeRecord {
        name: "gpu-1".to_owned(),
        state: NodeState::parse(state),
        instance_id: "i-1".to_owned(),
        reason: reason.to_owned(),
        ..NodeRecord::default()
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

const NOTICE: Option<&str> = Some(r#"{"action": "terminate", "time": "2026-11-26T08:22:00Z"}"#);

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
                notice: notice(None),
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
fn a_deadline_is_bounded_by_our_own_clock() {
    let forged = SpotNotice {
        deadline: Some(time(CALLED) + TimeDelta::hours(23)),
        ..notice(Some(time(CALLED)))
    };
    let until = time(CALLED) + AWS_NOTICE + DETECTION_TIME;
    assert_eq!(forged.effective_until(), until);
    assert!(!forged.is_over(until) && forged.is_over(until + TimeDelta::seconds(1)));
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
fn times_out_of_range_are_refused() {
    let now = time(CALLED);
    let called = |after: TimeDelta| check_call(now + after, now).is_ok();
    assert!(called(TimeDelta::seconds(59)) && called(TimeDelta::days(-13)));
    assert!(!called(TimeDelta::seconds(61)) && !called(TimeDelta::days(-15)));
    let near = |text: &str, at| match parse(text, at) {
        Parsed::Notice { notice, .. } => notice.check_deadline().is_ok(),
        other => panic!("{other:?}"),
    };
    assert!(near(NOTICE.unwrap(), now));
    assert!(!near(
        r#"{"action": "terminate", "time": "2099-01-01T00:00:00Z"}"#,
        now
    ));
    let aws = |time: &str| format!(r#"{{"action": "terminate", "time": "{time}"}}"#);
    assert!(near(&aws("2026-11-26T08:23:05Z"), now) && !near(&aws("2026-11-26T08:23:06Z"), now));
    assert!(near(&aws("2026-11-25T08:20:05Z"), now) && !near(&aws("2026-11-25T08:20:04Z"), now));
    let azure = |time: &str| {
        format!(
            r#"{{"Events":[{{"EventType":"Preempt","NotBefore":"Thu, 26 Nov 2026 {time} GMT"}}]}}"#
        )
    };
    assert!(near(&azure("08:36:05"), now) && !near(&azure("08:36:06"), now));
    // The end of chrono's range.
    assert!(near("TRUE", DateTime::<Utc>::MAX_UTC));
}

/// A notice about some nodes, published at a time or not yet.
fn notice(published_at: Option<DateTime<Utc>>) -> SpotNotice {
    match parse(NOTICE.unwrap(), time(CALLED)) {
        Parsed::Notice { notice, .. } => SpotNotice {
            published_at,
            ..notice
        },
        other => panic!("{other:?}"),
    }
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
                notice: notice(None),
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

#[test]
fn a_notice_published_by_a_clock_that_was_ahead_hides_no_other() {
    let now = time(CALLED);
    let ahead = notice(Some(now + TimeDelta::days(2)));
    assert!(!ahead.is_recent(now));
    assert!(notice(Some(now + TimeDelta::minutes(1))).is_recent(now));
}
