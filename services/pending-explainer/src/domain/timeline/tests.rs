//! When explanations are published.

use std::collections::HashMap;

use mesh_events::proto::mesh::queue::v1::{QueueSnapshot, QueuedJob};
use mesh_testkit::fixtures;

use super::super::queue::Queue;
use super::super::start_estimate::{Calibration, StartEstimate};
use super::*;

fn at(seconds: i64) -> DateTime<Utc> {
    fixtures::submit_time() + TimeDelta::seconds(seconds)
}

fn waiting(kind: EventType, reason: &str, seq: u64) -> Event {
    let job = Job {
        state: "PENDING".into(),
        reason: reason.into(),
        start_time: None,
        nodes: String::new(),
        ..fixtures::job(7)
    };
    // Sampled events of a run are numbered, so that each has its own id.
    let id = EventId::sampled(fixtures::CLUSTER, &job.run, kind, seq).to_string();
    Event {
        id,
        run_seq: seq,
        ..fixtures::job_event(kind, job)
    }
}

fn row(expected_start: DateTime<Utc>) -> QueuedJob {
    QueuedJob {
        run: fixtures::run(7).entity_key(),
        partition: "cpu".into(),
        reason: "Priority".into(),
        expected_start: expected_start.timestamp(),
        ..QueuedJob::default()
    }
}

fn apply(
    runs: &mut BTreeMap<String, PendingRun>,
    event: &Event,
    now: DateTime<Utc>,
) -> Option<Event> {
    match apply_event(runs, event, ClusterView::default(), now) {
        UpdateOutcome::Publish(event) => Some(*event),
        UpdateOutcome::Nothing | UpdateOutcome::Noted => None,
    }
}

/// Applies an event about the pending job: its type, reason and number.
fn apply_waiting(
    runs: &mut BTreeMap<String, PendingRun>,
    (kind, reason, seq): (EventType, &str, u64),
    seconds: i64,
) -> Option<Event> {
    apply(runs, &waiting(kind, reason, seq), at(seconds))
}

fn explanation(event: &Event) -> &Explanation {
    match &event.payload {
        Some(Payload::Queue(queue)) => queue.explanation.as_ref().expect("an explanation"),
        other => panic!("no explanation: {other:?}"),
    }
}

fn see(
    runs: &mut BTreeMap<String, PendingRun>,
    start: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Option<Event> {
    let queue = Queue::from_chunks(vec![QueueSnapshot {
        taken_at: Some(timestamp(now)),
        chunks: 1,
        jobs: vec![row(start)],
        ..QueueSnapshot::default()
    }]);
    let view = ClusterView {
        queue: queue.as_ref(),
        evidence: None,
        ..ClusterView::default()
    };
    let run = runs.values_mut().next().expect("a run");
    apply_snapshot(run, fixtures::CLUSTER, view, now).event
}

#[test]
fn only_a_change_of_class_is_published() {
    let mut runs = BTreeMap::new();
    let mut class = |kind, reason, seq| {
        apply(&mut runs, &waiting(kind, reason, seq), at(0))
            .map(|published| explanation(&published).reason_class.clone())
    };
    assert_eq!(class(EventType::JobSubmitted, "None", 1), None);
    assert_eq!(
        class(EventType::JobPending, "Priority", 2).as_deref(),
        Some("waiting_turn")
    );
    assert_eq!(class(EventType::JobPending, "Resources", 3), None);
    assert_eq!(
        class(EventType::JobPending, "QOSGrpCpuLimit", 4).as_deref(),
        Some("limit")
    );
    assert_eq!(
        class(EventType::JobHeld, "JobHeldUser", 5).as_deref(),
        Some("held")
    );
    assert_eq!(class(EventType::JobReleased, "None", 6), None);
    assert_eq!(
        class(EventType::JobHeld, "JobHeldUser", 7).as_deref(),
        Some("held")
    );
    assert_eq!(runs.values().next().map(|run| run.timeline.len()), Some(4));
}

#[test]
fn ids_follow_from_the_cause() {
    let mut runs = BTreeMap::new();
    let event = waiting(EventType::JobPending, "Priority", 1);
    let published = apply(&mut runs, &event, at(0)).expect("said");
    assert_eq!(
        published.id,
        EventId::derived(
            event.id.parse().expect("an id"),
            EventType::QueueExplained,
            0
        )
        .to_string()
    );
    assert_eq!(
        published.correlation.map(|c| c.event_ids),
        Some(vec![event.id])
    );
    assert_eq!(
        (published.owner, published.entity, published.cluster),
        (event.owner, event.entity, event.cluster)
    );
}

#[test]
fn the_same_or_an_older_event_publishes_nothing() {
    let mut runs = BTreeMap::new();
    let newer = waiting(EventType::JobPending, "Priority", 5);
    assert!(apply(&mut runs, &newer, at(0)).is_some());
    assert!(apply(&mut runs, &newer, at(1)).is_none());
    assert!(apply_waiting(&mut runs, (EventType::JobHeld, "JobHeldUser", 4), 2).is_none());
}

#[test]
fn a_job_that_left_is_stored_for_a_day() {
    let mut runs = BTreeMap::new();
    assert!(apply_waiting(&mut runs, (EventType::JobPending, "Priority", 1), 0).is_some());
    let started = Event {
        run_seq: 2,
        ..fixtures::job_event(EventType::JobStarted, fixtures::job(7))
    };
    assert!(apply(&mut runs, &started, at(10)).is_none());
    assert!(apply_waiting(&mut runs, (EventType::JobHeld, "JobHeldUser", 3), 11).is_none());
    assert!(see(&mut runs, at(4_000), at(12)).is_none());
    assert!(!expire(&mut runs, at(3_600)));
    assert!(expire(&mut runs, at(100_000)) && runs.is_empty());
}

#[test]
fn a_started_job_never_seen_pending_is_not_stored() {
    let mut runs = BTreeMap::new();
    assert!(
        apply(
            &mut runs,
            &fixtures::job_event(EventType::JobStarted, fixtures::job(7)),
            at(0)
        )
        .is_none()
    );
    assert!(runs.is_empty());
}

#[test]
fn an_expected_start_is_published_when_new_or_moved_much() {
    let mut runs = BTreeMap::new();
    assert!(apply_waiting(&mut runs, (EventType::JobPending, "Priority", 1), 0).is_some());
    let first = see(&mut runs, at(7_200), at(30)).expect("appears");
    assert!(explanation(&first).expected_start.is_some());
    // Too soon, although it moves a lot.
    assert!(see(&mut runs, at(20_000), at(60)).is_none());
    // 1000 s of a remaining 6300 s are less than a fifth.
    assert!(see(&mut runs, at(8_200), at(900)).is_none());
    let second = see(&mut runs, at(9_000), at(900)).expect("moved");
    assert_ne!(first.id, second.id);
    assert_eq!(first.correlation, second.correlation);
    // Too soon after the last event.
    assert!(see(&mut runs, at(90_000), at(901)).is_none());
}

#[test]
fn a_snapshot_publishes_nothing_before_the_first_explanation() {
    let mut runs = BTreeMap::new();
    assert!(apply_waiting(&mut runs, (EventType::JobSubmitted, "None", 1), 0).is_none());
    assert!(see(&mut runs, at(7_200), at(30)).is_none());
}

#[test]
fn state_is_read_back_as_it_was_written() {
    let mut runs = BTreeMap::new();
    apply_waiting(&mut runs, (EventType::JobPending, "Priority", 1), 0).expect("said");
    let text = serde_json::to_string(&runs).expect("written");
    let back: BTreeMap<String, PendingRun> = serde_json::from_str(&text).expect("read");
    assert_eq!(serde_json::to_string(&back).expect("written"), text);
    assert_eq!(
        back.values().next().map(|run| &run.job),
        runs.values().next().map(|run| &run.job)
    );
}

#[test]
fn explanations_published_with_a_clock_ahead_do_not_suppress_later_ones() {
    let hour = 3_600;
    let mut runs = BTreeMap::new();
    apply(
        &mut runs,
        &waiting(EventType::JobPending, "Priority", 1),
        at(hour),
    )
    .expect("an explanation");
    see(&mut runs, at(3 * hour), at(hour)).expect("a start");
    // The start is available again.
    assert!(see(&mut runs, at(8 * hour), at(60)).is_some());
    // While it stays the same, nothing is published twice within ten minutes.
    assert!(see(&mut runs, at(2 * hour), at(120)).is_none());

    let run = runs.values_mut().next().expect("a run");
    run.left_at = Some(at(30 * 24 * hour).timestamp());
    assert!(expire(&mut runs, at(180)));
    assert!(runs.is_empty());
}

#[test]
fn a_start_has_moved_if_it_did_by_more_than_a_fifth_of_the_wait() {
    let moved_to = |minutes: i64| snapshot::is_worth_publishing(Some(3_600), minutes * 60, 0);
    assert_eq!(
        [71, 72, 73, 49, 47].map(moved_to),
        [false, false, true, false, true]
    );
}

/// The view of a queue in which job 7 waits, with this P90.
fn estimated(p90: DateTime<Utc>) -> HashMap<String, StartEstimate> {
    let estimate = StartEstimate {
        start_p10: None,
        start_p50: None,
        start_p90: Some(p90),
        method: "mixed",
        calibration: Calibration {
            class: "<1h",
            n: 200,
            covered_p90: Some(91.0),
        },
        note: String::new(),
    };
    HashMap::from([(fixtures::run(7).entity_key(), estimate)])
}

#[test]
fn a_wait_beyond_the_first_p90_is_published_once() {
    let mut runs = BTreeMap::new();
    apply_waiting(&mut runs, (EventType::JobPending, "Priority", 1), 0).expect("published");
    let mut late = |p90: i64, now: i64| {
        let estimates = estimated(at(p90));
        let queue = Queue::from_chunks(vec![QueueSnapshot {
            taken_at: Some(timestamp(at(now))),
            chunks: 1,
            jobs: vec![QueuedJob {
                expected_start: 0,
                ..row(at(0))
            }],
            ..QueueSnapshot::default()
        }]);
        let view = ClusterView {
            queue: queue.as_ref(),
            estimates: Some(&estimates),
            ..ClusterView::default()
        };
        let run = runs.values_mut().next().expect("a run");
        apply_snapshot(run, fixtures::CLUSTER, view, at(now))
    };
    let first = late(3_600, 60);
    assert!(first.is_changed && first.event.is_none());
    // Later estimates move on with the wait, but the first one counts.
    assert!(!late(7_200, 3_600).is_changed);
    let published = late(9_000, 3_601).event.expect("late");
    let explanation = explanation(&published);
    assert!(explanation.is_late);
    assert!(
        explanation
            .summary
            .starts_with("Later than expected: 9 of 10")
    );
    assert_eq!(
        explanation.start_p90.as_ref().map(|time| time.seconds),
        Some(at(9_000).timestamp())
    );
    assert_eq!(explanation.estimate_method, "mixed");
    assert!(!late(9_000, 9_001).is_changed);
    // A new cause has its own estimates.
    apply_waiting(&mut runs, (EventType::JobHeld, "JobHeldUser", 2), 9_100).expect("held");
    let run = runs.values().next().expect("a run");
    assert_eq!((run.first_p90, run.is_late), (None, false));
}
