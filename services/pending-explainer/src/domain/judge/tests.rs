//! Situations in which Slurm's words say too little or something wrong. The evidence is that of the test cluster (22.05.8).

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::queue::v1::{
    EvidenceSnapshot, Explanation, FailedRead, License, Limit, NodeState, Partition, QueueSnapshot,
    QueuedJob, Reservation, RunningJob,
};
use mesh_events::timestamp;

use super::super::evidence::Evidence;
use super::super::explain::explain;
use super::super::pending_job::{ClusterView, PendingJob};
use super::super::queue::Queue;

mod limits;
mod nodes;

const GENERIC: &str =
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions";

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_635_100 + seconds, 0).expect("in range")
}

fn job(reason: &str) -> Job {
    Job {
        job_id: 1,
        display_id: "1".into(),
        run: "job/1/1795635095".into(),
        partition: "cpu".into(),
        qos: "normal".into(),
        state: "PENDING".into(),
        reason: reason.into(),
        node_count: 1,
        time_limit_minutes: Some(10),
        req_tres: "cpu=1,mem=10M,node=1,billing=1".into(),
        ..Job::default()
    }
}

fn partition(name: &str, nodes: &str) -> Partition {
    Partition {
        name: name.into(),
        state: "UP".into(),
        nodes: nodes.into(),
        ..Partition::default()
    }
}

fn node(name: &str, features: &[&str], tres: &str) -> NodeState {
    NodeState {
        name: name.into(),
        state: "IDLE".into(),
        cpus: 4,
        memory_mib: 4_000,
        tres: tres.into(),
        features: features.iter().map(|&feature| feature.into()).collect(),
        ..NodeState::default()
    }
}

fn limit(qos: &str, limit: &str, tres: &str, value: u64, used: Option<u64>) -> Limit {
    Limit {
        qos: qos.into(),
        limit: limit.into(),
        tres: tres.into(),
        value,
        used,
        ..Limit::default()
    }
}

fn running(job_id: u32, user: &str, partition: &str, tres: &str, nodes: &str) -> RunningJob {
    RunningJob {
        job_id,
        display_id: job_id.to_string(),
        user: user.into(),
        account: "physics".into(),
        qos: "normal".into(),
        partition: partition.into(),
        state: "RUNNING".into(),
        start: at(0).timestamp(),
        end: at(600).timestamp(),
        tres: tres.into(),
        nodes: nodes.into(),
        ..RunningJob::default()
    }
}

/// Two CPU nodes, two GPU nodes, two cloud nodes.
fn cluster() -> EvidenceSnapshot {
    let (cpu, gpu) = (
        "cpu=4,mem=4000M,billing=4",
        "cpu=4,mem=4000M,billing=4,gres/gpu=4",
    );
    EvidenceSnapshot {
        taken_at: Some(timestamp(at(0))),
        chunks: 1,
        partitions: vec![
            partition("cpu", "n[1-2]"),
            partition("gpu", "n[3-4]"),
            partition("cloud", "c[1-2]"),
            Partition {
                allow_accounts: vec!["ml".into()],
                ..partition("closed", "n[1-2]")
            },
            Partition {
                qos: "partq".into(),
                ..partition("pq", "n[1-2]")
            },
        ],
        nodes: vec![
            node("n1", &["cpu", "intel"], cpu),
            node("n2", &["cpu", "intel"], cpu),
            node("n3", &["gpu", "a100"], gpu),
            node("n4", &["gpu", "a100"], gpu),
            node("c1", &["cloud"], cpu),
            node("c2", &["cloud"], cpu),
        ],
        ..EvidenceSnapshot::default()
    }
}

fn judged(job: &Job, evidence: EvidenceSnapshot) -> Explanation {
    let evidence = Evidence::from_chunks(vec![evidence]).expect("complete");
    let row = QueuedJob {
        run: job.run.clone(),
        job_id: job.job_id,
        display_id: job.display_id.clone(),
        partition: job.partition.clone(),
        reason: job.reason.clone(),
        priority: 10,
        // Backfill plans a start for some jobs that can never start.
        expected_start: at(1_200).timestamp(),
        ..QueuedJob::default()
    };
    let queue = Queue::from_chunks(vec![QueueSnapshot {
        taken_at: Some(timestamp(at(0))),
        chunks: 1,
        jobs: vec![row],
        ..QueueSnapshot::default()
    }])
    .expect("complete");
    explain(&PendingJob {
        job,
        user: "alice",
        account: "physics",
        position: queue.position(&job.run),
        view: ClusterView {
            queue: Some(&queue),
            evidence: Some(&evidence),
            ..ClusterView::default()
        },
        now: at(0),
    })
}

/// Class, actor, whether somebody must act, whether there is an expected start.
fn verdict(explanation: &Explanation) -> (&str, &str, bool, bool) {
    (
        &explanation.reason_class,
        &explanation.actor,
        explanation.needs_act,
        explanation.expected_start.is_some(),
    )
}

fn assert_contains(explanation: &Explanation, parts: &[&str]) {
    let text = format!("{} {}", explanation.summary, explanation.advice);
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    assert!(!text.contains("down"), "no node is down: {text}");
}

#[test]
fn an_account_that_a_partition_does_not_admit() {
    let text = "Job's account not permitted to use this partition (closed allows ml not physics)";
    for reason in [GENERIC, text, "None"] {
        let job = Job {
            partition: "closed".into(),
            ..job(reason)
        };
        let explanation = judged(&job, cluster());
        assert_eq!(
            verdict(&explanation),
            ("request", "user", true, false),
            "{reason}"
        );
        assert_contains(
            &explanation,
            &["Partition closed does not admit account physics, only ml"],
        );
    }
}

#[test]
fn a_job_in_two_partitions_waits_for_the_one_that_admits_it() {
    let job = Job {
        partition: "closed,cpu".into(),
        ..job(GENERIC)
    };
    let explanation = judged(&job, cluster());
    assert_eq!(verdict(&explanation), ("waiting_turn", "wait", false, true));
    assert_contains(&explanation, &["It is next in partition cpu"]);
}

#[test]
fn a_feature_that_no_node_of_the_partition_has() {
    for reason in [GENERIC, "BadConstraints", "Resources"] {
        let job = Job {
            features: "a100".into(),
            ..job(reason)
        };
        let explanation = judged(&job, cluster());
        assert_eq!(
            verdict(&explanation),
            ("request", "user", true, false),
            "{reason}"
        );
        assert_contains(
            &explanation,
            &[
                "Partition cpu has no node with the feature a100",
                "can never start",
            ],
        );
    }
}

#[test]
fn more_gpus_or_nodes_than_the_partition_has() {
    let job = |tres: &str, nodes| Job {
        partition: "gpu".into(),
        req_tres: tres.into(),
        node_count: nodes,
        ..job("Resources")
    };
    let explanation = judged(&job("cpu=1,mem=10M,node=1,gres/gpu=5", 1), cluster());
    assert_eq!(verdict(&explanation), ("request", "user", true, false));
    assert_contains(&explanation, &["no node with 5 GPUs"]);
    let explanation = judged(&job("cpu=3,mem=30M,node=3", 3), cluster());
    assert_eq!(verdict(&explanation), ("request", "user", true, false));
    assert_contains(&explanation, &["has only 2 nodes"]);
    let fits = judged(&job("cpu=8,mem=30M,node=2,gres/gpu=8", 2), cluster());
    assert_eq!(verdict(&fits), ("waiting_turn", "wait", false, true));
}

#[test]
fn a_partition_that_is_down_is_no_reason_if_another_one_admits_the_job() {
    let mut evidence = cluster();
    evidence.partitions.push(Partition {
        state: "DOWN".into(),
        ..partition("off", "n1")
    });
    let job = |partitions: &str| Job {
        partition: partitions.into(),
        ..job("PartitionDown")
    };
    let explanation = judged(&job("cpu,off"), evidence.clone());
    assert_eq!(verdict(&explanation), ("waiting_turn", "wait", false, true));
    assert_contains(&explanation, &["in partition cpu"]);
    let alone = judged(&job("off"), evidence);
    assert_eq!(verdict(&alone), ("partition", "admin", true, false));
}

#[test]
fn maintenance_says_when_and_which_limit_fits_before_it() {
    for reason in [
        "ReqNodeNotAvail, Reserved for maintenance",
        "Resources",
        "Priority",
        GENERIC,
    ] {
        let job = Job {
            time_limit_minutes: Some(60),
            ..job(reason)
        };
        let evidence = EvidenceSnapshot {
            reservations: vec![Reservation {
                name: "maint1".into(),
                start: at(1_230).timestamp(),
                end: at(4_830).timestamp(),
                nodes: "n[1-2]".into(),
                flags: vec!["MAINT".into(), "SPEC_NODES".into()],
                ..Reservation::default()
            }],
            ..cluster()
        };
        let explanation = judged(&job, evidence);
        assert_eq!(explanation.reason_class, "node_unavailable", "{reason}");
        assert_contains(
            &explanation,
            &["Maintenance (maint1) takes n[1-2] from", "at most 20 min"],
        );
        assert!(!explanation.advice.contains("Nothing is wrong"));
    }
}

#[test]
fn its_reservation_with_its_start() {
    let job = Job {
        reservation: "course".into(),
        partition: "gpu".into(),
        ..job("Reservation")
    };
    let course = Reservation {
        name: "course".into(),
        start: at(7_200).timestamp(),
        end: at(10_800).timestamp(),
        nodes: "n3".into(),
        accounts: vec!["physics".into()],
        ..Reservation::default()
    };
    let with = |course: Reservation| EvidenceSnapshot {
        reservations: vec![course],
        ..cluster()
    };
    let explanation = judged(&job, with(course.clone()));
    assert_eq!(explanation.reason_class, "reservation");
    assert_contains(&explanation, &["reservation course begins", "(in 2 h)"]);
    let others = Reservation {
        accounts: vec!["ml".into()],
        ..course
    };
    let explanation = judged(&job, with(others));
    assert_eq!(verdict(&explanation), ("reservation", "user", true, false));
    assert_contains(&explanation, &["is for others: ml"]);
}

#[test]
fn a_job_over_the_time_limit_of_its_partition_has_no_expected_start() {
    let job = Job {
        partition: "short".into(),
        ..job("PartitionTimeLimit")
    };
    let mut evidence = cluster();
    evidence.partitions.push(Partition {
        max_minutes: Some(5),
        ..partition("short", "n[1-2]")
    });
    let explanation = judged(&job, evidence);
    assert_eq!(verdict(&explanation), ("partition", "user", true, false));
    assert_contains(
        &explanation,
        &["allows at most 5 min (MaxTime), and it asks for 10 min"],
    );
}

#[test]
fn a_job_that_it_depends_on_is_shown_with_its_state() {
    let job = Job {
        dependency: "afterok:17(unfulfilled)".into(),
        ..job("Dependency")
    };
    let evidence = EvidenceSnapshot {
        running: vec![running(17, "alice", "cpu", "cpu=1", "n1")],
        ..cluster()
    };
    let explanation = judged(&job, evidence);
    assert_eq!(verdict(&explanation), ("dependency", "wait", false, false));
    assert_contains(
        &explanation,
        &["job 17 to end successfully (it runs until", "at the latest"],
    );
}

#[test]
fn a_failed_read_is_said_and_the_table_answers() {
    let evidence = EvidenceSnapshot {
        failed: vec![FailedRead {
            field: "limits".into(),
            error: "x".into(),
        }],
        ..cluster()
    };
    let job = Job {
        qos: "limited".into(),
        ..job("QOSGrpCpuLimit")
    };
    let explanation = judged(&job, evidence);
    assert_eq!(explanation.reason_class, "limit");
    assert!(
        explanation
            .confidence_note
            .contains("could not be read: limits")
    );
    assert!(explanation.expected_start.is_none());
}
