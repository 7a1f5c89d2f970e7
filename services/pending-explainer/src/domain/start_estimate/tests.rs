use mesh_events::proto::mesh::queue::v1::{
    EvidenceSnapshot, NodeState, Partition, QueueSnapshot, QueuedJob, RunningJob,
};
use mesh_events::timestamp;
use queue_estimate::random::Random;

use super::*;
use crate::adapters::estimates::packed;

fn queue(at: Seconds, rows: Vec<QueuedJob>) -> Queue {
    let snapshot = QueueSnapshot {
        cluster: "c".into(),
        taken_at: DateTime::from_timestamp(at, 0).map(timestamp),
        chunk: 0,
        chunks: 1,
        jobs: rows,
        running: 0,
    };
    Queue::from_chunks(vec![snapshot]).expect("complete")
}

fn evidence(at: Seconds, running: Vec<RunningJob>) -> Evidence {
    let node = |name: &str, flags: &[&str]| NodeState {
        name: name.into(),
        state: "IDLE".into(),
        state_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        cpus: 4,
        memory_mib: 8_000,
        tres: "cpu=4,mem=8000M,gres/gpu=2".into(),
        partitions: vec!["cpu".into()],
        ..NodeState::default()
    };
    let partition = |name: &str, nodes: &str| Partition {
        name: name.into(),
        nodes: nodes.into(),
        ..Partition::default()
    };
    let snapshot = EvidenceSnapshot {
        cluster: "c".into(),
        taken_at: DateTime::from_timestamp(at, 0).map(timestamp),
        chunks: 1,
        running,
        nodes: vec![
            node("n1", &[]),
            node("n2", &[]),
            node("n3", &["DRAIN"]),
            node("g1", &[]),
        ],
        partitions: vec![
            partition("cpu", "n[1-3]"),
            partition("debug", "n1"),
            partition("gpu", "g1"),
        ],
        ..EvidenceSnapshot::default()
    };
    Evidence::from_chunks(vec![snapshot]).expect("complete")
}

fn row(id: u32, reason: &str) -> QueuedJob {
    QueuedJob {
        run: format!("job/{id}/0"),
        job_id: id,
        partition: "cpu".into(),
        reason: reason.into(),
        priority: 5,
        user: "alice".into(),
        ..QueuedJob::default()
    }
}

fn request(size: i64) -> Request {
    Request {
        size: Resources([size, 0, 0]),
        limit: 600,
        eligible: 0,
        started_at: None,
        cancelled: false,
    }
}

fn requests(of: &[(u32, Request)]) -> HashMap<String, Request> {
    of.iter()
        .map(|(id, request)| (format!("job/{id}/0"), request.clone()))
        .collect()
}

fn running(id: u32, start: Seconds, cpus: u32) -> RunningJob {
    RunningJob {
        job_id: id,
        partition: "cpu".into(),
        start,
        end: start + 3_600,
        tres: format!("cpu={cpus},mem=100M"),
        user: "bob".into(),
        ..RunningJob::default()
    }
}

#[test]
fn partitions_with_common_nodes_are_one_pool_without_drained_nodes() {
    let view = cluster::snapshot(
        100,
        &queue(100, vec![row(1, "Resources")]),
        &evidence(100, vec![running(9, 50, 3)]),
        &requests(&[(1, request(6))]),
        |_| None,
    );
    let capacities: Vec<_> = view
        .snapshot
        .pools
        .iter()
        .map(|pool| pool.capacity.0)
        .collect();
    assert_eq!(capacities, [[8, 16_000, 4], [4, 8_000, 2]]);
    assert_eq!(view.snapshot.running[0].size.0, [3, 100, 0]);
    assert_eq!(view.snapshot.waiting[0].pools, [0]);
}

#[test]
fn a_job_is_scored_when_it_starts() {
    let mut state = EstimateState::default();
    let known = requests(&[(1, request(6))]);
    let full = || vec![running(9, 1, 8)];
    let step = state.update(
        &queue(10, vec![row(1, "Resources")]),
        &evidence(10, full()),
        &known,
        8,
    );
    assert!(step.estimates.is_empty(), "it has not waited for 30 s");
    let step = state.update(
        &queue(40, vec![row(1, "Resources")]),
        &evidence(40, full()),
        &known,
        8,
    );
    let estimate = &step.estimates["job/1/0"];
    // Nothing is calibrated yet: no likely time, and the plan by limits as the bound.
    assert_eq!(estimate.start_p50, None);
    assert_eq!(estimate.start_p90, DateTime::from_timestamp(3_601, 0));
    assert_eq!(estimate.method, "uncalibrated");
    assert!(estimate.note.starts_with("too early"), "{}", estimate.note);
    // It is not in the queue any more; the evidence is older, then shows it.
    let step = state.update(&queue(100, vec![]), &evidence(90, full()), &known, 8);
    assert!(step.finished.is_empty());
    let step = state.update(
        &queue(160, vec![]),
        &evidence(120, vec![running(1, 95, 6)]),
        &known,
        8,
    );
    assert_eq!(step.finished.len(), 1);
    assert_eq!(step.finished[0].actual, 55);
    assert_eq!(state.quality().starts, 1);
    assert_eq!(state.quality().open, 0);
}

#[test]
fn holds_and_changed_requests_close_an_estimate_without_a_score() {
    let at = |state: &mut EstimateState, time, reason: &str, size| {
        let known = requests(&[(1, request(size))]);
        state.update(
            &queue(time, vec![row(1, reason)]),
            &evidence(time, vec![]),
            &known,
            8,
        )
    };
    let mut state = EstimateState::default();
    at(&mut state, 40, "Resources", 6);
    assert_eq!(state.quality().open, 1);
    at(&mut state, 100, "JobHeldUser", 6);
    assert_eq!(state.quality().open, 0);
    at(&mut state, 200, "Resources", 6);
    assert_eq!(state.quality().open, 1);
    at(&mut state, 300, "Resources", 2);
    at(&mut state, 400, "Resources", 2);
    assert_eq!((state.quality().open, state.quality().starts), (1, 0));
}

#[test]
fn the_stored_state_goes_on_as_if_nothing_had_happened() {
    let rows = || (1..=40).map(|id| row(id, "Resources")).collect::<Vec<_>>();
    let known: Vec<_> = (1..=40)
        .map(|id| (id, request(1 + i64::from(id % 6))))
        .collect();
    let known = requests(&known);
    let mut state = EstimateState::default();
    for minute in 1..5 {
        let at = 60 * minute;
        let ends = (100..120 - minute)
            .map(|id| running(id as u32, 0, 1))
            .collect();
        state.update(&queue(at, rows()), &evidence(at, ends), &known, 8);
    }
    let json = serde_json::to_vec(&state).expect("a state");
    let mut restored: EstimateState = serde_json::from_slice(&json).expect("a state");
    assert_eq!(restored, state);
    let next = |state: &mut EstimateState| {
        state
            .update(&queue(600, rows()), &evidence(600, vec![]), &known, 8)
            .estimates
    };
    assert_eq!(next(&mut state), next(&mut restored));
}

#[test]
fn nine_of_ten_is_said_only_where_it_is_true() {
    let now = DateTime::from_timestamp(0, 0).expect("a time");
    let mut estimate = StartEstimate {
        start_p10: DateTime::from_timestamp(600, 0),
        start_p50: DateTime::from_timestamp(3_600, 0),
        start_p90: DateTime::from_timestamp(7_200, 0),
        method: "mixed",
        calibration: Calibration {
            class: "<6h",
            n: 300,
            covered_p90: Some(90.0),
        },
        note: String::new(),
    };
    assert_eq!(
        estimate.sentence(now),
        " Likely start 1970-01-01 01:00 UTC (in 1 h); 9 of 10 such jobs start by 1970-01-01 02:00 UTC (in 2 h)."
    );
    estimate.calibration.covered_p90 = Some(79.0);
    assert!(
        estimate
            .sentence(now)
            .contains("; usually it starts by 1970")
    );
    estimate.start_p50 = None;
    assert_eq!(estimate.sentence(now), "");
}

/// A queue of 3,000 jobs of 600 users, half of which start between two snapshots, and 5,000 running jobs of random lengths.
#[test]
fn the_stored_state_of_a_large_cluster_is_below_a_mebibyte() {
    let mut random = Random::seeded(&[7]);
    let mut state = EstimateState::default();
    let mut waiting: Vec<(u32, Seconds)> = Vec::new();
    let mut next = 1;
    let mut largest = 0;
    for snapshot in 0..24 {
        let at = 1_000_000_000 + snapshot * 3 * 3_600;
        let user = |id: u32| format!("user{}", id % 600);
        let mut running_rows = Vec::new();
        let mut left = Vec::new();
        for (index, (id, eligible)) in waiting.drain(..).enumerate() {
            if index % 2 == 0 {
                running_rows.push(RunningJob {
                    user: user(id),
                    ..running(id, at - 1 - random.below(9_000) as i64, 1)
                });
            } else {
                left.push((id, eligible));
            }
        }
        while left.len() < 3_000 {
            left.push((next, at - 31 - random.below(80_000) as i64));
            next += 1;
        }
        while running_rows.len() < 5_000 {
            let id = 1_000_000 + random.below(1_000_000) as u32;
            running_rows.push(RunningJob {
                user: user(id),
                ..running(id, at - 1 - random.below(80_000) as i64, 1)
            });
        }
        let known: Vec<(u32, Request)> = left
            .iter()
            .map(|(id, eligible)| {
                let request = Request {
                    limit: 600 * (1 + i64::from(id % 144)),
                    eligible: *eligible,
                    ..request(1 + i64::from(id % 8))
                };
                (*id, request)
            })
            .collect();
        let rows = left.iter().map(|(id, _)| QueuedJob {
            user: user(*id),
            partition: ["cpu", "debug", "gpu"][*id as usize % 3].into(),
            priority: 1 + id % 1_000,
            ..row(*id, "Priority")
        });
        let queue = queue(at, rows.collect());
        for seconds in [0, 60] {
            let evidence = evidence(at + seconds, running_rows.clone());
            state.update(&queue, &evidence, &requests(&known), 1);
        }
        largest = largest.max(packed(&state).expect("a value").len());
        waiting = left;
    }
    assert!(
        state.estimator.starts() > 1_000,
        "{}",
        state.estimator.starts()
    );
    assert!(state.running.len() > 1_000 && state.waiting.len() >= 400);
    assert!(largest < 1 << 20, "{largest} bytes");
}
