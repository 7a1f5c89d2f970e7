use event_filter::{Filter, TypePattern, sample};
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::event::v1::Identity;
use mesh_events::proto::mesh::job::v1::{ExitCode, JobEvent};
use proptest::prelude::*;

use super::*;
use crate::{Dialect, Text};

const SUBMITTED: i64 = 1_763_760_000;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(SUBMITTED + seconds, 0).unwrap()
}

/// An event of a task, or of the array's remainder. Run 0 is the first.
fn task(kind: EventType, task: Option<u32>, run: i64, code: u32) -> Event {
    let mut event = sample::event(kind);
    let submitted = SUBMITTED + run * 1_000;
    let id = task.map_or("7".to_owned(), |task| format!("7_{task}"));
    let job = Job {
        job_id: 7 + task.unwrap_or(0),
        run: format!("job/{id}/{submitted}"),
        display_id: id,
        exit_code: Some(ExitCode { code, signal: 0 }),
        array: Some(ArrayInfo {
            job_id: 7,
            task_id: task,
            ..ArrayInfo::default()
        }),
        ..sample::job()
    };
    match &mut event.payload {
        Some(Payload::Job(payload)) => payload.job = Some(job),
        Some(Payload::Cost(cost)) => cost.job = Some(job),
        _ => panic!("not about a job"),
    }
    event
}

fn with(mut event: Event, change: impl FnOnce(&mut JobEvent)) -> Event {
    match &mut event.payload {
        Some(Payload::Job(payload)) => change(payload),
        _ => panic!("no job"),
    }
    event
}

fn submitted(tasks: &str) -> Event {
    with(task(EventType::JobSubmitted, None, 0, 0), |payload| {
        payload.job.as_mut().unwrap().array.as_mut().unwrap().tasks = tasks.into();
    })
}

fn apply(digest: &mut Digest, event: &Event, now: i64) -> Vec<Summary> {
    let kind = event.kind().unwrap();
    assert_eq!(key(kind, event).as_deref(), Some("digest/example/7"));
    digest.apply(kind, event, |_| true, at(now))
}

/// All summaries of an array, if ticks come when they are due.
fn run(digest: &mut Digest, events: &[(i64, Event)], until: i64) -> Vec<Summary> {
    let mut sent = Vec::new();
    let tick = |digest: &mut Digest, until: DateTime<Utc>| {
        let mut ticked = Vec::new();
        while let Some(due) = digest
            .due(&DigestSchedule::MESSAGES)
            .filter(|due| *due <= until)
        {
            ticked.extend(digest.tick(&DigestSchedule::MESSAGES, due));
        }
        ticked
    };
    for (now, event) in events {
        sent.extend(tick(digest, at(*now)));
        sent.extend(apply(digest, event, *now));
        // Simulates a restart after every event.
        *digest = serde_json::from_str(&serde_json::to_string(digest).unwrap()).unwrap();
    }
    sent.extend(tick(digest, at(until)));
    sent
}

fn shown(summary: &Summary) -> String {
    let message = summary.message();
    let plain = |text: &Text| text.write(Dialect::Plain, 500);
    let facts = message
        .facts
        .iter()
        .map(|fact| format!("  {}: {}", fact.name, plain(&fact.value)));
    let head = [
        format!("{} {}", message.sign, plain(&message.heading)),
        plain(&message.sentence),
    ];
    head.into_iter().chain(facts).collect::<Vec<_>>().join("\n")
}

#[test]
fn ten_thousand_tasks_are_a_few_messages() {
    let mut events = vec![(0, submitted("0-9999%50"))];
    for n in 0..10_000_u32 {
        let second = i64::from(n) / 2;
        let (kind, code) = match n {
            17 | 18 | 4_000 => (EventType::JobFailed, 1),
            99 => (EventType::JobOutOfMemory, 0),
            _ => (EventType::JobCompleted, 0),
        };
        events.push((second, task(EventType::JobStarted, Some(n), 0, 0)));
        events.push((second + 60, task(kind, Some(n), 0, code)));
    }
    events.sort_by_key(|(second, _)| *second);
    let mut digest = Digest::default();
    // Without restarts, which are tested with fewer tasks.
    let mut sent = Vec::new();
    for (now, event) in &events {
        sent.extend(digest.tick(&DigestSchedule::MESSAGES, at(*now)));
        sent.extend(apply(&mut digest, event, *now));
    }
    assert_eq!(
        digest.tick(&DigestSchedule::MESSAGES, at(5_060)),
        None,
        "not yet settled"
    );
    sent.extend(digest.tick(&DigestSchedule::MESSAGES, at(5_100)));
    assert!(digest.is_over());
    let moments: Vec<DigestReason> = sent.iter().map(|summary| summary.moment).collect();
    assert_eq!(moments[..2], [DigestReason::First, DigestReason::Failing]);
    assert_eq!(moments.last(), Some(&DigestReason::Done));
    assert!(moments.len() <= 7, "{moments:?}");
    let size = serde_json::to_string(&digest).unwrap().len();
    assert!(size < 4_000, "{size} bytes");
    let texts: Vec<String> = [&sent[0], &sent[1], sent.last().unwrap()].map(shown).into();
    insta::assert_snapshot!("ten_thousand", texts.join("\n\n"));
}

#[test]
fn a_requeued_task_counts_by_its_last_run() {
    let mut digest = Digest::default();
    let events = [
        submitted("0-1"),
        task(EventType::JobCompleted, Some(0), 0, 0),
        task(EventType::JobNodeFail, Some(1), 0, 0),
        task(EventType::JobSubmitted, Some(1), 1, 0),
        task(EventType::JobStarted, Some(1), 1, 0),
        // Late, and repeated.
        task(EventType::JobStarted, Some(1), 0, 0),
        task(EventType::JobNodeFail, Some(1), 0, 0),
    ];
    for event in &events {
        apply(&mut digest, event, 5);
    }
    assert!(!digest.is_done());
    apply(
        &mut digest,
        &task(EventType::JobCompleted, Some(1), 1, 0),
        9,
    );
    let sent = digest.tick(&DigestSchedule::MESSAGES, at(60)).unwrap();
    assert_eq!(
        (sent.moment, sent.ended, sent.failed),
        (DigestReason::Done, 2, 0)
    );
    assert_eq!(sent.causes, [("completed".to_owned(), 2)].into());
    assert_eq!(
        digest.tick(&DigestSchedule::MESSAGES, at(100_000)),
        None,
        "once"
    );
}

#[test]
fn who_asks_for_requeues_hears_of_those_of_tasks() {
    let mut digest = Digest::default();
    let mut sent = Vec::new();
    let events = [
        submitted("0-2"),
        task(EventType::JobStarted, Some(1), 1, 0),
        // Late, and repeated.
        task(EventType::JobRequeued, Some(1), 0, 0),
        task(EventType::JobRequeued, Some(1), 0, 0),
        task(EventType::JobRequeued, Some(2), 0, 0),
        task(EventType::JobCompleted, Some(0), 0, 0),
    ];
    for event in &events {
        sent.extend(apply(&mut digest, event, 5));
    }
    sent.extend(digest.tick(&DigestSchedule::MESSAGES, at(1_000)));
    let moments: Vec<DigestReason> = sent.iter().map(|summary| summary.moment).collect();
    assert_eq!(moments, [DigestReason::First, DigestReason::Progress]);
    let asked = |kind| kind == EventType::JobRequeued;
    let concerns: Vec<bool> = sent.iter().map(|summary| summary.concerns(asked)).collect();
    assert_eq!(concerns, [false, true]);
    assert_eq!((sent[1].ended, sent[1].requeued), (1, 2));
    assert!(shown(&sent[1]).contains("Went back to the queue"));
}

#[test]
fn the_cancelled_remainder_is_counted_by_its_tasks() {
    let mut digest = Digest::default();
    apply(&mut digest, &submitted("1-100"), 0);
    apply(
        &mut digest,
        &task(EventType::JobCompleted, Some(1), 0, 0),
        1,
    );
    let cancelled = with(task(EventType::JobCancelled, None, 0, 0), |payload| {
        payload.array_tasks = "2-100".into()
    });
    apply(&mut digest, &cancelled, 2);
    apply(&mut digest, &cancelled, 3);
    let sent = digest.tick(&DigestSchedule::MESSAGES, at(60)).unwrap();
    assert_eq!(
        sent.causes,
        [("cancelled".to_owned(), 99), ("completed".to_owned(), 1)].into()
    );
    assert_eq!((sent.moment, sent.failed), (DigestReason::Done, 0));
}

#[test]
fn an_array_whose_list_was_cut_is_told_after_a_while() {
    let mut digest = Digest::default();
    apply(&mut digest, &submitted("1,3,5,7,..."), 0);
    apply(&mut digest, &task(EventType::JobFailed, Some(3), 0, 2), 1);
    assert_eq!(digest.tick(&DigestSchedule::MESSAGES, at(300)), None);
    let sent = digest.tick(&DigestSchedule::MESSAGES, at(700)).unwrap();
    assert_eq!(
        (sent.moment, sent.whole, sent.failed),
        (DigestReason::Progress, false, 1)
    );
    assert_eq!(digest.due(&DigestSchedule::MESSAGES), None, "nothing new");
}

/// As messages about single jobs do. Later events without an identity do not take the name away.
#[test]
fn a_digest_names_the_person() {
    let end = |n, identity: Option<Identity>| {
        let mut event = task(EventType::JobFailed, Some(n), 0, 1);
        event.owner.as_mut().unwrap().identity = identity;
        event
    };
    let named = |name: &str| Identity {
        name: name.into(),
        ..Identity::default()
    };
    let sentence = |first: Option<Identity>| {
        let mut digest = Digest::default();
        let events = [(1, end(0, first)), (2, end(1, None))];
        let sent = run(&mut digest, &events, 100_000);
        let last = shown(sent.last().unwrap());
        last.lines().nth(1).unwrap().to_owned()
    };
    let text = sentence(Some(named("Alice Adams")));
    assert!(text.contains(" of Alice Adams (alice) in "), "{text}");
    for unnamed in [None, Some(named(""))] {
        let text = sentence(unnamed);
        assert!(text.contains(" of alice in "), "{text}");
    }
}

#[test]
fn costs_are_summed_once_per_run() {
    let mut digest = Digest::default();
    let cost = |n, run, micros| {
        let mut event = task(EventType::CostFinalized, Some(n), run, 0);
        if let Some(Payload::Cost(cost)) = &mut event.payload {
            cost.total = Some(Money {
                micros,
                currency: "EUR".into(),
            });
        }
        event
    };
    for event in [
        cost(1, 0, 5),
        cost(1, 0, 5),
        cost(2, 0, 7),
        cost(1, 1, 11),
        cost(1, 1, 11),
    ] {
        apply(&mut digest, &event, 0);
    }
    assert_eq!(digest.micros, [("EUR".to_owned(), 23)].into());
}

#[test]
fn a_slow_array_is_told_of_ever_more_rarely() {
    let mut digest = Digest::default();
    // One task every 20 minutes for 138 days.
    let mut sent = 0;
    apply(&mut digest, &submitted("0-9999%1"), 0);
    for n in 0..10_000_u32 {
        let now = i64::from(n) * 1_200;
        sent += apply(
            &mut digest,
            &task(EventType::JobCompleted, Some(n), 0, 0),
            now,
        )
        .len();
        sent += usize::from(
            digest
                .tick(&DigestSchedule::MESSAGES, at(now + 1_199))
                .is_some(),
        );
    }
    assert!((100..160).contains(&sent), "{sent}: about one a day");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_task_counts_once_in_any_order_however_often_it_is_told(
        tasks in prop::collection::vec((0u32..5, 0i64..3), 1..40),
        order in any::<prop::sample::Index>(),
        repeats in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let ends = [EventType::JobCompleted, EventType::JobFailed, EventType::JobTimeout, EventType::JobCancelled, EventType::JobNodeFail];
        let mut events = vec![submitted(&format!("0-{}", tasks.len() - 1))];
        let mut expected: BTreeMap<String, u64> = BTreeMap::new();
        for (n, (end, reruns)) in (0..).zip(&tasks) {
            for rerun in 0..*reruns {
                events.push(task(EventType::JobStarted, Some(n), rerun, 0));
                let kind = if rerun % 2 == 0 { EventType::JobRequeued } else { EventType::JobPreempted };
                events.push(task(kind, Some(n), rerun, 0));
                events.push(task(EventType::JobSubmitted, Some(n), rerun + 1, 0));
            }
            let kind = ends[*end as usize];
            events.push(task(EventType::JobStarted, Some(n), *reruns, 0));
            let last = task(kind, Some(n), *reruns, 1);
            *expected.entry(cause(kind, last.job().unwrap())).or_default() += 1;
            events.push(last);
        }
        let count = events.len();
        events.rotate_left(order.index(count));
        events.extend(repeats.iter().map(|index| events[index.index(count)].clone()).collect::<Vec<_>>());
        // Swaps by the same indexes produce further orders.
        for (i, index) in repeats.iter().enumerate() {
            let other = index.index(events.len());
            let one = i % events.len();
            events.swap(one, other);
        }
        let events: Vec<_> = events.into_iter().enumerate().map(|(i, event)| (i as i64, event)).collect();
        let mut digest = Digest::default();
        let sent = run(&mut digest, &events, 100_000);
        let last = sent.last().unwrap();
        prop_assert_eq!(last.moment, DigestReason::Done);
        prop_assert_eq!(&last.causes, &expected);
        prop_assert_eq!(last.ended, tasks.len() as u64);
        prop_assert_eq!(last.running, 0);
        prop_assert!(digest.is_over());
        prop_assert!(sent.len() <= 6, "{} messages", sent.len());
        let numbers: Vec<u32> = sent.iter().map(|summary| summary.number).collect();
        prop_assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    }

    #[test]
    fn ranges_are_what_slurm_reads(tasks in prop::collection::btree_set(0u32..200, 0..60)) {
        let mut set = Tasks::default();
        tasks.iter().for_each(|task| set.insert(*task));
        if !tasks.is_empty() {
            let read: TaskSet = set.ranges(10_000).parse().unwrap();
            prop_assert!(read.iter().eq(tasks.iter().copied()));
        }
        prop_assert!(set.ranges(20).len() <= 20 + '…'.len_utf8());
    }
}

/// Requested types, ends with their exit codes, and the expected messages.
type Case<'a> = (&'a [&'a str], &'a [(EventType, u32)], &'a [DigestReason]);

/// Messages about an array of three to an endpoint with these types.
fn sent_to(types: &[&str], ends: &[(EventType, u32)]) -> Vec<DigestReason> {
    let types: Vec<TypePattern> = types.iter().map(|text| text.parse().unwrap()).collect();
    let filter = Filter::new(&types, &[], &[]);
    let asked = |kind| filter.selects(kind);
    let mut digest = Digest::default();
    let mut sent = digest.apply(EventType::JobSubmitted, &submitted("1-3"), asked, at(0));
    for n in 1..=3 {
        let start = task(EventType::JobStarted, Some(n), 0, 0);
        sent.extend(digest.apply(EventType::JobStarted, &start, asked, at(1)));
    }
    for (n, (kind, code)) in (1..).zip(ends) {
        let end = task(*kind, Some(n), 0, *code);
        sent.extend(digest.apply(*kind, &end, asked, at(2)));
    }
    while let Some(due) = digest.due(&DigestSchedule::MESSAGES) {
        sent.extend(digest.tick(&DigestSchedule::MESSAGES, due));
    }
    sent.retain(|summary| summary.concerns(asked));
    sent.iter().map(|summary| summary.moment).collect()
}

#[test]
fn an_array_is_told_as_far_as_its_ends_are_asked_for() {
    use DigestReason::{Done, Failing, First};
    let all = |kind| [(kind, 0); 3];
    let completed = all(EventType::JobCompleted);
    let cancelled = all(EventType::JobCancelled);
    let preempted = all(EventType::JobPreempted);
    let failed = [
        (EventType::JobCompleted, 0),
        (EventType::JobFailed, 1),
        (EventType::JobCompleted, 0),
    ];
    let out_of_memory = all(EventType::JobOutOfMemory);
    let mixed = [
        (EventType::JobNodeFail, 0),
        (EventType::JobFailed, 137),
        (EventType::JobCompleted, 0),
    ];
    let cases: [Case<'_>; 17] = [
        (&["job.cancelled"], &cancelled, &[Done]),
        (&["job.cancelled"], &completed, &[]),
        (&["job.cancelled"], &failed, &[]),
        (&["job.preempted"], &preempted, &[Done]),
        (&["job.preempted"], &cancelled, &[]),
        (&["job.started"], &failed, &[First]),
        (
            &["job.started", "job.cancelled"],
            &cancelled,
            &[First, Done],
        ),
        (&["job.completed"], &completed, &[Done]),
        (&["job.completed"], &failed, &[Done]),
        (&["job.completed"], &out_of_memory, &[]),
        (&["job.failed"], &failed, &[Failing, Done]),
        (&["job.failed"], &out_of_memory, &[]),
        (&["job.failed"], &mixed, &[Failing, Done]),
        (&["job.node_fail"], &mixed, &[Failing, Done]),
        (&["job.out_of_memory"], &out_of_memory, &[Failing, Done]),
        (&["job.*"], &cancelled, &[First, Done]),
        (&["job.*"], &mixed, &[First, Failing, Done]),
    ];
    for (types, ends, expected) in cases {
        assert_eq!(sent_to(types, ends), expected, "{types:?} of {ends:?}");
    }
}

/// A stored digest is read by the next version, so these values must not change.
#[test]
fn the_stored_words_of_a_reason_never_change() {
    for (reason, stored) in [
        (DigestReason::First, "first"),
        (DigestReason::Failing, "failing"),
        (DigestReason::Progress, "progress"),
        (DigestReason::Done, "done"),
    ] {
        assert_eq!(serde_json::to_value(reason).unwrap(), stored);
    }
}
