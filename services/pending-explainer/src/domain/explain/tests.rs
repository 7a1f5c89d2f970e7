//! Texts for the whole reason table.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::job::v1::ArrayInfo;
use mesh_events::proto::mesh::queue::v1::QueuedJob;
use proptest::prelude::*;
use slurm_types::reasons;

use super::super::pending_job::ClusterView;
use super::*;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_000_000 + seconds, 0).expect("in range")
}

fn job() -> Job {
    Job {
        job_id: 123,
        display_id: "123".into(),
        run: "job/123/1795000000".into(),
        partition: "gpu".into(),
        qos: "short".into(),
        reservation: "course".into(),
        state: "PENDING".into(),
        priority: 10,
        node_count: 2,
        time_limit_minutes: Some(150),
        req_tres: "cpu=16,mem=64G,node=2,billing=16,gres/gpu=4,gres/gpu:a100=4,license/matlab=2"
            .into(),
        dependency: "afterok:17(unfulfilled),afterany:18(unfulfilled)".into(),
        licenses: "matlab:2".into(),
        features: "a100".into(),
        failed_node: "n7".into(),
        array: Some(ArrayInfo {
            max_running: 5,
            ..ArrayInfo::default()
        }),
        eligible_time: Some(timestamp(at(7_200))),
        ..Job::default()
    }
}

fn explained(reason: &str, description: &str) -> Explanation {
    let job = Job {
        reason: reason.into(),
        reason_description: description.into(),
        ..job()
    };
    explain(&PendingJob {
        job: &job,
        user: "alice",
        account: "physics",
        position: None,
        view: ClusterView::default(),
        now: at(0),
    })
}

/// A text for every pattern of the free-text table, in its order.
const DESCRIPTIONS: [&str; 19] = [
    "ReqNodeNotAvail, UnavailableNodes:n[4-6]",
    "ReqNodeNotAvail, May be reserved for other job",
    "ReqNodeNotAvail, Reserved for maintenance",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    "launch failed requeued held",
    "launch failure limit exceeded requeued held",
    "user env retrieval failed requeued held",
    "job requeued in held state",
    "job requeued in special exit state",
    "Reservation course was deleted",
    "Reservation course is invalid",
    "uid 20001 not in group permitted to use this partition (gpu). groups allowed: ml,bio",
    "RaisedSignal:9(Killed)",
    "Job is at or exceeds QOS short(7) group max TRES(cpu) minutes of 1000 with 1000",
    "Job is at or exceeds association 12 group wall limit of 1000 with 1000",
    "Reservation course, which this job was running under, has ended",
    "burst_buffer/lua: stage in failed",
    "Job's account not permitted to use this partition (closed allows ml not physics)",
    "Job's QOS not permitted to use this partition (closed denies short,long including short)",
];

fn check(text: &str, explanation: &Explanation) {
    let Explanation {
        summary,
        advice,
        actor,
        reason,
        reason_class,
        ..
    } = explanation;
    for sentence in [summary, advice] {
        assert!(
            sentence.chars().count() > 10 && sentence.chars().count() <= MAX_SUMMARY_CHARS,
            "{text}: {sentence}"
        );
        assert!(
            !sentence.contains(['{', '}', '<', '>', '\n']),
            "{text}: {sentence}"
        );
        assert!(!sentence.contains("JOB"), "{text}: {sentence}");
        assert!(
            !sentence.contains("  ") && !sentence.contains("the the") && !sentence.contains(" ."),
            "{text}: {sentence}"
        );
        assert!(
            sentence.starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit())
                || sentence.starts_with("scontrol"),
            "{text}: {sentence}"
        );
    }
    assert!(
        ["wait", "user", "admin"].contains(&actor.as_str()),
        "{text}: {actor}"
    );
    assert!(!reason.is_empty() && !reason_class.is_empty(), "{text}");
    assert_eq!(
        explanation.expected_start.is_none(),
        !explanation.no_estimate_because.is_empty(),
        "{text}"
    );
    assert_eq!(
        explanation.expected_start.is_some(),
        explanation.method == "slurm-plan",
        "{text}"
    );
}

#[test]
fn every_reason_has_a_sentence_of_its_own() {
    let mut text = String::new();
    for row in reasons::rows() {
        let explanation = explained(row.reason, "");
        check(row.reason, &explanation);
        assert_eq!(explanation.reason, row.reason);
        assert_eq!(explanation.limit, row.limit);
        assert_ne!(
            explanation.summary, row.meaning,
            "{} has no words of its own",
            row.reason
        );
        text.push_str(&format!(
            "{} [{}] {}\n  {}\n",
            row.reason, explanation.actor, explanation.summary, explanation.advice
        ));
    }
    insta::assert_snapshot!("reasons", text);
}

#[test]
fn every_free_text_has_a_sentence_of_its_own() {
    let mut text = String::new();
    for (row, description) in reasons::descriptions().iter().zip(DESCRIPTIONS) {
        let explanation = explained("Resources", description);
        check(description, &explanation);
        assert_eq!(
            explanation.reason, row.reason,
            "{description} matched another pattern"
        );
        assert_ne!(
            explanation.summary, row.meaning,
            "{description} has no words of its own"
        );
        text.push_str(&format!(
            "{description} [{}] {}\n  {}\n",
            explanation.actor, explanation.summary, explanation.advice
        ));
    }
    assert_eq!(reasons::descriptions().len(), DESCRIPTIONS.len());
    insta::assert_snapshot!("descriptions", text);
}

#[test]
fn a_bare_record_still_makes_whole_sentences() {
    for row in reasons::rows() {
        let job = Job {
            display_id: "7".into(),
            reason: row.reason.into(),
            ..Job::default()
        };
        check(
            row.reason,
            &explain(&PendingJob {
                job: &job,
                user: "alice",
                account: "",
                position: None,
                view: ClusterView::default(),
                now: at(0),
            }),
        );
    }
}

#[test]
fn scontrols_spelling_is_understood_alike() {
    for description in DESCRIPTIONS {
        assert_eq!(
            explained("", &description.replace(' ', "_")).reason,
            explained("", description).reason,
            "{description}"
        );
    }
}

#[test]
fn a_reason_no_table_knows_is_quoted() {
    let explanation = explained("SomethingNewIn27.11", "");
    check("unknown", &explanation);
    assert!(explanation.summary.contains("SomethingNewIn27.11"));
    assert_eq!(
        (
            explanation.reason_class.as_str(),
            explanation.actor.as_str()
        ),
        ("unknown", "admin")
    );
}

#[test]
fn the_snapshot_counts_before_the_older_record() {
    let job = Job {
        reason: "Priority".into(),
        ..job()
    };
    let row = QueuedJob {
        reason: "ReqNodeNotAvail, UnavailableNodes:n4".into(),
        ..QueuedJob::default()
    };
    let position = QueuePosition {
        row: &row,
        ahead: 0,
        taken_at: at(0),
    };
    let explanation = explain(&PendingJob {
        job: &job,
        user: "alice",
        account: "physics",
        position: Some(position),
        view: ClusterView::default(),
        now: at(0),
    });
    assert_eq!(explanation.reason_class, "node_unavailable");
    assert_eq!(explanation.evidence, ["nodes n4"]);
}

#[test]
fn reports_the_jobs_ahead_and_the_planned_start() {
    let row = QueuedJob {
        reason: "Priority".into(),
        expected_start: at(3_600).timestamp(),
        ..QueuedJob::default()
    };
    let position = QueuePosition {
        row: &row,
        ahead: 3,
        taken_at: at(0),
    };
    let explanation = explain(&PendingJob {
        job: &job(),
        user: "alice",
        account: "",
        position: Some(position),
        view: ClusterView::default(),
        now: at(0),
    });
    assert_eq!(explanation.expected_start, Some(timestamp(at(3_600))));
    insta::assert_snapshot!(explanation.summary, @"3 waiting jobs of higher priority are ahead of it in partition gpu. Slurm plans its start for 2026-11-18 12:06 UTC (in 1 h).");
}

#[test]
fn held_jobs_have_no_estimate_even_if_an_old_plan_is_left() {
    let job = Job {
        reason: "JobHeldUser".into(),
        expected_start_time: Some(timestamp(at(60))),
        ..job()
    };
    let explanation = explain(&PendingJob {
        job: &job,
        user: "alice",
        account: "",
        position: None,
        view: ClusterView::default(),
        now: at(0),
    });
    assert!(
        explanation.expected_start.is_none() && explanation.no_estimate_because.starts_with("held")
    );
}

#[test]
fn a_plan_that_has_passed_is_no_estimate() {
    let job = Job {
        reason: "Resources".into(),
        expected_start_time: Some(timestamp(at(0))),
        ..job()
    };
    let start = |now| {
        explain(&PendingJob {
            job: &job,
            user: "alice",
            account: "",
            position: None,
            view: ClusterView::default(),
            now,
        })
        .expected_start
    };
    assert!(start(at(60)).is_some());
    assert!(start(at(600)).is_none());
}

proptest! {
    #[test]
    fn hostile_records_stay_within_bounds(
        reason in "\\PC{0,400}", partition in ".{0,400}", dependency in "(afterok:[0-9]{1,9}[,?]){0,60}", nodes in "([a-z]{1,20}[0-9]{1,6},){0,80}",
    ) {
        for text in [reason.as_str(), "Dependency", "Priority", "QOSGrpCPURunMinutesLimit", &format!("ReqNodeNotAvail, UnavailableNodes:{nodes}")] {
            let job = Job { reason: text.into(), partition: partition.clone(), qos: partition.clone(), dependency: dependency.clone(), ..job() };
            let explanation = explain(&PendingJob { job: &job, user: "alice", account: &partition, position: None, view: ClusterView::default(), now: at(0) });
            prop_assert!(explanation.summary.chars().count() <= MAX_SUMMARY_CHARS && !explanation.summary.is_empty());
            prop_assert!(!explanation.summary.contains('\n'));
        }
    }
}
