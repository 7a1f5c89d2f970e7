//! Which records confirm which reported ends.

use mesh_events::EventType;

use super::super::tests::observation::{EPOCH, Step, apply, step};
use super::*;

fn observation(text: &str) -> Observation {
    match step(text, 9) {
        Step::See(mut observations, _) => observations.remove(0),
        Step::Settle { .. } => panic!("{text} is a reading"),
    }
}

/// Checks a reported end after some observations (`before`) against the controller's records (`found`).
fn check(before: &str, found: &str, end: &str) -> String {
    let mut run_store = RunStore::default();
    for (poll, text) in before.split(';').enumerate() {
        apply(
            &mut run_store,
            step(text.trim(), u64::try_from(poll).unwrap()),
        );
    }
    let owner = |_: &RunKey| {
        Some(Owner {
            user: "alice".to_owned(),
            uid: Some(7),
            account: "physics".to_owned(),
        })
    };
    let mut end = observation(&format!("jobcomp: {end}"));
    end.owner.user = "bob".to_owned();
    let (end, by) = match confirm(&run_store, &[observation(found)], owner, &end) {
        Confirmation::Confirmed(end) => {
            assert!(!end.end_is_inferred);
            (end, "the record".to_owned())
        }
        Confirmation::Unproven { end, shown_by } => {
            assert!(end.end_is_inferred);
            (end, format!("{shown_by:?}"))
        }
        other => return format!("{other:?}"),
    };
    assert!(end.owner.user != "bob", "{end:?}");
    let kind = end.end_kind().map(EventType::event);
    let start = end.start.map(|at| at - EPOCH);
    format!("{} {start:?} by {by}", kind.unwrap_or_default())
}

#[test]
fn an_end_counts_as_far_as_a_record_bears_it_out() {
    for (before, found, end, expected) in [
        // 22.05 hides the state of a run whose epilogs run, but not the time of its end, and for most failures not the reason.
        (
            "RUNNING n1",
            "COMPLETING n1 end=20 reason=TimeLimit",
            "TIMEOUT n1 end=20",
            "timeout Some(10) by the record",
        ),
        (
            "RUNNING n1",
            "COMPLETING n1 end=20 reason=NonZeroExitCode",
            "FAILED n1 end=20",
            "failed Some(10) by the record",
        ),
        (
            "RUNNING n1",
            "COMPLETING n1 end=20 reason=NonZeroExitCode",
            "COMPLETED n1 end=20",
            "Open",
        ),
        (
            "RUNNING n1",
            "COMPLETING n1 end=20",
            "COMPLETED n1 end=20",
            "completed Some(10) by Some(Any)",
        ),
        (
            "RUNNING n1; COMPLETED n1 end=20",
            "COMPLETING n1 end=20",
            "CANCELLED n1 end=20",
            "Known",
        ),
        (
            "RUNNING n1",
            "COMPLETING n1 end=20",
            "TIMEOUT n1 end=19",
            "Open",
        ),
        (
            "RUNNING n1",
            "COMPLETING n1 end=20",
            "TIMEOUT n1 start=9 end=20",
            "Open",
        ),
        (
            "RUNNING n1",
            "COMPLETING n1 end=20",
            "PENDING n1 end=20",
            "Open",
        ),
        // The controller counts the restart at once, and has the times of the next run.
        (
            "RUNNING n1",
            "COMPLETING n1 start=20 end=900 restarts=1",
            "PENDING n1 end=20",
            "requeued Some(10) by Some(Accounting)",
        ),
        (
            "RUNNING n1",
            "PENDING,COMPLETING n1 start=20 restarts=1",
            "NODE_FAIL n1 end=20",
            "node_fail Some(10) by Some(Accounting)",
        ),
        // The next run was read under the same submit time. jobcomp has the resize as the start.
        (
            "RUNNING n1; RUNNING n1 resize=15; PENDING restarts=1",
            "PENDING restarts=1",
            "NODE_FAIL n1 start=15 end=20",
            "Known",
        ),
        (
            "PENDING",
            "COMPLETING n1 start=20 end=900 restarts=1",
            "PENDING n1 end=20",
            "Open",
        ),
        // The record has the end itself.
        (
            "RUNNING n1",
            "FAILED,COMPLETING n1 end=20",
            "COMPLETED n1 end=20",
            "Known",
        ),
        (
            "RUNNING n1",
            "FAILED n1 end=20",
            "COMPLETED n1 end=20",
            "Known",
        ),
        // The job is in another run.
        (
            "RUNNING n1",
            "PENDING submit=100 restarts=1",
            "PREEMPTED n1 end=90",
            "preempted Some(10) by Some(Accounting)",
        ),
        (
            "RUNNING n1",
            "PENDING submit=100 restarts=1",
            "PREEMPTED n1 end=9",
            "Contradicted",
        ),
        (
            "RUNNING n1",
            "PENDING submit=100 restarts=1",
            "PREEMPTED n1 end=103",
            "UnknownRun",
        ),
        (
            "RUNNING n1",
            "PENDING submit=100 restarts=1",
            "CANCELLED end=90",
            "UnknownRun",
        ),
        (
            "PENDING",
            "PENDING submit=100 restarts=1",
            "PREEMPTED n1 end=90",
            "UnknownRun",
        ),
        (
            "RUNNING n1; COMPLETED n1 end=20",
            "PENDING submit=100 restarts=1",
            "FAILED n1 end=90",
            "Known",
        ),
        // A run that no record has shown.
        (
            "RUNNING n1 submit=100 start=110",
            "RUNNING n1 submit=100 start=110",
            "FAILED n1 end=20",
            "UnknownRun",
        ),
        (
            "RUNNING n1",
            "RUNNING n1",
            "FAILED n1 submit=100 start=110 end=120",
            "UnknownRun",
        ),
        // The run continues.
        (
            "RUNNING n1",
            "RUNNING n1",
            "FAILED n1 end=20",
            "Contradicted",
        ),
        ("PENDING", "PENDING", "CANCELLED end=20", "Contradicted"),
        // Requeued before it started, under the same submit time (22.05, component of a heterogeneous job).
        (
            "PENDING",
            "PENDING restarts=1",
            "NODE_FAIL end=20",
            "UnknownRun",
        ),
        // Requeued in its first second, under the same submit time (22.05).
        (
            "RUNNING n1",
            "PENDING restarts=1",
            "PENDING n1 end=10",
            "requeued Some(10) by None",
        ),
        (
            "RUNNING n1",
            "RUNNING n1 start=20 restarts=1",
            "NODE_FAIL n1 end=10",
            "node_fail Some(10) by None",
        ),
        (
            "PENDING",
            "PENDING restarts=1",
            "PENDING n1 end=10",
            "Contradicted",
        ),
    ] {
        let found = check(before, found, end);
        assert_eq!(found, expected, "{before} | {end}");
    }
}

#[test]
fn nodes_and_users_that_the_record_denies_are_not_taken_from_the_doorbell() {
    let mut record = observation("COMPLETING n1 end=20");
    let mut end = observation("jobcomp: FAILED n1 end=20");
    record.job.nodes = "n[2-3]".to_owned();
    record.job.alloc_tres = "cpu=3,node=3".to_owned();
    for (previous, expected) in [
        ("n[1-3]", "n[1-3]"),
        ("n[1-2]", "n[2-3]"),
        ("n[1-4]", "n[2-3]"),
        ("n[1-", "n[2-3]"),
    ] {
        end.job.nodes = previous.to_owned();
        let Confirmation::Unproven { end: completed, .. } = completed(&record, None, &end) else {
            panic!("the record does not show how it ended");
        };
        assert_eq!(completed.job.nodes, expected, "{previous}");
    }
    (record.owner.uid, end.owner.uid) = (Some(7), Some(8));
    assert!(matches!(completed(&record, None, &end), Confirmation::Open));
    (end.owner.uid, end.exit_code) = (Some(7), "1:0".parse().ok());
    record.exit_code = "3:0".parse().ok();
    assert!(matches!(completed(&record, None, &end), Confirmation::Open));
}

/// A run that only a hook reports says nothing about other runs.
#[test]
fn a_run_known_only_from_a_hook_is_continued_by_none() {
    let mut run_store = RunStore::default();
    let Step::See(ends, context) = step("jobcomp: FAILED n1 end=20", 1) else {
        panic!("a reading");
    };
    let inferred = super::super::ObservationContext {
        inferred: true,
        ..context
    };
    let previous = apply(&mut run_store, Step::See(ends, inferred));
    assert!(previous.len() == 3 && previous.iter().all(|fact| fact.inferred));
    let next = apply(
        &mut run_store,
        step("RUNNING n1 submit=100 start=110 given-up restarts=1", 2),
    );
    assert!(!next.is_empty());
    assert!(
        next.iter()
            .all(|fact| fact.continues.is_none() && !fact.inferred)
    );
}
