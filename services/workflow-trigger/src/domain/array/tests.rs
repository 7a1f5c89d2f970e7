use event_filter::sample;
use slurm_types::{JobState, UnixTime};

use super::*;

const NOW: i64 = 1_763_770_000;

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(NOW, 0).unwrap()
}

/// A time that is not recent.
fn old() -> DateTime<Utc> {
    now() - TimeDelta::hours(1)
}

fn stored(number: u32, restarts: u32, is_sent: bool) -> StoredTask {
    StoredTask {
        failed: FailedTask {
            array: JobId::new(100).unwrap(),
            task: number,
            job_id: JobId::new(100 + number).unwrap(),
            restarts,
            cause: "job.out_of_memory".to_owned(),
            changes: JobUpdate {
                memory: Some(1_000),
                ..JobUpdate::default()
            },
        },
        is_sent,
    }
}

fn shown(task: Option<u32>, state: JobBaseState, restarts: u32) -> ArrayRecord {
    ArrayRecord {
        task,
        state: JobState::of(state),
        held: false,
        restarts,
        end: Some(UnixTime::from_secs(NOW - 3_600)),
    }
}

fn held(task: u32, restarts: u32) -> ArrayRecord {
    ArrayRecord {
        held: true,
        ..shown(Some(task), JobBaseState::Pending, restarts)
    }
}

fn completing(task: u32, restarts: u32) -> ArrayRecord {
    let mut record = shown(Some(task), JobBaseState::Failed, restarts);
    record.state = "FAILED COMPLETING".parse().unwrap();
    record
}

#[test]
fn only_events_about_one_task_of_an_array_are_of_a_task() {
    let mut job = sample::job();
    let task = FailedTask::of(EventType::JobOutOfMemory, &job).unwrap();
    assert_eq!((task.array.get(), task.task), (1230, 4));
    assert_eq!((task.job_id.get(), task.restarts), (1234, 0));
    assert_eq!(task.cause, "job.out_of_memory");
    // What has not left the array's own record is no task that ran.
    job.array.as_mut().unwrap().task_id = None;
    assert_eq!(FailedTask::of(EventType::JobOutOfMemory, &job), None);
    job.array = None;
    assert_eq!(FailedTask::of(EventType::JobOutOfMemory, &job), None);
}

#[test]
fn a_task_is_requeued_or_released_only_as_this_run_left_it() {
    use JobBaseState::{Completed, Failed, Running};
    let place = |task: StoredTask, record: Option<ArrayRecord>| {
        let records: Vec<_> = record.into_iter().collect();
        let found = Comparison::new(&[task], &records, old(), now());
        let places = [
            ("failed", found.failed),
            ("held", found.held),
            ("ending", found.ending),
            ("running again", found.running_again),
            ("absent", found.absent),
        ];
        let found = places.into_iter().filter(|(_, tasks)| !tasks.is_empty());
        found.map(|(name, _)| name).collect::<Vec<_>>()
    };
    for (task, record, expected) in [
        (
            stored(1, 0, false),
            Some(shown(Some(1), Failed, 0)),
            "failed",
        ),
        // The answer of the requeue was lost before it was done.
        (
            stored(1, 0, true),
            Some(shown(Some(1), Failed, 0)),
            "failed",
        ),
        (stored(1, 0, true), Some(held(1, 1)), "held"),
        // Somebody else holds it.
        (stored(1, 0, false), Some(held(1, 1)), "running again"),
        (stored(1, 0, true), Some(held(1, 2)), "running again"),
        (
            stored(1, 0, true),
            Some(shown(Some(1), Running, 1)),
            "running again",
        ),
        (
            stored(1, 0, true),
            Some(shown(Some(1), Completed, 1)),
            "running again",
        ),
        // A controller that crashed shows it as it was before the event: never requeued while it runs.
        (
            stored(1, 0, false),
            Some(shown(Some(1), Running, 0)),
            "running again",
        ),
        (stored(1, 0, false), Some(completing(1, 0)), "ending"),
        (stored(1, 0, true), None, "absent"),
    ] {
        assert_eq!(
            place(task.clone(), record.clone()),
            [expected],
            "{task:?} {record:?}"
        );
    }
}

#[test]
fn a_task_that_failed_twice_counts_with_its_later_failure() {
    let tasks = [stored(1, 1, false), stored(1, 0, false)];
    let records = [shown(Some(1), JobBaseState::Failed, 1)];
    let found = Comparison::new(&tasks, &records, old(), now());
    assert_eq!(found.failed, [1].into());
    assert_eq!(found.not_retried(), "tasks 1: not requeued");
}

#[test]
fn a_run_waits_while_another_task_may_fail() {
    use JobBaseState::{Cancelled, Completed, Failed, Pending, Running};
    let recent = |state| ArrayRecord {
        end: Some(UnixTime::from_secs(NOW - 5)),
        ..shown(Some(2), state, 0)
    };
    for (record, is_complete) in [
        (shown(Some(2), Running, 0), false),
        (shown(None, Pending, 0), false),
        (completing(2, 0), false),
        // Of another run, which would wait for this one, or of a person.
        (held(2, 1), true),
        // Its event may be on its way.
        (recent(Failed), false),
        (recent(Completed), true),
        (recent(Cancelled), true),
        // It had its event: the rule does not retry it.
        (shown(Some(2), Failed, 0), true),
    ] {
        let records = [shown(Some(1), Failed, 0), record.clone()];
        let found = Comparison::new(&[stored(1, 0, false)], &records, old(), now());
        assert_eq!(found.is_complete(), is_complete, "{record:?}");
    }
}

#[test]
fn a_run_waits_for_events_that_come_late_after_its_first_one_or_a_restart() {
    let failed = |task| shown(Some(task), JobBaseState::Failed, 0);
    for (seconds, is_complete) in [(0, false), (70, false), (91, true)] {
        let since = now() - TimeDelta::seconds(seconds);
        let found = Comparison::new(
            &[stored(1, 0, false)],
            &[failed(1), failed(2)],
            since,
            now(),
        );
        assert_eq!(found.is_complete(), is_complete, "{seconds} s");
        // There is nothing to wait for.
        let found = Comparison::new(&[stored(1, 0, false)], &[failed(1)], since, now());
        assert!(found.is_complete(), "{seconds} s");
    }
}

#[test]
fn each_cause_gets_the_most_that_one_of_its_tasks_needs() {
    let mut tasks = vec![stored(1, 0, true), stored(2, 0, true), stored(3, 0, true)];
    tasks[1].failed.changes.memory = Some(2_000);
    tasks[2].failed.cause = "job.timeout".to_owned();
    tasks[2].failed.changes = JobUpdate {
        time: Some(90),
        ..JobUpdate::default()
    };
    for (number, node) in [(4, "n1"), (5, "n2"), (6, "n1")] {
        let mut task = stored(number, 0, true);
        task.failed.cause = "job.node_fail".to_owned();
        task.failed.changes = JobUpdate {
            exclude: Some(node.to_owned()),
            ..JobUpdate::default()
        };
        tasks.push(task);
    }
    let mut preempted = stored(7, 0, true);
    preempted.failed.cause = "job.preempted".to_owned();
    preempted.failed.changes = JobUpdate::default();
    tasks.push(preempted);
    let all = (1..=7).collect();
    let changes = changes_by_cause(&tasks, &all);
    let expected = [
        (
            [4, 5, 6].into(),
            JobUpdate {
                exclude: Some("n1,n2".to_owned()),
                ..JobUpdate::default()
            },
        ),
        (
            [1, 2].into(),
            JobUpdate {
                memory: Some(2_000),
                ..JobUpdate::default()
            },
        ),
        (
            [3].into(),
            JobUpdate {
                time: Some(90),
                ..JobUpdate::default()
            },
        ),
    ];
    assert_eq!(changes, expected);
    // What is not held is not changed.
    assert_eq!(
        changes_by_cause(&tasks, &[1].into())[0].1.memory,
        Some(1_000)
    );
}

#[test]
fn requests_name_tasks_and_never_the_whole_array() {
    let array = JobId::new(100).unwrap();
    let named = |numbers: BTreeSet<u32>| {
        let references = references(array, &numbers);
        references.iter().map(JobRef::to_string).collect::<Vec<_>>()
    };
    assert_eq!(named([2, 4, 5, 6].into()), ["100_[2,4-6]"]);
    assert_eq!(named([2].into()), ["100_[2]"]);
    assert_eq!(named(BTreeSet::new()), Vec::<String>::new());
    assert_eq!(named((0..2_500).collect()).len(), 3);
}
