//! Verdicts on rows and events made by hand.

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, Owner};
use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
use mesh_events::timestamp;

use super::*;
use crate::log::{Broken, Pause};
use mesh_events::Event;

fn row(line: &str) -> Row {
    Row::read(line).unwrap()
}

#[test]
fn a_job_that_accounting_does_not_end_is_open() {
    let mut log = Log::new();
    log.jobs.extend([7, 8, 9]);
    let runs = row("7|7|alice|RUNNING|100|110|Unknown|n1|0:0|10|00:00:00");
    let waits = row("8|8|alice|PENDING|100|Unknown|Unknown|None assigned|0:0|0|00:00:00");
    let published = Published::default();
    let verdict = judge(&[runs, waits], &log, &published, Source::Commands, false);
    assert_eq!(verdict.open.len(), 3, "{:?}", verdict.open);
    assert!(verdict.open.contains(&"job 9 has no row".to_owned()));
}

#[test]
fn a_genuine_hook_is_contradicted_only_by_a_controller_that_was_killed_after_the_end() {
    let mut log = Log::new();
    log.broken.push(Broken {
        what: FaultKind::Slurmctld,
        from: 125,
        until: 130,
    });
    let line = |end: i64| format!("WARN ingest: not shown job.id=7 end={end} start=100");
    let mut published = Published::default();
    published.contradicted_hooks.extend([120, 200].map(line));
    let verdict = judge(&[], &log, &published, Source::Commands, false);
    assert_eq!(verdict.wrong.len(), 1, "{:?}", verdict.wrong);
    assert!(verdict.wrong[0].contains("end=200"), "{:?}", verdict.wrong);
}

#[test]
fn an_end_lost_by_accounting_is_as_slurmctld_reported() {
    let mut log = Log::new();
    log.jobs.extend([7, 8]);
    let runs = row("7|7|alice|RUNNING|100|110|Unknown|n1|0:0|10|00:00:00");
    let witness = Witness {
        user: "alice".to_owned(),
        start: Some(110),
        end: 120,
        state: "FAILED".to_owned(),
        nodes: "n1".to_owned(),
    };
    log.witnesses.insert((7, None, 100), witness.clone());
    log.witnesses.insert((8, None, 100), witness);
    let published = Published::default();
    let now = judge(
        std::slice::from_ref(&runs),
        &log,
        &published,
        Source::Commands,
        false,
    );
    assert_eq!((now.open.len(), now.lost.len()), (2, 0), "{now:?}");
    let then = judge(&[runs], &log, &published, Source::Commands, true);
    assert_eq!((then.open.len(), then.lost.len()), (0, 2), "{then:?}");
    for run in ["(7, None, 100)", "(8, None, 100)"] {
        for kind in ["started", "failed"] {
            let what = format!("job.{kind} of {run}");
            assert!(then.missing.iter().any(|text| text.starts_with(&what)));
        }
    }
    // Its usage is unknown.
    assert!(
        !then
            .missing
            .iter()
            .any(|text| text.starts_with("job.updated"))
    );
}

#[test]
fn a_part_of_a_run_whose_resize_accounting_lost_is_no_run() {
    let mut log = Log::new();
    let witness = Witness {
        user: "bob".to_owned(),
        start: Some(100),
        end: 134,
        state: "COMPLETED".to_owned(),
        nodes: "n1".to_owned(),
    };
    log.witnesses.insert((7, None, 100), witness);
    let rows = [
        row("7|7|bob|COMPLETED|100|100|Unknown|n1|0:0|943|00:00:00"),
        row("7|7|bob|COMPLETED|132|132|134|n1|0:0|2|00:00:00"),
    ];
    let verdict = judge(&rows, &log, &Published::default(), Source::Commands, true);
    assert_eq!((verdict.open.len(), verdict.lost.len()), (0, 1));
    let about = |text: &String| text.contains("132)");
    assert!(!verdict.missing.iter().any(about), "{:?}", verdict.missing);
}

#[test]
fn an_end_in_accounting_without_event_is_missing() {
    let ended = row("7|7|alice|FAILED|100|110|120|n1|3:0|10|00:00:00");
    let published = Published::default();
    let verdict = judge(&[ended], &Log::new(), &published, Source::Commands, false);
    assert!(verdict.open.is_empty());
    let missing = |kind: &str| verdict.missing.iter().any(|text| text.starts_with(kind));
    for kind in [
        "job.submitted of",
        "job.started of",
        "job.failed of",
        "job.updated of",
    ] {
        assert!(missing(kind), "{kind}: {:?}", verdict.missing);
    }
}

/// An event about a run of alice: entity key, type, time, cancelled tasks.
fn event((key, kind, at, tasks): (&str, &str, i64, &str)) -> Event {
    let at = chrono::DateTime::from_timestamp(at, 0).unwrap();
    let job = Job {
        nodes: "n1".to_owned(),
        ..Job::default()
    };
    Event {
        id: format!("{key} {kind} {tasks}"),
        cluster: "soak".to_owned(),
        r#type: kind.to_owned(),
        occurred_at: Some(timestamp(at)),
        confidence: Confidence::Observed.into(),
        owner: Some(Owner {
            user: "alice".to_owned(),
            ..Owner::default()
        }),
        entity: Some(Entity {
            kind: "job".to_owned(),
            key: key.to_owned(),
        }),
        payload: Some(Payload::Job(JobEvent {
            job: Some(job),
            array_tasks: tasks.to_owned(),
            ..JobEvent::default()
        })),
        ..Event::default()
    }
}

/// Everything is in the ledger, too.
fn published(events: &[(&str, &str, i64, &str)]) -> Published {
    let mut published = Published::default();
    for event in events.iter().copied().map(event) {
        published.ledger.insert(event.id.clone(), 1);
        published.bus.insert(event.id.clone(), event);
    }
    published
}

const TIMED_OUT: &str = "7|7|alice|TIMEOUT|100|110|120|n1|0:0|10|00:00:00";
const LIFE: [(&str, &str, i64, &str); 3] = [
    ("job/7/100", "job.submitted", 100, ""),
    ("job/7/100", "job.started", 110, ""),
    ("job/7/100", "job.timeout", 120, ""),
];

fn is_about(text: &str) -> impl Fn(&&String) -> bool {
    move |difference| difference.starts_with(text)
}

#[test]
fn an_invented_resume_is_extra() {
    let mut log = Log::new();
    log.pauses.push(Pause {
        job: 7,
        event_name: "suspended",
        proven: true,
        from: 112,
        until: 112,
    });
    let suspended = ("job/7/100", "job.suspended", 112, "");
    let judged = |events: &[(&str, &str, i64, &str)]| {
        let published = published(events);
        judge(&[row(TIMED_OUT)], &log, &published, Source::Commands, true)
    };
    let mut events = LIFE.to_vec();
    events.push(suspended);
    assert_eq!(judged(&events).extra, [] as [String; 0]);
    events.push(("job/7/100", "job.resumed", 120, ""));
    let extra = judged(&events).extra;
    assert_eq!(extra.len(), 1, "{extra:?}");
    assert!(
        extra[0].starts_with("job.resumed of (7, None, 100)"),
        "{extra:?}"
    );
    // A suspend that happened is missed.
    let missing = judged(&LIFE).missing;
    assert!(
        missing
            .iter()
            .any(|text| text.starts_with("job.suspended of 7"))
    );
}

#[test]
fn a_task_that_no_event_names_is_missing() {
    let mut log = Log::new();
    log.arrays.insert(9, 4);
    let rest = row("9_[0-1,3]|9|alice|CANCELLED|100|Unknown|120|None assigned|0:0|0|00:00:00");
    let judged = |events: &[(&str, &str, i64, &str)]| {
        let published = published(events);
        let rows = std::slice::from_ref(&rest);
        judge(rows, &log, &published, Source::Commands, true)
    };
    let mut events = vec![
        ("job/9/100", "job.submitted", 100, ""),
        ("job/9/100", "job.cancelled", 120, "0-1,3"),
    ];
    let verdict = judged(&events);
    let expected = "job.cancelled of array 9 with task 2";
    assert_eq!(verdict.missing, [expected]);
    events.push(("job/9/100", "job.cancelled", 115, "2"));
    assert_eq!(judged(&events).count(), 0);
    events.push(("job/9/100", "job.cancelled", 116, "2-3"));
    assert_eq!(judged(&events).duplicates.len(), 2);
}

#[test]
fn a_requeue_in_place_of_the_end_of_a_finished_run_is_wrong() {
    let mut log = Log::new();
    log.requeued.insert(7);
    let witness = Witness {
        user: "alice".to_owned(),
        start: Some(110),
        end: 120,
        state: "TIMEOUT".to_owned(),
        nodes: "n1".to_owned(),
    };
    log.witnesses.insert((7, None, 100), witness);
    let overwritten = "7|7|alice|REQUEUED|100|110|130|n1|0:0|20|00:00:00";
    let judged = |events: &[(&str, &str, i64, &str)]| {
        let published = published(events);
        let rows = [row(overwritten)];
        judge(&rows, &log, &published, Source::Commands, true)
    };
    let of_end = "job.timeout of (7, None, 100) at 120";
    let right = judged(&LIFE);
    assert!(
        !right.wrong.iter().any(|text| is_about(of_end)(&text)),
        "{right:?}"
    );
    assert_eq!(right.compared.get("job.timeout"), Some(&1));
    let mut events = LIFE;
    events[2] = ("job/7/100", "job.requeued", 130, "");
    let wrong = judged(&events).wrong;
    let wrong: Vec<&String> = wrong.iter().filter(is_about(of_end)).collect();
    assert_eq!(wrong.len(), 1);
    assert!(
        wrong[0].contains("it is job.requeued, it is at 130"),
        "{wrong:?}"
    );
}

#[test]
fn an_attempt_that_ends_before_it_starts_is_wrong() {
    let judged = |end: i64| {
        let events = [
            ("job/7/100/1", "job.started", 112, ""),
            ("job/7/100/1", "job.node_fail", end, ""),
        ];
        let published = published(&events);
        let verdict = judge(&[], &Log::new(), &published, Source::Commands, true);
        let is_about = |text: &&String| text.contains("job.node_fail of job/7/100/1 is at");
        verdict.wrong.iter().filter(is_about).count()
    };
    assert_eq!((judged(112), judged(111)), (0, 1));
}
