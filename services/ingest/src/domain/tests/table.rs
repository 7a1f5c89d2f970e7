//! Runs every row of the normative table, so that page and code cannot drift apart.

use super::observation::{Step, apply, fact_name, step};
use crate::domain::{RunStore, observe, run_of};

const PAGE: &str = include_str!("../../../../../docs/reference/job-events.md");

/// Rows of the table: description, observations, events.
fn rows() -> Vec<[String; 3]> {
    let table = PAGE
        .split("<!-- table: tested -->")
        .nth(1)
        .unwrap()
        .split("<!-- end -->")
        .next()
        .unwrap();
    let cells = |line: &str| -> [String; 3] {
        let cells: Vec<String> = line
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().trim_matches('`').to_owned())
            .collect();
        cells
            .try_into()
            .unwrap_or_else(|_| panic!("{line:?} has not three cells"))
    };
    table
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(cells)
        .collect()
}

fn events(readings: &str) -> String {
    let mut run_store = RunStore::default();
    let mut names = Vec::new();
    for (poll, text) in readings.split(';').enumerate() {
        let facts = apply(
            &mut run_store,
            step(text.trim(), u64::try_from(poll).unwrap()),
        );
        names.extend(facts.iter().map(fact_name));
    }
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join(", ")
    }
}

#[test]
fn every_row_of_the_table_holds() {
    let rows = rows();
    assert!(
        rows.len() > 50,
        "the table of docs/reference/job-events.md was not found"
    );
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|[title, readings, expected]| {
            let found = events(readings);
            (found != *expected).then(|| {
                format!("{title}\n  readings {readings}\n  expected {expected}\n  found    {found}")
            })
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_end_has_its_own_event_type() {
    for (reading, kind) in [
        ("RUNNING n1; COMPLETED n1 end=20", "job.completed"),
        ("RUNNING n1; FAILED n1 end=20", "job.failed"),
        ("RUNNING n1; CANCELLED n1 end=20", "job.cancelled"),
        ("RUNNING n1; TIMEOUT n1 end=20", "job.timeout"),
        ("RUNNING n1; OUT_OF_MEMORY n1 end=20", "job.out_of_memory"),
        ("RUNNING n1; NODE_FAIL n1 end=20", "job.node_fail"),
        ("RUNNING n1; PREEMPTED n1 end=20", "job.preempted"),
        (
            "RUNNING,CONFIGURING n1; BOOT_FAIL n1 end=20",
            "job.boot_fail",
        ),
        ("PENDING; DEADLINE start=20 end=20", "job.deadline"),
        ("PENDING; REVOKED", "job.revoked"),
    ] {
        let mut run_store = RunStore::default();
        let facts = reading.split("; ").zip(0..).flat_map(|(text, poll)| {
            let facts = apply(&mut run_store, step(text, poll));
            facts.into_iter().map(|fact| fact.kind.to_string())
        });
        assert_eq!(facts.last().as_deref(), Some(kind), "{reading}");
    }
}

#[test]
fn events_of_a_run_are_counted_upwards_from_one() {
    for [title, readings, _] in rows() {
        let mut run_store = RunStore::default();
        let mut last = std::collections::HashMap::new();
        for (poll, text) in readings.split(';').enumerate() {
            for fact in apply(
                &mut run_store,
                step(text.trim(), u64::try_from(poll).unwrap()),
            ) {
                let before = last.insert(fact.run.clone(), fact.seq).unwrap_or(0);
                assert_eq!(fact.seq, before + 1, "{title}: {:?}", fact.kind);
            }
        }
    }
}

/// The payload of one attempt must not fill the record of another, which would get wrong exit codes.
#[test]
fn accounting_reports_the_attempt_that_started_then() {
    let mut run_store = RunStore::default();
    for (poll, text) in [
        "sacct: NODE_FAIL n1 start=10 end=20",
        "RUNNING n2 start=30 restarts=1",
        "COMPLETED n2 start=30 end=40 restarts=1",
    ]
    .into_iter()
    .enumerate()
    {
        apply(&mut run_store, step(text, u64::try_from(poll).unwrap()));
    }
    for (text, attempt) in [
        ("sacct: NODE_FAIL n1 start=10 end=20", 0),
        ("sacct: COMPLETED n2 start=30 end=40", 1),
    ] {
        let Step::See(observations, _) = step(text, 9) else {
            panic!("{text} is a reading");
        };
        assert_eq!(
            run_of(&run_store, &observations[0]).attempt,
            attempt,
            "{text}"
        );
    }
}

/// What opens the gap of a slurmctld with an older state, whichever record shows the other run first.
#[test]
fn a_run_after_one_that_had_ended_is_repeated_and_one_after_a_lost_node_is_not() {
    for (end, next, repeated) in [
        ("COMPLETED n1 end=20", "RUNNING n1 start=50", 1),
        ("COMPLETED n1 end=20", "sacct: FAILED n1 start=50 end=60", 1),
        (
            "sacct: CANCELLED n1 end=20",
            "sacct: RUNNING n1 start=50",
            1,
        ),
        ("NODE_FAIL n1 end=20", "sacct: FAILED n2 start=50 end=60", 0),
        ("COMPLETED n1 end=20", "sacct: COMPLETED n1 end=20", 0),
        ("COMPLETED n1 end=20", "RUNNING n1 start=50 restarts=1", 0),
    ] {
        let mut run_store = RunStore::default();
        for (poll, text) in ["RUNNING n1", end].into_iter().enumerate() {
            apply(&mut run_store, step(text, u64::try_from(poll).unwrap()));
        }
        let Step::See(observations, context) = step(next, 2) else {
            panic!("{next} is a reading");
        };
        let decision = observe(&run_store, &observations[0], &context);
        assert_eq!(decision.repeated.len(), repeated, "{end}; {next}");
    }
}
